#include "verbena/rpc/shard/report.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/shard/shard_device.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/payload_memory.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {
namespace {

bool IsRdma(LinkKind kind) { return kind != LinkKind::kSoft && kind != LinkKind::kTcp; }

void AddPool(std::vector<PoolReport>& pools, const std::string& device, const char* name,
             const BufferPool& pool) {
  const BufferPoolStats stats = pool.stats();
  pools.push_back({.device = device,
                   .pool = name,
                   .budget = stats.budget_bytes,
                   .registered = stats.arena_bytes,
                   .growing = stats.growing_bytes,
                   .in_use = stats.bytes_in_use,
                   .waiting = stats.waiting,
                   .waits = stats.waits});
}

// Returns the pools of all devices in service. On the shard's executor.
std::vector<PoolReport> PoolsOf(const Shard& shard) {
  std::vector<PoolReport> pools;
  for (const std::unique_ptr<ShardDevice>& device : shard.devices()) {
    const Endpoint* endpoint = device->endpoint();
    if (endpoint == nullptr) continue;
    AddPool(pools, device->name(), "send", endpoint->memory().send());
    AddPool(pools, device->name(), "receive", endpoint->memory().receive());
    AddPool(pools, device->name(), "landing", endpoint->memory().landing());
  }
  return pools;
}

// Returns the busiest peers of the shard's links. On its executor.
std::vector<PeerReport> PeersOf(const Shard& shard) {
  std::vector<PeerReport> busiest;
  absl::flat_hash_map<std::string, PeerReport> peers;
  for (const std::unique_ptr<ShardDevice>& device : shard.devices()) {
    const Endpoint* endpoint = device->endpoint();
    if (endpoint == nullptr) continue;
    endpoint->ForEachLink([&peers](const Link& link) {
      PeerReport& peer = peers[SourceOf(link.peer())];
      ++peer.links;
      peer.traffic += link.stats();
    });
  }
  for (auto& [source, peer] : peers) {
    peer.source = source;
    busiest.push_back(std::move(peer));
  }
  std::ranges::sort(busiest, std::greater(), &PeerReport::load);
  if (busiest.size() > ExecutorReport::kMostPeers) busiest.resize(ExecutorReport::kMostPeers);
  return busiest;
}

}  // namespace

class RuntimeReporter::Core {
 public:
  Core(RuntimeCore& runtime, absl::AnyInvocable<void()> on_answer, Duration fresh)
      : runtime_(runtime),
        fresh_(fresh),
        parts_(static_cast<size_t>(runtime.executors())),
        on_answer_(std::move(on_answer)) {}

  void Ask(const std::shared_ptr<Core>& self, bool with_peers) {
    const TimePoint now = Clock::Real().Now();
    for (size_t i = 0; i < parts_.size(); ++i) {
      const TimePoint last = parts_[i].Time(with_peers);
      if (last != TimePoint{} && now - last < fresh_) continue;
      if (with_peers) parts_[i].asked_peers = true;
      TimePoint none{};
      if (!parts_[i].asked.compare_exchange_strong(none, now)) continue;
      runtime_.shard(i).executor().PostFunction([self, i] { self->Answer(i); });
    }
  }

  bool Answered(TimePoint time, bool with_peers) const {
    return std::ranges::all_of(parts_, [this, time, with_peers](const Part& part) {
      const TimePoint last = part.Time(with_peers);
      return last != TimePoint{} && time - last <= fresh_;
    });
  }

