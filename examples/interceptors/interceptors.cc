// A server that asks for a token, and channels with and without it: three interceptors at work.

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "examples/interceptors/authorization.h"
#include "examples/interceptors/fault_injection.h"
#include "examples/interceptors/interceptors.verbena.pb.h"
#include "examples/interceptors/logging.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"

namespace interceptors {
namespace {

class AccountService final : public Accounts::Service {
  verbena::Task<absl::Status> Balance(verbena::ServerContext& context,
                                      const BalanceRequest& request, BalanceReply& reply) override {
    // CheckToken has put it there.
    const std::optional<std::string_view> user = context.metadata().Get(kUserKey);
    if (user != request.account()) co_return absl::PermissionDeniedError("not your account");
    reply.set_cents(1234);
    co_return absl::OkStatus();
  }
};

verbena::Task<absl::StatusOr<BalanceReply>> Balance(verbena::Channel& channel,
                                                    std::string account) {
  const Accounts::Stub accounts(channel);
  BalanceRequest request;
  request.set_account(std::move(account));
  co_return co_await accounts.Balance(request, {.deadline = std::chrono::seconds(10)});
}

// Prints what came of a call.
void Show(const char* who, const absl::StatusOr<BalanceReply>& reply) {
  if (reply.ok()) {
    std::cout << who << ": " << reply->cents() << " cents" << std::endl;
  } else {
    std::cout << who << ": " << reply.status().message() << " ("
              << verbena::OutcomeName(verbena::OutcomeOf(reply.status())) << ")" << std::endl;
  }
}

int Run() {
  auto runtime = verbena::Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  AccountService service;
  const CheckToken::Users users = {{"secret-of-ada", "ada"}};
  auto server = verbena::Server::Start(**runtime, {&service},
                                       {.interceptors = {std::make_shared<CheckToken>(users)}});
  if (!server.ok()) return std::cerr << server.status() << std::endl, 1;
  const std::string& address = (*server)->address();
  const auto logging = std::make_shared<LoggingInterceptor>();

  verbena::Channel stranger(**runtime, address, {.interceptors = {logging}});
  Show("a stranger", (*runtime)->BlockOn(Balance(stranger, "ada")));

  verbena::Channel ada(**runtime, address,
                       {.interceptors = {logging, std::make_shared<SendToken>("secret-of-ada")}});
  Show("ada", (*runtime)->BlockOn(Balance(ada, "ada")));
  Show("ada, of bob", (*runtime)->BlockOn(Balance(ada, "bob")));

  // The log shows the injected fault, since logging is the outer one.
  verbena::Channel flaky(**runtime, address,
                         {.interceptors = {logging, std::make_shared<FaultInjection>(2),
                                           std::make_shared<SendToken>("secret-of-ada")}});
  Show("flaky, first", (*runtime)->BlockOn(Balance(flaky, "ada")));
  Show("flaky, second", (*runtime)->BlockOn(Balance(flaky, "ada")));
  return 0;
}

}  // namespace
}  // namespace interceptors

int main() { return interceptors::Run(); }
