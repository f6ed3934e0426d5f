#include "verbena/benchmarks/rpc/bench_client.h"

#include <utility>

#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/rpc/allocation_count.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::benchmarks {
namespace {

// One call in 16 is timed: with many in flight, reading the clock twice takes as long as half a
// call.
constexpr uint8_t kCallsPerTimedOne = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<BenchClient>> BenchClient::Connect(const std::string& address,
                                                                  ExecutorMode mode, int core,
                                                                  const std::string& device,
                                                                  bool metrics) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start(
      {.mode = mode, .cpus = {core}, .device = device, .threads = false, .metrics = metrics});
  if (!runtime.ok()) return runtime.status();
  std::unique_ptr<BenchClient> client(new BenchClient(*std::move(runtime), address));
  absl::Status status = client->runtime_->BlockOn(client->channel_.Connect());
  if (!status.ok()) return status;
  return client;
}

BenchClient::BenchClient(std::unique_ptr<Runtime> runtime, const std::string& address)
    : runtime_(std::move(runtime)), channel_(*runtime_, address), stub_(channel_) {}

absl::StatusOr<CallSample> BenchClient::RunSlice(const CallSlice& slice) {
  latencies_.Clear();
  calls_ = 0;
  absl::Status status;
  CallSample sample;
  Drive(*runtime_, Workers(slice, status, sample));
  if (!status.ok()) return status;
  return sample;
}

Task<void> BenchClient::Workers(const CallSlice& slice, absl::Status& status, CallSample& sample) {
  const TimePoint start = Clock::Real().Now();
  {
    TaskScope scope(runtime_->executor(0));
    for (int i = 0; i < slice.outstanding; ++i) {
      scope.Spawn(Worker(slice, static_cast<uint8_t>(i), start + slice.duration, status));
    }
    co_await scope.Join();
    sample.allocations = AllocationCount() - allocations_before_;
  }
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - start).count();
  sample.calls = calls_;
  sample.calls_per_s = static_cast<double>(calls_) / seconds;
  sample.p50_ns = latencies_.PercentileNs(50);
  sample.p99_ns = latencies_.PercentileNs(99);
}

Task<void> BenchClient::Worker(const CallSlice& slice, uint8_t first_round, TimePoint until,
                               absl::Status& status) {
  const auto until_ns = static_cast<uint64_t>(until.time_since_epoch().count());
  bench::EchoMessage request;
  bench::EchoMessage reply;
  request.mutable_data()->resize(slice.size);
  uint64_t now = NowNs();
  // Workers begin at different rounds, so that timed calls are spread evenly.
  for (uint8_t round = first_round; now < until_ns && calls_ < slice.max_calls && status.ok();
       ++round) {
    if (++calls_ == slice.count_from) allocations_before_ = AllocationCount();
    const bool timed = round % kCallsPerTimedOne == 0;
    const uint64_t began = timed ? NowNs() : 0;
    std::string& data = *request.mutable_data();
    data.front() = static_cast<char>(round);
    data.back() = static_cast<char>(~round);
    absl::Status called;
    if (slice.reuse_reply) {
      called = co_await stub_.Echo(request, reply);
    } else {
      absl::StatusOr<bench::EchoMessage> returned = co_await stub_.Echo(request);
      called = returned.status();
      if (called.ok()) reply.Swap(&*returned);
    }
    if (called.ok() && reply.data() != data) {
      called = absl::DataLossError("a reply differs from its request");
    }
    if (!called.ok()) status = std::move(called);
    if (!timed) continue;
    now = NowNs();
    latencies_.Record(now - began);
  }
}

absl::StatusOr<StreamSample> BenchClient::RunStreams(const StreamSlice& slice) {
  calls_ = 0;
  warm_ = 0;
  absl::Status status;
  StreamSample sample;
  Drive(*runtime_, Readers(slice, status, sample));
  if (!status.ok()) return status;
  return sample;
}

Task<void> BenchClient::Readers(const StreamSlice& slice, absl::Status& status,
                                StreamSample& sample) {
  TaskScope scope(runtime_->executor(0));
  for (int i = 0; i < slice.streams; ++i) scope.Spawn(Reader(slice, status));
  co_await scope.Join();
  const double seconds = std::chrono::duration<double>(Clock::Real().Now() - began_).count();
  sample.messages = calls_;
  sample.messages_per_s = static_cast<double>(calls_) / seconds;
  sample.allocations = AllocationCount() - allocations_before_;
}

// Messages count from when all readers are warm, until the slice is over.
Task<void> BenchClient::Reader(const StreamSlice& slice, absl::Status& status) {
  bench::PullRequest request;
  request.set_size(slice.size);
  ClientReader<bench::EchoMessage> reader = stub_.Pull(request);
  bench::EchoMessage message;
  for (uint32_t i = 0; status.ok(); ++i) {
    if (!co_await reader.Read(message)) {
      status = co_await reader.Finish();
      if (status.ok()) status = absl::DataLossError("a stream has ended");
      break;
    }
    const std::string& data = message.data();
    if (data.size() != static_cast<size_t>(slice.size) || data.front() != static_cast<char>(i) ||
        data.back() != static_cast<char>(~i)) {
      status = absl::DataLossError("a message is not the next one");
    }
    if (i == kStreamWarmUp && ++warm_ == slice.streams) {
      began_ = Clock::Real().Now();
      allocations_before_ = AllocationCount();
    }
    if (warm_ < slice.streams) continue;
    ++calls_;
    if (i % kMessagesPerLookAtTheClock != 0) continue;
    if (Clock::Real().Now() >= began_ + slice.duration) break;
  }
}

absl::StatusOr<bench::ServerCounters> BenchClient::Control(bench::ControlRequest::Action action) {
  bench::ControlRequest request;
  request.set_action(action);
  return runtime_->BlockOn(stub_.Control(std::move(request)));
}

}  // namespace verbena::benchmarks