  RuntimeReport Read() const {
    RuntimeReport report{.time = Clock::Real().Now(),
                         .degraded = runtime_.degraded(),
                         .failed_tasks = runtime_.failed_tasks()};
    for (const std::unique_ptr<DeviceKeeper>& keeper : runtime_.keepers()) {
      report.devices.push_back({.name = keeper->name(),
                                .kind = LinkKindName(keeper->kind()),
                                .is_rdma = IsRdma(keeper->kind()),
                                .in_reserve = keeper->in_reserve(),
                                .lost = keeper->Presence()});
    }
    for (const Part& part : parts_) {
      report.executors.push_back(part.last.Get());
      report.executors.back().peers = part.peers.Get();
      report.executors.back().asked = part.asked;
    }
    runtime_.served().ForEach([&report](uint64_t number, const ServerView& server) {
      std::vector<ServerStats> parts;
      for (const ExecutorReport& executor : report.executors) {
        for (const auto& [its, stats] : executor.servers) {
          if (its == number) parts.push_back(stats);
        }
      }
      report.servers.push_back({.address = server.address(),
                                .shutting_down = server.shutting_down(),
                                .entry = server.entry(),
                                .stats = server.Sum(parts)});
    });
    return report;
  }

  // Waits for a call of on_answer that is under way.
  void End() {
    {
      std::lock_guard lock(mutex_);
      on_answer_ = nullptr;
    }
    if (is_guest_) runtime_.RemoveReporter();
  }
  // The runtime outlives the reporter only if its user sees to it.
  void BeGuest() {
    is_guest_ = true;
    runtime_.AddReporter();
  }

 private:
  // One executor's.
  struct Part {
    TimePoint Time(bool with_peers) const { return with_peers ? peers_time : time; }

    std::atomic<TimePoint> asked{TimePoint{}};  // the open question; TimePoint{}: none
    std::atomic<bool> asked_peers = false;
    Published<ExecutorReport> last;            // without peers
    std::atomic<TimePoint> time{TimePoint{}};  // of `last`
    Published<std::vector<PeerReport>> peers;
    std::atomic<TimePoint> peers_time{TimePoint{}};
  };

  // On the executor.
  void Answer(size_t index) {
    // First: whoever finds the question open must get an answer that is made afterwards.
    Part& part = parts_[index];
    part.asked = TimePoint{};
    const bool with_peers = part.asked_peers.exchange(false);
    const Shard& shard = runtime_.shard(index);
    if (shard.closing()) return;
    ExecutorReport report{
        .loop = shard.executor().stats(), .devices = shard.stats(), .pools = PoolsOf(shard)};
    if (with_peers) part.peers.Set(PeersOf(shard));
    runtime_.served().ForEach([&](uint64_t number, const ServerView& server) {
      report.servers.emplace_back(number, server.StatsOn(index));
    });
    report.time = Clock::Real().Now();
    const TimePoint time = report.time;
    part.last.Set(std::move(report));
    part.time = time;
    if (with_peers) part.peers_time = time;
    const std::lock_guard lock(mutex_);
    if (on_answer_ != nullptr) on_answer_();
  }

  RuntimeCore& runtime_;
  const Duration fresh_;
  bool is_guest_ = false;
  std::vector<Part> parts_;
  std::mutex mutex_;
  absl::AnyInvocable<void()> on_answer_;  // under mutex_; null once the reporter is gone
};

RuntimeReporter::RuntimeReporter(Runtime& runtime, absl::AnyInvocable<void()> on_answer,
                                 Duration fresh)
    : RuntimeReporter(CoreOf(runtime), std::move(on_answer), fresh) {
  core_->BeGuest();
}

RuntimeReporter::RuntimeReporter(RuntimeCore& runtime, absl::AnyInvocable<void()> on_answer,
                                 Duration fresh)
    : core_(std::make_shared<Core>(runtime, std::move(on_answer), fresh)) {}

RuntimeReporter::~RuntimeReporter() { core_->End(); }

void RuntimeReporter::Ask(bool with_peers) { core_->Ask(core_, with_peers); }
bool RuntimeReporter::Answered(TimePoint time, bool with_peers) const {
  return core_->Answered(time, with_peers);
}
RuntimeReport RuntimeReporter::Read() const { return core_->Read(); }

}  // namespace verbena::internal
