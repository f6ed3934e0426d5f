// LoadClient: one of the clients that overload_bench's generator holds.
//
// A client is a runtime, so a server that shares fairly tells clients apart by it. The calling
// thread drives all of them, one turn after the other (RunLoads). Latencies count from when a call
// was due, so a generator that falls behind hides nothing.

#ifndef VERBENA_BENCHMARKS_OVERLOAD_LOAD_CLIENT_H_
#define VERBENA_BENCHMARKS_OVERLOAD_LOAD_CLIENT_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/overload/overload.verbena.pb.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::benchmarks {

// A client's load: either calls at random times, or as many in flight as it is told.
struct Load {
  double per_s = 0;
  int in_flight = 0;
  Priority priority = Priority::kNormal;
  // Each call has this deadline; zero: none. A caller that gave up calls again after a millisecond.
  Duration deadline = {};
  uint32_t work_us = 0;  // 0: kWorkTime
};

struct LoadSample {
  LatencyHistogram served;
  uint64_t offered = 0;
  uint64_t refused = 0;
  uint64_t given_up = 0;  // at their deadlines
  uint64_t failed = 0;    // by anything but overload
};

// Handlers that started at the server.
struct Starts {
  uint64_t all = 0;
  uint64_t late = 0;  // after their callers' deadlines
};

class LoadClient {
 public:
  static absl::StatusOr<std::unique_ptr<LoadClient>> Connect(const std::string& address,
                                                             uint64_t seed);

  // Begins the load. Counts what is due, or ends, between the two times.
  void Start(const Load& load, uint64_t count_from, uint64_t count_until);
  void Stop() { stop_ = true; }
  // One turn of its executor.
  void Poll();
  // Asks the server, once it serves nothing else. For a client without a load.
  absl::StatusOr<Starts> ReadStarts();
  // Notes how long the first call takes that begins at `time` or later and is served; 0: none was.
  void WatchFirst(uint64_t time) { first_from_ = time; }
  uint64_t first_ns() const { return first_ns_; }
  // After Stop(): all calls have ended.
  bool done() const { return done_; }
  const LoadSample& sample() const { return sample_; }
  const Runtime& runtime() const { return *runtime_; }

 private:
  LoadClient(std::unique_ptr<Runtime> runtime, const std::string& address, uint64_t seed);

  Task<void> Main();
  Task<void> Arrivals(TaskScope& scope);
  Task<void> CallAt(uint64_t due);
  Task<void> CallAgainAndAgain();
  Task<absl::Status> Call();
  Task<absl::StatusOr<Starts>> AskForStarts();
  void Note(uint64_t due, const absl::Status& status);
  bool Counts(uint64_t time) const { return time >= count_from_ && time < count_until_; }

  const std::unique_ptr<Runtime> runtime_;
  Channel channel_;
  bench::Overload::Stub stub_;
  std::mt19937_64 random_;
  Load load_;
  uint64_t count_from_ = 0;
  uint64_t count_until_ = 0;
  LoadSample sample_;
  uint64_t first_from_ = std::numeric_limits<uint64_t>::max();
  uint64_t first_ns_ = 0;
  bool stop_ = false;
  bool done_ = true;
};

// Runs each load on the client of its place, and polls until all have ended. `then` is called after
// each round of polls.
void RunLoads(
    const std::vector<std::unique_ptr<LoadClient>>& clients, const std::vector<Load>& loads,
    double seconds, const std::function<void()>& then = [] {});

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_OVERLOAD_LOAD_CLIENT_H_
