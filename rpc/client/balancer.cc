#include "verbena/rpc/client/balancer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "fmt/format.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/internal/shard.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/random.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {

Balancer::Balancer(Shard& shard, Connections& connections, BalancerSetup options,
                   std::shared_ptr<ServerFeed> feed)
    : shard_(shard),
      connections_(connections),
      options_(std::move(options)),
      feed_(std::move(feed)),
      subscriber_(std::make_shared<FeedSubscriber>(
          FeedSubscriber{.balancer = this, .gate = connections.gate()})),
      picker_(options_.policy, Random::Real().Next()) {
  CancelScope& running = shard_.tasks().cancel_scope();
  if (!running.requested()) running.Add(*this);
  feed_->Subscribe(subscriber_, shard_);
}

Balancer::~Balancer() {
  feed_->Unsubscribe(subscriber_);
  for (const std::unique_ptr<Subchannel>& each : subchannels_) {
    each->Close(Connections::End::kClose);
  }
}

void Balancer::OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status& error) {
  resolver_error_ = error;
  if (set != nullptr && set != set_) {
    set_ = set;
    std::vector<std::unique_ptr<Subchannel>> before = std::exchange(subchannels_, {});
    std::vector<bool> taken;
    absl::flat_hash_map<std::string, std::unique_ptr<Subchannel>*> by_name;
    for (std::unique_ptr<Subchannel>& each : before) {
      if (taken.size() <= each->id()) taken.resize(each->id() + 1);
      taken[each->id()] = true;
      by_name.emplace(each->server().name, &each);
    }
    const auto free_id = [&taken] {
      const size_t id = std::find(taken.begin(), taken.end(), false) - taken.begin();
      if (id == taken.size()) taken.push_back(false);
      taken[id] = true;
      return static_cast<uint32_t>(id);
    };
    for (const ResolvedServer& server : *set) {
      const auto same = by_name.find(server.name);
      if (same == by_name.end() || !(*same->second)->Is(server)) {
        subchannels_.push_back(std::make_unique<Subchannel>(static_cast<SubchannelOwner&>(*this),
                                                            connections_, server, free_id()));
      } else {
        (*same->second)->set_server(server);
        subchannels_.push_back(std::move(*same->second));
      }
    }
    for (const std::unique_ptr<Subchannel>& left : before) {
      if (left != nullptr) left->Close(Connections::End::kDrain);
    }
    stale_ = true;
    Activate(nullptr);
  }
  TellWaiters();
}

void Balancer::Activate(const Subchannel* caller) {
  if (shard_.closing()) return;
  bool wanted = true;
  for (const std::unique_ptr<Subchannel>& each : subchannels_) {
    if (wanted) {
      each->Open(options_.wish);
    } else if (each.get() != caller) {
      each->Close(Connections::End::kDrain);
    }
    // The first server that has not failed makes those behind it superfluous.
    if (options_.policy == Balancing::kPickFirst && !each->failed()) wanted = false;
  }
}

void Balancer::OnReady(Subchannel& subchannel) {
  if (options_.policy == Balancing::kPickFirst) Activate(&subchannel);
  TellWaiters();
}

void Balancer::OnFailed(Subchannel& subchannel) {
  if (options_.policy == Balancing::kPickFirst) Activate(&subchannel);
  feed_->Refresh();
  TellWaiters();
}

void Balancer::TellWaiters() {
  changed_.Set();
  changed_.Reset();
}

void Balancer::Rebuild() {
  stale_ = false;
  std::vector<Picker::Member> members;
  bool in_zone = false;
  by_id_.assign(by_id_.size(), nullptr);
  for (const std::unique_ptr<Subchannel>& each : subchannels_) {
    if (!each->ready()) continue;
    const bool near = !options_.zone.empty() && each->server().zone == options_.zone &&
                      !VERBENA_MUTANT(kZoneIgnored);
    if (near && !in_zone) {
      in_zone = true;
      members.clear();
    }
    if (in_zone && !near) continue;
    members.push_back({.id = each->id(), .hash = each->hash(), .weight = each->server().weight});
    if (by_id_.size() <= each->id()) by_id_.resize(each->id() + 1);
    by_id_[each->id()] = each->connection();
  }
  picker_.Set(std::move(members));
}

// A link that closes is not usable any more, some time before it is down.
Connection* Balancer::AnyUsable() const {
  for (const std::unique_ptr<Subchannel>& each : subchannels_) {
    if (each->ready()) return each->connection();
  }
  return nullptr;
}

Task<absl::StatusOr<ConnectionUse>> Balancer::AwaitPick(std::optional<uint64_t> route_key,
                                                        Deadline deadline, bool wait_for_ready) {
  for (;;) {
    if (Connection* picked = Pick(route_key)) co_return ConnectionUse(*picked);
    if (shard_.closing()) co_return absl::UnavailableError("the runtime is being destroyed");
    const absl::Status obstacle = Obstacle();
    const bool waits = wait_for_ready && Connection::MayPass(obstacle);
    if (!obstacle.ok() && !waits) co_return obstacle;
    const absl::Status changed = co_await WithDeadline(Changed(), deadline.when());
    // A channel may be gone when a wait that was cut off goes on, and its balancer with it.
    if (absl::IsDeadlineExceeded(changed)) {
      co_return absl::DeadlineExceededError(
          fmt::format("no server was ready before the deadline{}{}", obstacle.ok() ? "" : ": ",
                      std::string(obstacle.message())));
    }
    VERBENA_CO_RETURN_IF_ERROR(changed);
  }
}

absl::Status Balancer::Obstacle() const {
  if (set_ == nullptr) return resolver_error_;
  if (subchannels_.empty()) {
    return absl::UnavailableError(
        fmt::format("the set of {} is empty: add a server to it, or let calls wait for one "
                    "(CallOptions::wait_for_ready)",
                    options_.target));
  }
  constexpr size_t kNamed = 3;
  size_t failed = 0;
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const std::unique_ptr<Subchannel>& each : subchannels_) {
    if (!each->failed()) return absl::OkStatus();
    const absl::Status& error = each->error();
    code = failed == 0 || code == error.code() ? error.code() : absl::StatusCode::kUnavailable;
    if (++failed > kNamed) continue;
    text += fmt::format("{}{}: {}", failed == 1 ? "" : "; ", each->server().name,
                        std::string(error.message()));
  }
  if (failed > kNamed) text += fmt::format("; and {} more", failed - kNamed);
  return absl::Status(code, fmt::format("none of the {} servers of {} can be reached: {}", failed,
                                        options_.target, text));
}

std::vector<ChannelServer> Balancer::Servers() const {
  std::vector<ChannelServer> servers;
  servers.reserve(subchannels_.size());
  for (const std::unique_ptr<Subchannel>& each : subchannels_) servers.push_back(each->Describe());
  return servers;
}

}  // namespace verbena::internal
