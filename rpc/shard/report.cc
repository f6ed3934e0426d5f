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

void AddPool(ExecutorReport& report, const std::string& device, const char* name,
             const BufferPool& pool) {
  const BufferPoolStats stats = pool.stats();
  report.pools.push_back({.device = device,
                          .pool = name,
                          .budget = stats.budget_bytes,
                          .registered = stats.arena_bytes,
                          .in_use = stats.bytes_in_use,
                          .waiting = stats.waiting});
}

uint64_t Load(const PeerReport& peer) {
  return peer.traffic.frames_sent + peer.traffic.frames_received + peer.traffic.transfers;
}

// On the shard's executor.
ExecutorReport ReportOf(const Shard& shard) {
  ExecutorReport report{.loop = shard.executor().stats(), .devices = shard.stats()};
  absl::flat_hash_map<std::string, PeerReport> peers;
  for (const std::unique_ptr<ShardDevice>& device : shard.devices()) {
    const Endpoint* endpoint = device->endpoint();
    if (endpoint == nullptr) continue;
    AddPool(report, device->name(), "send", endpoint->memory().send());
    AddPool(report, device->name(), "receive", endpoint->memory().receive());
    AddPool(report, device->name(), "landing", endpoint->memory().landing());
    endpoint->ForEachLink([&peers](const Link& link) {
      PeerReport& peer = peers[SourceOf(link.peer())];
      ++peer.links;
      peer.traffic += link.stats();
    });
  }
  for (auto& [source, peer] : peers) {
    peer.source = source;
    report.peers.push_back(std::move(peer));
  }
  std::ranges::sort(report.peers, std::greater(), Load);
  if (report.peers.size() > ExecutorReport::kMostPeers) {
    report.peers.resize(ExecutorReport::kMostPeers);
  }
  return report;
}

}  // namespace

class RuntimeReporter::Core {
 public:
  Core(RuntimeCore& runtime, absl::AnyInvocable<void()> on_answer, Duration fresh)
      : runtime_(runtime),
        fresh_(fresh),
        parts_(static_cast<size_t>(runtime.executors())),
        on_answer_(std::move(on_answer)) {
    runtime_.AddReporter();
  }

  void Ask(const std::shared_ptr<Core>& self) {
    const TimePoint now = Clock::Real().Now();
    for (size_t i = 0; i < parts_.size(); ++i) {
      const TimePoint last = parts_[i].time;
      if (last != TimePoint{} && now - last < fresh_) continue;
      if (parts_[i].asked.exchange(true)) continue;
      runtime_.shard(i).executor().PostFunction([self, i] { self->Answer(i); });
    }
  }

  bool Answered(TimePoint time) const {
    return std::ranges::all_of(parts_, [this, time](const Part& part) {
      const TimePoint last = part.time;
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
    for (const Part& part : parts_) report.executors.push_back(part.last.Get());
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
    runtime_.RemoveReporter();
  }

 private:
  // One executor's.
  struct Part {
    std::atomic<bool> asked = false;
    Published<ExecutorReport> last;
    std::atomic<TimePoint> time{TimePoint{}};  // of `last`
  };

  // On the executor.
  void Answer(size_t index) {
    // First: whoever finds the question open must get an answer that is made afterwards.
    parts_[index].asked = false;
    const Shard& shard = runtime_.shard(index);
    if (shard.closing()) return;
    ExecutorReport report = ReportOf(shard);
    runtime_.served().ForEach([&](uint64_t number, const ServerView& server) {
      report.servers.emplace_back(number, server.StatsOn(index));
    });
    report.time = Clock::Real().Now();
    const TimePoint time = report.time;
    parts_[index].last.Set(std::move(report));
    parts_[index].time = time;
    const std::lock_guard lock(mutex_);
    if (on_answer_ != nullptr) on_answer_();
  }

  RuntimeCore& runtime_;
  const Duration fresh_;
  std::vector<Part> parts_;
  std::mutex mutex_;
  absl::AnyInvocable<void()> on_answer_;  // under mutex_; null once the reporter is gone
};

RuntimeReporter::RuntimeReporter(Runtime& runtime, absl::AnyInvocable<void()> on_answer,
                                 Duration fresh)
    : core_(std::make_shared<Core>(CoreOf(runtime), std::move(on_answer), fresh)) {}

RuntimeReporter::~RuntimeReporter() { core_->End(); }

void RuntimeReporter::Ask() { core_->Ask(core_); }
bool RuntimeReporter::Answered(TimePoint time) const { return core_->Answered(time); }
RuntimeReport RuntimeReporter::Read() const { return core_->Read(); }

}  // namespace verbena::internal
