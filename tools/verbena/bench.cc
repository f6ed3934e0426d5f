#include "tools/verbena/bench.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "tools/verbena/dynamic_call.h"
#include "tools/verbena/line_source.h"
#include "tools/verbena/message_json.h"
#include "tools/verbena/remote.h"
#include "tools/verbena/schema.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace verbena::command {
namespace {

// One run of bench. On its executor.
class OpenLoop {
 public:
  OpenLoop(Channel& channel, const DynamicMethod& method, const google::protobuf::Message& request,
           Deadline deadline)
      : channel_(channel), method_(method), request_(request), deadline_(deadline) {}

  // `calls` calls, one each `interval`, at most `in_flight` at once.
  Task<absl::Status> Run(uint64_t calls, double interval_ns, int in_flight) {
    Semaphore places(in_flight);
    TaskScope running(co_await CurrentContext());
    const TimePoint begin = Clock::Real().Now();
    for (uint64_t i = 0; i < calls; ++i) {
      const TimePoint due =
          begin + std::chrono::nanoseconds(std::llround(static_cast<double>(i) * interval_ns));
      // Polls: a timer would add its own lateness to each latency.
      while (Clock::Real().Now() < due) {
        VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
      }
      VERBENA_CO_RETURN_IF_ERROR(co_await places.Acquire());
      running.Spawn(Once(due, places));
    }
    co_await running.Join();
    elapsed_ = Clock::Real().Now() - begin;
    co_return absl::OkStatus();
  }

  void Print(Terminal& terminal) const {
    const double seconds = std::chrono::duration<double>(elapsed_).count();
    const uint64_t all = good_.count() + failed_;
    terminal.output << fmt::format("{} calls in {:.3f} s, {:.0f} a second\n", all, seconds,
                                   static_cast<double>(all) / std::max(seconds, 1e-9));
    const auto us = [](Duration time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    if (good_.count() > 0) {
      terminal.output << fmt::format(
          "latency in us, from when a call was due: p50 {:.1f}, p90 {:.1f}, p99 {:.1f}, p99.9 "
          "{:.1f}, max {:.1f}\n",
          us(good_.At(0.5)), us(good_.At(0.9)), us(good_.At(0.99)), us(good_.At(0.999)),
          us(good_.longest()));
    }
    for (const auto& [code, count] : failures_) {
      terminal.output << fmt::format("{} failed: {}\n", count, absl::StatusCodeToString(code));
    }
    terminal.output.flush();
  }

  // OK, or the first failure.
  const absl::Status& first_failure() const { return first_failure_; }

 private:
  Task<void> Once(TimePoint due, Semaphore& places) {
    const SemaphoreHold place(places);
    DynamicMessage reply(*method_.reply);
    CallOptions options;
    options.deadline = deadline_;
    absl::Status status =
        co_await DynamicCall(channel_, method_, request_, reply, std::move(options));
    if (status.ok()) {
      good_.Add(Clock::Real().Now() - due);
      co_return;
    }
    ++failed_;
    ++failures_[status.code()];
    if (first_failure_.ok()) first_failure_ = std::move(status);
  }

  Channel& channel_;
  const DynamicMethod& method_;
  const google::protobuf::Message& request_;
  const Deadline deadline_;
  Latencies good_;
  uint64_t failed_ = 0;
  std::map<absl::StatusCode, uint64_t> failures_;
  absl::Status first_failure_;
  Duration elapsed_{};
};

Task<absl::StatusOr<int>> Bench(Channel& channel, const BenchArguments& arguments,
                                Deadline deadline, Terminal& terminal) {
  const MethodName name = SplitMethodName(arguments.method, true);
  VERBENA_CO_ASSIGN_OR_RETURN(const std::unique_ptr<Schema> schema,
                              co_await FetchSchema(channel, name.service, deadline));
  absl::StatusOr<std::unique_ptr<DynamicMethod>> method = schema->Method(name.service, name.method);
  if (!method.ok()) {
    co_return absl::IsNotFound(method.status()) ? Mistake(method.status()) : method.status();
  }
  if ((*method)->descriptor.streams != Streams::kNone) {
    co_return Mistake(absl::InvalidArgumentError(
        fmt::format("{} streams: bench makes unary calls", (*method)->full_name)));
  }
  absl::StatusOr<std::unique_ptr<LineSource>> source =
      LineSource::Open(arguments.json, terminal.input);
  if (!source.ok()) co_return Mistake(source.status());
  absl::StatusOr<std::string> text = (*source)->All();
  if (!text.ok()) co_return Mistake(text.status());
  const std::unique_ptr<google::protobuf::Message> request((*method)->request->New());
  if (absl::Status parsed = ParseMessage(*text, 1, *request); !parsed.ok()) {
    co_return Mistake(absl::InvalidArgumentError(
        fmt::format("{}:{}", (*source)->name(), std::string(parsed.message()))));
  }
  OpenLoop loop(channel, **method, *request, deadline);
  const auto calls =
      static_cast<uint64_t>(std::max(1.0, std::round(arguments.rate * arguments.seconds)));
  VERBENA_CO_RETURN_IF_ERROR(co_await loop.Run(calls, 1e9 / arguments.rate, arguments.in_flight));
  loop.Print(terminal);
  VERBENA_CO_RETURN_IF_ERROR(loop.first_failure());
  co_return 0;
}

}  // namespace

size_t Latencies::BucketOf(uint64_t ns) {
  // Values below 2^kBits have a bucket each.
  const int shift = std::max(0, static_cast<int>(std::bit_width(ns)) - kBits - 1);
  return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(ns >> shift);
}

uint64_t Latencies::Highest(size_t bucket) {
  const size_t per_power = size_t{1} << kBits;
  if (bucket < 2 * per_power) return bucket;
  const size_t shift = (bucket >> kBits) - 1;
  const uint64_t low = static_cast<uint64_t>(bucket - (shift << kBits)) << shift;
  return low + ((uint64_t{1} << shift) - 1);
}

void Latencies::Add(Duration latency) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(0, latency.count()));
  ++counts_[BucketOf(ns)];
  ++count_;
  longest_ = std::max(longest_, latency);
}

Duration Latencies::At(double share) const {
  const auto wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (counts_[bucket] == 0 || seen < wanted) continue;
    return std::min(longest_, Duration(static_cast<int64_t>(Highest(bucket))));
  }
  return Duration{};
}

int RunBench(const BenchArguments& arguments, Terminal& terminal) {
  return RunOnChannel(arguments, terminal, &Bench);
}

}  // namespace verbena::command
