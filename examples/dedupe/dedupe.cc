// Deposits that are repeated and counted once: while the first attempt runs, and after the server
// has restarted, without and with a store of the calls' names.

#include <array>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "examples/dedupe/dedupe.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace dedupe {
namespace {

using std::chrono::milliseconds;
using verbena::Channel;
using verbena::DedupeToken;
using verbena::RequestId;
using verbena::Runtime;
using verbena::Server;
using verbena::Task;

// The account and the names of its deposits, which outlive servers as a database does. One executor
// uses it.
class Database final : public verbena::DedupeStore {
 public:
  // One transaction: the deposit is there if and only if its name is.
  int64_t Commit(const RequestId& name, uint64_t acknowledged_below, int64_t amount) {
    balance_ += amount;
    auto& names = names_[name.client];
    names[name.number] = balance_;
    // The client repeats none of these any more.
    names.erase(names.begin(), names.lower_bound(acknowledged_below));
    return balance_;
  }
  int64_t balance() const { return balance_; }

  Task<absl::StatusOr<std::optional<verbena::DedupeResult>>> Lookup(RequestId name) override {
    const auto& names = names_[name.client];
    const auto found = names.find(name.number);
    if (found == names.end()) co_return std::nullopt;
    DepositReply reply;
    reply.set_balance(found->second);
    co_return verbena::DedupeResult{.reply = reply.SerializeAsString()};
  }

 private:
  int64_t balance_ = 0;
  // The balance after each deposit, by client and number.
  std::map<std::array<uint8_t, 16>, std::map<uint64_t, int64_t>> names_;
};

class AccountService final : public Account::Service {
 public:
  explicit AccountService(Database& database) : database_(database) {}

 private:
  Task<absl::Status> Deposit(verbena::ServerContext& context, const DepositRequest& request,
                             DepositReply& reply) override {
    // The disk is slow.
    absl::Status slept = co_await verbena::Sleep(milliseconds(50));
    if (!slept.ok()) co_return context.NotExecuted(slept);
    reply.set_balance(database_.Commit(*context.dedupe_id(), context.dedupe_acknowledged_below(),
                                       request.amount()));
    co_return absl::OkStatus();
  }

  Database& database_;
};

// One attempt; the token says which deposit it is.
Task<std::string> Deposit(Channel& channel, int64_t amount, DedupeToken& token) {
  const Account::Stub account(channel);
  DepositRequest request;
  request.set_amount(amount);
  const absl::StatusOr<DepositReply> reply = co_await account.Deposit(
      request, {.deadline = std::chrono::seconds(10), .wait_for_ready = true, .dedupe = &token});
  if (reply.ok()) co_return "balance " + std::to_string(reply->balance());
  co_return absl::StatusCodeToString(reply.status().code()) + ", " +
      verbena::OutcomeName(verbena::OutcomeOf(reply.status()));
}

Task<std::string> DepositOnce(Channel& channel, int64_t amount) {
  DedupeToken token;
  co_return co_await Deposit(channel, amount, token);
}

// Gives the first attempt up while the server works, and repeats the call.
Task<std::string> DepositImpatiently(Runtime& runtime, Channel& channel, int64_t amount) {
  DedupeToken token;
  auto first = runtime.Spawn(Deposit(channel, amount, token));
  (void)co_await verbena::Sleep(milliseconds(10));
  first.RequestCancel();
  (void)co_await std::move(first);
  co_return co_await Deposit(channel, amount, token);
}

// A server that is started again at the address that it had.
class Restartable {
 public:
  Restartable(Runtime& runtime, Database& database, bool stores_names)
      : runtime_(runtime), service_(database) {
    if (stores_names) options_.dedupe.store = &database;
    Start();
  }
  bool Start() {
    server_.reset();
    absl::StatusOr<std::unique_ptr<Server>> started =
        Server::Start(runtime_, {&service_}, options_);
    if (!started.ok()) std::cerr << started.status() << "\n";
    if (!started.ok()) return false;
    server_ = *std::move(started);
    options_.address = server_->address();
    return true;
  }
  const std::string& address() const { return options_.address; }

 private:
  Runtime& runtime_;
  AccountService service_;
  verbena::ServerOptions options_;
  std::unique_ptr<Server> server_;
};

// Destroys a token on its executor, which all use of it belongs to.
Task<void> End(std::unique_ptr<DedupeToken> token) {
  token.reset();
  co_return;
}

void Restart(Runtime& client, Runtime& server, bool stores_names) {
  Database database;
  Restartable account(server, database, stores_names);
  Channel channel(client, account.address());
  auto token = std::make_unique<DedupeToken>();
  client.BlockOn(Deposit(channel, 5, *token));
  if (!account.Start()) return;
  std::cout << "repeated after a restart, " << (stores_names ? "with" : "without")
            << " a store: " << client.BlockOn(Deposit(channel, 5, *token)) << "\n";
  client.BlockOn(End(std::move(token)));
  std::cout << "  in the database: " << database.balance() << "\n";
}

int Main() {
  absl::StatusOr<std::unique_ptr<Runtime>> server = Runtime::Start();
  absl::StatusOr<std::unique_ptr<Runtime>> client = Runtime::Start();
  if (!server.ok() || !client.ok()) {
    std::cerr << server.status() << " " << client.status() << "\n";
    return 1;
  }
  {
    Database database;
    const Restartable account(**server, database, /*stores_names=*/false);
    Channel channel(**client, account.address());
    std::cout << "a deposit of 5: " << (*client)->BlockOn(DepositOnce(channel, 5)) << "\n";
    std::cout << "another, given up and repeated: "
              << (*client)->BlockOn(DepositImpatiently(**client, channel, 5)) << "\n";
    std::cout << "  in the database: " << database.balance() << "\n";
  }
  Restart(**client, **server, /*stores_names=*/false);
  Restart(**client, **server, /*stores_names=*/true);
  return 0;
}

}  // namespace
}  // namespace dedupe

int main() { return dedupe::Main(); }
