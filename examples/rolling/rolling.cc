// rolling: servers of a replicated key-value store are restarted, killed and frozen one after
// another under load; at last the clients' histories are checked.

#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/help.h"
#include "examples/common/signals.h"
#include "examples/kv/scratch_directory.h"
#include "examples/rolling/checker.h"
#include "examples/rolling/cluster.h"
#include "examples/rolling/load.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/runtime.h"

ABSL_FLAG(bool, short, false, "One shard, and two events.");
ABSL_FLAG(std::string, server, "", "The path of replica_server.");

namespace rolling {
namespace {

using examples::StopSignals;
using std::chrono::milliseconds;
using verbena::Runtime;
using verbena::TimePoint;

constexpr char kHelp[] =
    R"(usage: rolling [--short] [--server=PATH]

Starts six servers of a replicated key-value store, two shards of three replicas each, and 16 clients that
write and read without a pause. Restarts every second server and kills the others (kill -9), one after
another; takes a backup's disk away; then kills, restarts and freezes the primary of each shard. Prints a
table of what that took, and whether any acknowledged write was lost, any took effect twice, and the
clients' histories are linearizable.

  --short        one shard: a restart of a backup, and a kill of the primary
  --server=PATH  the server (default: replica_server of examples/replicated_kv)
  --help         this text

The environment's VERBENA_ETCD is etcd's host:port. tools/dev/etcd.sh starts one.
)";

constexpr milliseconds kLookEvery(5);
constexpr milliseconds kBetweenEvents(300);
constexpr std::chrono::seconds kFailoverPatience(60);

enum class Deed { kRestart, kKill, kLoseDisk, kFreeze };
enum class Role { kPrimary, kBackup };

struct Row {
  std::string what;
  std::string role;
  std::string failover;  // in ms
  std::string in_sync;   // in ms
};

std::string MillisecondsSince(TimePoint start, TimePoint end) {
  return fmt::format("{}", std::chrono::duration_cast<milliseconds>(end - start).count());
}

class Demo {
 public:
  Demo(Cluster& cluster, Runtime& runtime, Load& load)
      : cluster_(cluster), runtime_(runtime), load_(load) {}

  absl::Status Run(bool is_short) {
    VERBENA_RETURN_IF_ERROR(cluster_.StartAll());
    verbena::JoinHandle<void> runs = runtime_.Spawn(load_.Run());
    absl::Status done = is_short ? RunShort() : RunAll();
    if (done.ok()) done = cluster_.Pause(kBetweenEvents);
    runtime_.BlockOn(load_.Stop());
    runs.Join();
    if (!done.ok()) return done;
    VERBENA_RETURN_IF_ERROR(runtime_.BlockOn(load_.ReadAll()));
    return cluster_.StopAll();
  }

  void PrintTable() const {
    fmt::print("\n{:<16} {:<8} {:>12} {:>18}\n", "event", "was", "failover ms", "in sync again ms");
    for (const Row& row : rows_) {
      fmt::print("{:<16} {:<8} {:>12} {:>18}\n", row.what, row.role, row.failover, row.in_sync);
    }
    const LoadCounts& counts = load_.counts();
    fmt::print("\ncalls {}\nretries {}\n", counts.calls, counts.retries);
    for (const verbena::Outcome outcome :
         {verbena::Outcome::kNotExecuted, verbena::Outcome::kExecuted,
          verbena::Outcome::kMaybeExecuted}) {
      fmt::print("failed attempts, {} {}\n", verbena::OutcomeName(outcome),
                 counts.failures[static_cast<size_t>(outcome)]);
    }
    fmt::print("calls given up {}\n", counts.unanswered);
  }

