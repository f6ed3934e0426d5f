#include "verbena/benchmarks/links/link_group.h"

#include <concepts>
#include <coroutine>
#include <utility>

#include "benchmarks/rpc/bench.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::benchmarks {
namespace {

constexpr size_t kMessageBytes = 32;
// Reading the clock twice takes as long as half a call among many.
constexpr uint8_t kCallsPerTimedOne = 16;
constexpr MethodDescriptor kEcho("verbena.bench.Bench/Echo", Idempotency::kUnknown);

// A call over a session, without a channel.
class SessionCall final : public internal::PlainCall {
 public:
  using PlainCall::PlainCall;
  ~SessionCall() override { AbandonUnended(); }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> caller) {
    return Begin(caller.promise());
  }
  absl::Status await_resume() { return TakeStatus(); }

 private:
  void OnLandingWanted(const internal::LandingRequest&) override {
    VERBENA_CHECK(false) << "a reply of " << kMessageBytes << " bytes does not fit a frame";
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinkGroup>> LinkGroup::Connect(Runtime& runtime,
                                                              const std::string& address,
                                                              int links) {
  std::unique_ptr<LinkGroup> group(new LinkGroup(runtime));
  absl::Status status = runtime.BlockOn(group->Open(address, links));
  if (!status.ok()) return status;
  return group;
}

Task<absl::Status> LinkGroup::Open(const std::string& address, int links) {
  internal::Shard& shard = internal::CoreOf(runtime_).shard(0);
  auto streams = std::make_shared<internal::StreamShare>(
      shard.stream_memory(), shard.stream_memory().budget_bytes(), "the streams of a group");
  absl::StatusOr<internal::Endpoint*> endpoint = shard.EndpointOn(0);
  if (!endpoint.ok()) co_return endpoint.status();
  for (int i = 0; i < links; ++i) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream =
        co_await shard.bootstrap().Connect(address);
    if (!stream.ok()) co_return stream.status();
    auto session = std::make_unique<internal::ClientSession>(
        static_cast<internal::ClientSession::Listener&>(*this), streams);
    absl::StatusOr<internal::Link*> link =
        co_await (*endpoint)->Connect(*std::move(stream), *session, {});
    if (!link.ok()) {
      co_return absl::Status(
          link.status().code(),
          fmt::format("link {} of {}: {}", i + 1, links, std::string(link.status().message())));
    }
    session->Attach(**link);
    sessions_.push_back(std::move(session));
  }
  co_return absl::OkStatus();
}

absl::StatusOr<LinksSample> LinkGroup::RunSlice(int outstanding, Duration duration) {
  absl::Status status;
  LinksSample sample;
  Drive(runtime_, Workers(outstanding, duration, status, sample));
  if (!lost_.ok()) return lost_;
  if (!status.ok()) return status;
  return sample;
}

Task<void> LinkGroup::Workers(int outstanding, Duration duration, absl::Status& status,
                              LinksSample& sample) {
  stopped_ = false;
  TaskScope scope(runtime_.executor(0));
  for (int i = 0; i < outstanding; ++i) {
    for (const auto& session : sessions_)
      scope.Spawn(Worker(*session, static_cast<uint8_t>(i), status));
  }
  latencies_.Clear();
  calls_ = 0;
  const uint64_t began = NowNs();
  (void)co_await Sleep(duration);
  const double seconds = static_cast<double>(NowNs() - began) * 1e-9;
  sample.calls_per_s = static_cast<double>(calls_) / seconds;
  sample.p50_ns = latencies_.PercentileNs(50);
  sample.p99_ns = latencies_.PercentileNs(99);
  stopped_ = true;
  co_await scope.Join();
}

Task<void> LinkGroup::Worker(internal::ClientSession& session, uint8_t first_round,
                             absl::Status& status) {
  bench::EchoMessage request;
  bench::EchoMessage reply;
  request.mutable_data()->resize(kMessageBytes);
  const size_t request_bytes = request.ByteSizeLong();
  // Workers begin at different rounds, so that timed calls are spread evenly.
  for (uint8_t round = first_round; !stopped_ && status.ok() && session.usable(); ++round) {
    const bool timed = round % kCallsPerTimedOne == 0;
    const uint64_t began = timed ? NowNs() : 0;
    SessionCall call(&session, runtime_.executor(0), kEcho, request, reply, kNever, nullptr,
                     request_bytes);
    absl::Status called = co_await call;
    if (called.ok() && reply.data().size() != kMessageBytes) {
      called = absl::DataLossError("a reply differs from its request");
    }
    if (!called.ok()) status = std::move(called);
    ++calls_;
    if (timed) latencies_.Record(NowNs() - began);
  }
}

}  // namespace verbena::benchmarks
