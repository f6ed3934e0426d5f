// RuntimeReport: a runtime and its servers as an operator sees them; and RuntimeReporter, which
// gathers it without waiting for an executor.
//
// rpc/admin serves reports. The reporter's user owns it, and destroys it before the runtime. Any
// thread.
//
//   reporter.Ask();              // each executor writes its part when it comes to it
//   … reporter.Answered(asked)   // or the caller has waited for long enough
//   const RuntimeReport report = reporter.Read();

#ifndef VERBENA_RPC_SHARD_REPORT_H_
#define VERBENA_RPC_SHARD_REPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/served.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

class RuntimeCore;

// How young a report is that nobody asks an executor to renew: each takes it some time, and whoever
// reaches the page may ask as often as they like. By the machine's clock. (start)
inline constexpr Duration kFreshReport = std::chrono::milliseconds(250);

// Payload memory of one executor on one device, of one budget (MemoryBudgets), in bytes.
struct PoolReport {
  std::string device = {};
  const char* pool = "";  // "send", "receive" or "landing"
  size_t budget = 0;
  size_t registered = 0;
  size_t growing = 0;  // is being registered
  size_t in_use = 0;
  size_t waiting = 0;  // calls that wait for memory now
  uint64_t waits = 0;  // of calls, so far
};

// The links of one executor with all peers of one source address.
struct PeerReport {
  std::string source = {};  // "10.0.0.7" or "2001:db8:1:2::/64"
  uint32_t links = 0;
  LinkStats traffic = {};

  // By which the busiest are told from the others.
  uint64_t load() const {
    return traffic.frames_sent + traffic.frames_received + traffic.transfers;
  }
};

// What one executor tells of itself.
struct ExecutorReport {
  // The most peers that it names: the busiest.
  static constexpr size_t kMostPeers = 64;

  TimePoint time{};  // of the machine's clock; TimePoint{}: it has not answered yet
  // Since when a question waits for its answer; TimePoint{}: none does.
  TimePoint asked{};
  ExecutorStats loop = {};
  std::vector<DeviceStats> devices = {};
  std::vector<PoolReport> pools = {};
  std::vector<PeerReport> peers = {};
  // By the server's number (ServedServers).
  std::vector<std::pair<uint64_t, ServerStats>> servers = {};
};

struct DeviceReport {
  std::string name = {};
  std::string kind = {};  // as DeviceStats::kind
  bool is_rdma = false;
  bool in_reserve = false;
  absl::Status lost = {};  // why it is not in service; OK if it is, or in reserve
};

struct ServerReport {
  std::string address = {};
  bool shutting_down = false;
  DirectoryEntry entry = DirectoryEntry::kNone;
  ServerStats stats = {};  // as of the executors' last answers
};

struct RuntimeReport {
  TimePoint time{};  // of the machine's clock
  std::vector<DeviceReport> devices = {};
  std::vector<ServerReport> servers = {};
  std::vector<ExecutorReport> executors = {};  // by index; each as old as its own time says
  // What the runtime has had to do without since it started, in words.
  std::vector<std::string> degraded = {};
  uint64_t failed_tasks = 0;
};

class VERBENA_EXPORT RuntimeReporter {
 public:
  // `on_answer` is called each time that an executor has answered, on its thread. It must not
  // block, and is not called any more once the destructor has returned. An answer that is younger
  // than `fresh` does for a new question, too.
  RuntimeReporter(Runtime& runtime, absl::AnyInvocable<void()> on_answer,
                  Duration fresh = kFreshReport);
  // The same for a part of the runtime, which ends with it.
  RuntimeReporter(RuntimeCore& runtime, absl::AnyInvocable<void()> on_answer,
                  Duration fresh = kFreshReport);
  ~RuntimeReporter();
  RuntimeReporter(const RuntimeReporter&) = delete;
  RuntimeReporter& operator=(const RuntimeReporter&) = delete;

  // Asks each executor for a new ExecutorReport, unless its last one is fresh. One that has not
  // answered an earlier question yet is not asked again: its answer is still to come. Finding peers
  // takes a walk over all links: without `with_peers` they stay as they are.
  void Ask(bool with_peers = false);
  // Whether the answer of each executor is of `time` or later, or was fresh then.
  bool Answered(TimePoint time, bool with_peers = false) const;
  RuntimeReport Read() const;

 private:
  class Core;

  const std::shared_ptr<Core> core_;  // shared with questions that are on their way
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_REPORT_H_
