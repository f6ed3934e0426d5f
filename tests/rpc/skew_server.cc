// A server of skew_server.proto as a program of its own: skew_server_program HOST:PORT. Prints its
// address, and runs until it is killed.

#include <unistd.h>

#include <iostream>
#include <utility>

#include "tests/rpc/skew_server.verbena.pb.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sync.h"

namespace verbena {
namespace {

using testing::skew::Answer;
using testing::skew::Ask;

class SkewService final : public testing::skew::Skew::Service {
 public:
  Task<absl::Status> Hold(ServerContext&, const Ask&, Answer&) override {
    co_return co_await released_.Wait();
  }
  Task<absl::Status> Release(ServerContext&, const Ask&, Answer&) override {
    released_.Set();
    co_return absl::OkStatus();
  }

  VERBENA_CORO_WRAPPER Task<absl::Status> GainsResponsePayload(ServerContext& context,
                                                               const Ask& ask, Answer&) override {
    return Pay(context, ask);
  }
  Task<absl::Status> GainsRequestPayload(ServerContext& context, const Ask&,
                                         Answer& answer) override {
    answer.set_has_payload(context.has_request_payload());
    co_return absl::OkStatus();
  }
  Task<absl::Status> LosesResponsePayload(ServerContext&, const Ask&, Answer&) override {
    co_return absl::OkStatus();
  }
  Task<absl::Status> LosesRequestPayload(ServerContext&, const Ask&, Answer&) override {
    co_return absl::OkStatus();
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> GainsSecondPayload(ServerContext& context, const Ask& ask,
                                                             Answer&) override {
    return Pay(context, ask);
  }
  Task<absl::Status> ReplyStreamGainsPayload(ServerContext& context, const Ask& ask,
                                             ServerWriter<WithPayload<Answer>>& writer) override {
    VERBENA_CO_ASSIGN_OR_RETURN(const Buffer payload,
                                co_await context.AllocateBuffer(ask.payload_bytes()));
    co_return co_await writer.Write(Answer(), payload.view());
  }
  Task<absl::Status> RequestStreamLosesPayload(ServerContext&, ServerReader<Ask>& reader,
                                               Answer&) override {
    for (Ask ask;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(ask));
      if (!read) co_return absl::OkStatus();
    }
  }
  Task<absl::Status> BecomesStream(ServerContext&, const Ask&, ServerWriter<Answer>&) override {
    co_return absl::OkStatus();
  }
  Task<absl::Status> WasStream(ServerContext&, const Ask&, Answer&) override {
    co_return absl::OkStatus();
  }

 private:
  static Task<absl::Status> Pay(ServerContext& context, const Ask& ask) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload,
                                co_await context.AllocateBuffer(ask.payload_bytes()));
    context.SetResponsePayload(std::move(payload));
    co_return absl::OkStatus();
  }

  Event released_;
};

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: skew_server_program HOST:PORT" << std::endl, 2;
  auto runtime = verbena::Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  verbena::SkewService service;
  auto server = verbena::Server::Start(**runtime, {&service}, {.address = argv[1]});
  if (!server.ok()) return std::cerr << server.status() << std::endl, 1;
  std::cout << (*server)->address() << std::endl;
  while (true) pause();
}