  // True if all is well.
  bool PrintVerdict() const {
    Losses all;
    Verdict verdict = Verdict::kYes;
    for (const auto& [key, operations] : load_.history()) {
      const Losses losses = CountLosses(operations, load_.last_values().at(key));
      all.lost += losses.lost;
      all.duplicated += losses.duplicated;
      const Verdict of_key = CheckKey(operations);
      if (of_key == Verdict::kYes) continue;
      fmt::print("key {}: {} operations are {}\n", key, operations.size(),
                 of_key == Verdict::kNo ? "not linearizable" : "too many to decide on");
      if (verdict != Verdict::kNo) verdict = of_key;
    }
    fmt::print("keys checked {}\n", load_.history().size());
    fmt::print("acknowledged writes lost {}\nduplicated {}\nlinearizable {}\n", all.lost,
               all.duplicated,
               verdict == Verdict::kYes  ? "yes"
               : verdict == Verdict::kNo ? "no"
                                         : "undecided");
    return all.lost == 0 && all.duplicated == 0 && verdict == Verdict::kYes;
  }

 private:
  absl::Status RunShort() {
    VERBENA_RETURN_IF_ERROR(DoTo(Role::kBackup, 0, Deed::kRestart));
    return DoTo(Role::kPrimary, 0, Deed::kKill);
  }

  absl::Status RunAll() {
    for (size_t server = 0; server < cluster_.size(); ++server) {
      VERBENA_RETURN_IF_ERROR(cluster_.Pause(kBetweenEvents));
      VERBENA_RETURN_IF_ERROR(Do(server % 2 == 0 ? Deed::kRestart : Deed::kKill, server));
    }
    for (const Deed deed : {Deed::kLoseDisk, Deed::kKill, Deed::kRestart, Deed::kFreeze}) {
      const Role role = deed == Deed::kLoseDisk ? Role::kBackup : Role::kPrimary;
      for (size_t shard = 0; shard < cluster_.size() / Cluster::kReplicas; ++shard) {
        VERBENA_RETURN_IF_ERROR(DoTo(role, shard, deed));
      }
    }
    return absl::OkStatus();
  }

  // Pauses, then does `deed` to the server that has `role` in `shard`. The role is looked up after
  // the pause: on a busy machine the primary may lose its lease at any time.
  absl::Status DoTo(Role role, size_t shard, Deed deed) {
    VERBENA_RETURN_IF_ERROR(cluster_.Pause(kBetweenEvents));
    VERBENA_ASSIGN_OR_RETURN(const size_t primary, cluster_.PrimaryOf(shard));
    return Do(deed, role == Role::kPrimary ? primary : BackupOf(primary));
  }

  static size_t BackupOf(size_t primary) {
    const size_t first = Cluster::ShardOf(primary) * Cluster::kReplicas;
    return first + (primary - first + 1) % Cluster::kReplicas;
  }

