// LinkGroup: many links from one endpoint of this process to one executor of a server, and echo
// calls over all of them at once. It uses sessions directly, because a channel has only one link
// per executor.
//
// Used on the thread that drives the runtime. The runtime has no threads of its own, and outlives
// the group.

#ifndef VERBENA_BENCHMARKS_LINKS_LINK_GROUP_H_
#define VERBENA_BENCHMARKS_LINKS_LINK_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/runtime.h"

namespace verbena::benchmarks {

struct LinksSample {
  double calls_per_s = 0;
  double p50_ns = 0;
  double p99_ns = 0;
};

class LinkGroup final : private internal::ClientSession::Listener {
 public:
  static absl::StatusOr<std::unique_ptr<LinkGroup>> Connect(Runtime& runtime,
                                                            const std::string& address, int links);

  int links() const { return static_cast<int>(sessions_.size()); }
  // Echoes 32 bytes for `duration`, with `outstanding` calls in flight on each link. The time
  // starts after the first calls were made, which takes long with thousands of links. Calls that
  // end after `duration` do not count. One call in 16 is timed.
  absl::StatusOr<LinksSample> RunSlice(int outstanding, Duration duration);

 private:
  explicit LinkGroup(Runtime& runtime) : runtime_(runtime) {}

  Task<absl::Status> Open(const std::string& address, int links);
  Task<void> Workers(int outstanding, Duration duration, absl::Status& status, LinksSample& sample);
  Task<void> Worker(internal::ClientSession& session, uint8_t first_round, absl::Status& status);
  void OnSessionDown(internal::ClientSession&, const absl::Status& reason) override {
    lost_ = reason;
  }
  void OnSessionDraining(internal::ClientSession&) override {}
  void OnSessionIdle(internal::ClientSession&) override {}

  Runtime& runtime_;
  std::vector<std::unique_ptr<internal::ClientSession>> sessions_;
  LatencyHistogram latencies_;
  uint64_t calls_ = 0;
  bool stopped_ = false;  // the slice is over
  absl::Status lost_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_LINK_GROUP_H_
