// RecordingService and StreamContextTest: streams whose handlers record the context that came, on a
// channel whose interceptors do what a test says.

#ifndef VERBENA_TESTS_RPC_STREAM_CONTEXT_FIXTURE_H_
#define VERBENA_TESTS_RPC_STREAM_CONTEXT_FIXTURE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/context_service.h"
#include "tests/rpc/stream_service.h"
#include "tests/support/any_handler.h"
#include "tests/support/watched.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/task.h"

namespace verbena::internal {

// Records the context of the last stream, and ends it as a test tells it to.
class RecordingService final : public testing::Streaming::Service {
 public:
  using Before = AnyHandler<ServerContext&>;

  Task<absl::Status> Count(ServerContext& context, const testing::CountRequest& request,
                           ServerWriter<testing::StreamItem>& writer) override {
    filler_bytes = request.filler().size();
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    for (uint32_t i = 0; i < request.count(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(ItemOf(i)));
    }
    co_return absl::Status(static_cast<absl::StatusCode>(request.code()), "as was asked");
  }
  Task<absl::Status> Sum(ServerContext& context, ServerReader<testing::StreamItem>& reader,
                         testing::Summary& reply) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    testing::StreamItem item;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(item));
      if (!read) co_return absl::OkStatus();
      reply.set_count(reply.count() + 1);
    }
  }
  Task<absl::Status> Echo(
      ServerContext& context,
      ServerReaderWriter<testing::StreamItem, testing::StreamItem>& stream) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    testing::StreamItem item;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(item));
      if (!read) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(item));
    }
  }
  Task<absl::Status> Ignore(
      ServerContext& context,
      ServerReaderWriter<testing::StreamItem, testing::StreamItem>&) override {
    VERBENA_CO_RETURN_IF_ERROR(co_await Begin(context));
    ++waiting;
    absl::Status ended = co_await SleepUntil(kNever);
    --waiting;
    co_return ended;
  }
  Task<absl::Status> Say(ServerContext& context, const testing::StreamItem&,
                         testing::StreamItem&) override {
    co_return co_await Begin(context);
  }
  Task<absl::Status> Hold(ServerContext&, const testing::StreamItem&,
                          testing::StreamItem&) override {
    co_return absl::OkStatus();
  }

  Before before;                  // runs at the start of each handler
  std::vector<SeenContext> seen;  // one for each handler that began
  Watched<int> waiting;
  size_t filler_bytes = 0;

 private:
  Task<absl::Status> Begin(ServerContext& context) {
    seen.push_back(SeenContext::Of(context));
    if (before) co_return co_await before(context);
    co_return absl::OkStatus();
  }
};

// Does what a test says.
class ScriptedInterceptor final : public ClientInterceptor {
 public:
  using Function = AnyHandler<ClientCallView&, ClientNext>;
  explicit ScriptedInterceptor(Function function) : function_(std::move(function)) {}

 private:
  VERBENA_CORO_WRAPPER Task<absl::Status> Intercept(ClientCallView& call,
                                                    ClientNext next) override {
    return function_(call, next);
  }
  const Function function_;
};

class StreamContextTest : public RuntimePair {
 protected:
  void Start(std::vector<ScriptedInterceptor::Function> interceptors = {},
             ServerOptions server = {}) {
    server_runtime_ = StartRuntime();
    ServeWith(service_, std::move(server));
    client_runtime_ = StartRuntime();
    ChannelOptions channel;
    for (auto& each : interceptors)
      channel.interceptors.push_back(std::make_shared<ScriptedInterceptor>(each));
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), std::move(channel));
    stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  }
  void TearDown() override {
    stub_.reset();
    channel_.reset();
  }

  // Streams of each kind, from the first await to the end.
  Task<absl::Status> Count(CallOptions options, uint32_t items = 3, size_t filler = 0,
                           absl::StatusCode code = absl::StatusCode::kOk) {
    testing::CountRequest request;
    request.set_count(items);
    request.set_code(static_cast<int>(code));
    request.set_filler(std::string(filler, 'x'));
    ClientReader<testing::StreamItem> reader = stub_->Count(request, std::move(options));
    testing::StreamItem item;
    uint32_t read = 0;
    while (co_await reader.Read(item)) ++read;
    absl::Status status = co_await reader.Finish();
    if (status.ok() && read != items) co_return absl::DataLossError("items are missing");
    co_return status;
  }
  Task<absl::Status> Sum(CallOptions options, uint32_t items = 3) {
    ClientWriter<testing::StreamItem, testing::Summary> writer = stub_->Sum(std::move(options));
    for (uint32_t i = 0; i < items; ++i) (void)co_await writer.Write(ItemOf(i));
    absl::StatusOr<testing::Summary> sum = co_await writer.Finish();
    if (sum.ok() && sum->count() != items) co_return absl::DataLossError("items are missing");
    co_return sum.status();
  }
  Task<absl::Status> Echo(CallOptions options) {
    ClientReaderWriter<testing::StreamItem, testing::StreamItem> stream =
        stub_->Echo(std::move(options));
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(7)));
    const std::optional<testing::StreamItem> item = co_await stream.Read();
    absl::Status status = co_await stream.Finish();
    if (status.ok() && (!item.has_value() || item->number() != 7)) {
      co_return absl::DataLossError("the item did not come back");
    }
    co_return status;
  }
  SeenContext Seen() { return service_.seen.empty() ? SeenContext{} : service_.seen.back(); }

  RecordingService service_;
  std::unique_ptr<testing::Streaming::Stub> stub_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_STREAM_CONTEXT_FIXTURE_H_