  absl::Status Do(Deed deed, size_t server) {
    const size_t shard = Cluster::ShardOf(server);
    VERBENA_ASSIGN_OR_RETURN(const replicated_kv::ShardState before, cluster_.State(shard));
    const bool was_primary = before.primary == Cluster::NameOf(server);
    Row row{.what = {}, .role = was_primary ? "primary" : "backup", .failover = "-", .in_sync = {}};
    const TimePoint start = verbena::Clock::Real().Now();
    switch (deed) {
      case Deed::kRestart:
        row.what = "restart ";
        VERBENA_RETURN_IF_ERROR(cluster_.Stop(server));
        VERBENA_RETURN_IF_ERROR(cluster_.Start(server));
        break;
      case Deed::kKill:
        row.what = "kill -9 ";
        cluster_.Kill(server);
        VERBENA_RETURN_IF_ERROR(cluster_.Start(server));
        break;
      case Deed::kLoseDisk:
        row.what = "lose disk ";
        cluster_.Kill(server);
        VERBENA_RETURN_IF_ERROR(cluster_.LoseDisk(server));
        VERBENA_RETURN_IF_ERROR(cluster_.Start(server));
        break;
      case Deed::kFreeze:
        row.what = "freeze ";
        cluster_.Freeze(server);
        break;
    }
    row.what += Cluster::NameOf(server);
    if (was_primary) {
      VERBENA_ASSIGN_OR_RETURN(const TimePoint serves, AwaitFailover(shard, before.epoch));
      row.failover = MillisecondsSince(start, serves);
    }
    if (deed == Deed::kFreeze) cluster_.Thaw(server);
    VERBENA_RETURN_IF_ERROR(cluster_.AwaitInSync(shard));
    row.in_sync = MillisecondsSince(start, verbena::Clock::Real().Now());
    fmt::print(stderr, "{} ({}): failover {} ms, in sync again after {} ms\n", row.what, row.role,
               row.failover, row.in_sync);
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  // Until a write was acknowledged in a later epoch; when that was.
  absl::StatusOr<TimePoint> AwaitFailover(size_t shard, uint64_t epoch) {
    const TimePoint deadline = verbena::Clock::Real().Now() + kFailoverPatience;
    while (verbena::Clock::Real().Now() < deadline) {
      const Load::Serving serving = runtime_.BlockOn(load_.ServingOf(shard));
      if (serving.epoch > epoch) return serving.since;
      VERBENA_RETURN_IF_ERROR(cluster_.Pause(kLookEvery));
    }
    return absl::DeadlineExceededError(
        fmt::format("nobody took over shard {} within a minute", shard));
  }

  Cluster& cluster_;
  Runtime& runtime_;
  Load& load_;
  std::vector<Row> rows_;
};

// replica_server of the same build, wherever this program was started from.
std::string ServerPath() {
  std::string given = absl::GetFlag(FLAGS_server);
  if (!given.empty()) return given;
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, size > 0 ? static_cast<size_t>(size) : 0);
  return self.substr(0, self.rfind('/') + 1) + "../replicated_kv/replica_server";
}

absl::StatusOr<bool> RunDemo(const std::string& etcd_address) {
  // Before there are other threads, so that none of them takes the signal.
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::Block());
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<kv::ScratchDirectory> scratch,
                           kv::ScratchDirectory::Make("rolling"));
  const bool is_short = absl::GetFlag(FLAGS_short);
  const ClusterOptions options = {.server = ServerPath(),
                                  .etcd = etcd_address,
                                  .prefix = fmt::format("rolling-{}", getpid()),
                                  .directory = scratch->path(),
                                  .shards = is_short ? size_t{1} : size_t{2}};
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Start({.executors = 1}));
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<verbena::EtcdClient> etcd,
                           verbena::EtcdClient::Start({.endpoints = {etcd_address}}));
  std::vector<std::unique_ptr<verbena::Channel>> channels;
  channels.reserve(options.shards);
  for (size_t shard = 0; shard < options.shards; ++shard) {
    // The set that etcd has there is the primary alone.
    channels.push_back(std::make_unique<verbena::Channel>(
        *runtime,
        fmt::format("etcd://{}/{}/shard-{}/primary", etcd_address, options.prefix, shard)));
  }
  Load load(channels);
  Cluster cluster(options, *runtime, *etcd, *signals);
  Demo demo(cluster, *runtime, load);
  absl::Status ran = demo.Run(is_short);
  demo.PrintTable();
  if (!ran.ok()) return ran;
  return demo.PrintVerdict();
}

int Main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  const char* etcd = std::getenv("VERBENA_ETCD");
  if (words.size() > 1 || etcd == nullptr) {
    fmt::print(stderr, "rolling: {}; see rolling --help\n",
               words.size() > 1 ? "it takes options alone" : "VERBENA_ETCD names no etcd");
    return 1;
  }
  const absl::StatusOr<bool> is_well = RunDemo(etcd);
  if (!is_well.ok()) {
    fmt::print(stderr, "rolling: {}\n", std::string(is_well.status().message()));
    return 1;
  }
  return *is_well ? 0 : 1;
}

}  // namespace
}  // namespace rolling

int main(int argc, char** argv) { return rolling::Main(argc, argv); }
