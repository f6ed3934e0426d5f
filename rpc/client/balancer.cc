#include "verbena/rpc/client/balancer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/client/subchannels.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {

namespace {

// Wakes all who wait for `event`.
void Wake(Event& event) {
  event.Set();
  event.Reset();
}

SubchannelsSetup Complete(SubchannelsSetup setup, const Shard& shard) {
  const auto& id = shard.runtime_id().bytes;
  setup.client = StableHash(std::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
  setup.max_links = shard.max_links();
  return setup;
}

}  // namespace

Balancer::Balancer(Shard& shard, Connections& connections, BalancerSetup setup,
                   std::shared_ptr<ServerFeed> feed)
    : picker_(setup.servers.policy, Random::Real().Next()),
      shard_(shard),
      ejection_(setup.ejection),
      feed_(std::move(feed)),
      subscriber_(std::make_shared<FeedSubscriber>(
          FeedSubscriber{.listener = this, .gate = connections.gate()})),
      subchannels_(static_cast<SubchannelOwner&>(*this), connections,
                   Complete(std::move(setup.servers), shard)) {
  CancelScope& running = shard_.tasks().cancel_scope();
  if (!running.requested()) running.Add(*this);
  feed_->Subscribe(subscriber_, shard_);
  if (ejection_.interval > Duration::zero()) {
    judge_ = Judge();
    judge_.StartLater(shard_.executor(), nullptr, this);
  }
}

Balancer::~Balancer() {
  // Nobody who waited may be told: whoever was cut off may be after its channel.
  ending_ = true;
  judge_ = {};
  feed_->Unsubscribe(subscriber_);
  subchannels_.CloseAll();
}

void Balancer::OnSet(const std::shared_ptr<const ServerSet>& set, const absl::Status& error) {
  resolver_error_ = error;
  if (set != nullptr && set != set_) {
    set_ = set;
    subchannels_.Set(*set);
    Activate(nullptr);
  }
  Unsettle();
  TellWaiters();
}

void Balancer::Activate(const Subchannel* caller) {
  if (!shard_.closing()) subchannels_.Open(caller);
}

Connection* Balancer::Pick(std::optional<uint64_t> route_key) {
  if (!settled_) [[unlikely]]
    return PickAnew(route_key);
  return places_[picker_.Pick(route_key)];
}

Connection* Balancer::PickAnew(std::optional<uint64_t> route_key) {
  return !deserted_ && Rebuild() ? Pick(route_key) : nullptr;
}

// A link that closes is not usable any more, some time before it is down.
Connection* Balancer::PickUsable(std::optional<uint64_t> route_key) {
  Connection* picked = Pick(route_key);
  if (picked != nullptr && picked->usable_session() != nullptr) return picked;
  if (deserted_) return nullptr;
  const Subchannel* ready = subchannels_.AnyReady();
  return ready == nullptr ? nullptr : ready->connection();
}

Connection* Balancer::PickOther(std::optional<uint64_t> route_key, const TriedServers& tried) {
  Connection* const picked = Pick(route_key);
  if (picked == nullptr || !tried.Has(*picked)) return picked;
  // The picker's members alone, so that zones and ejections hold. The first that is looked at is
  // random: otherwise one server would get the calls of each that fails.
  const size_t count = places_.size();
  const size_t begin = Random::Real().Below(count);
  for (size_t i = 0; i < count; ++i) {
    Connection* const other = places_[(begin + i) % count];
    if (other != nullptr && other->usable_session() != nullptr && !tried.Has(*other)) return other;
  }
  return picked;
}

bool Balancer::Rebuild() {
  std::vector<Subchannel*> callable = subchannels_.Callable();
  const size_t all = callable.size();
  std::vector<Subchannel*> admitted;
  for (Subchannel* each : callable) {
    if (!each->outlier().ejected) admitted.push_back(each);
  }
  // No more than half are left out, though servers may have been lost since they were judged.
  if (admitted.size() * 2 >= all) callable = std::move(admitted);
  std::vector<Picker::Member> members;
  std::fill(places_.begin(), places_.end(), nullptr);
  for (const Subchannel* each : callable) {
    Connection* const connection = each->connection();
    members.push_back({.id = each->id(),
                       .hash = each->hash(),
                       .weight = each->server().weight,
                       .in_flight = &connection->usable_session()->in_flight()});
    if (places_.size() <= each->id()) places_.resize(each->id() + 1);
    places_[each->id()] = connection;
  }
  settled_ = !members.empty();
  deserted_ = members.empty();
  picker_.Set(members);
  return settled_;
}

Task<void> Balancer::Judge() {
  while (!shard_.closing()) {
    (void)co_await Sleep(ejection_.interval);
    if (shard_.closing()) break;
    std::vector<JudgedServer> servers;
    for (Subchannel* each : subchannels_.Callable()) {
      servers.push_back({&each->outlier(), &each->connection()->KeepTally()});
    }
    if (!JudgeServers(ejection_, shard_.executor().now(), servers)) continue;
    Unsettle();
    TellWaiters();
  }
}

void Balancer::Unsettle() {
  settled_ = false;
  deserted_ = false;
  obstacle_->reset();
}

void Balancer::OnReadiness() {
  Unsettle();
  if (!ending_) TellWaiters();
}

void Balancer::OnReady(Subchannel& subchannel) {
  if (ejection_.interval > Duration::zero()) (void)subchannel.connection()->KeepTally();
  if (subchannels_.depends_on_failures()) Activate(&subchannel);
  TellWaiters();
}

void Balancer::OnFailed(Subchannel& subchannel) {
  if (subchannels_.depends_on_failures()) Activate(&subchannel);
  feed_->Refresh();
  obstacle_->reset();
  TellWatchers();
  // In an outage there are many failures and many calls that wait: those that go on waiting are not
  // woken.
  const absl::Status& obstacle = Obstacle();
  if (obstacle.ok()) return;
  Wake(may_pick_);
  if (!Connection::MayPass(obstacle)) Wake(may_pick_late_);
}

void Balancer::OnLate(Subchannel& subchannel) {
  if (subchannels_.depends_on_failures()) Activate(&subchannel);
}

void Balancer::TellWatchers() {
  ++revision_;
  Wake(changed_);
}

void Balancer::TellWaiters() {
  TellWatchers();
  Wake(may_pick_);
  Wake(may_pick_late_);
}

Task<absl::StatusOr<uint64_t>> Balancer::AwaitChange(uint64_t seen) {
  while (revision_ == seen) {
    if (shard_.closing()) co_return absl::UnavailableError("the runtime is being destroyed");
    // A channel may be gone when a wait that was cut off goes on, and its balancer with it.
    VERBENA_CO_RETURN_IF_ERROR(co_await changed_.Wait());
  }
  co_return revision_;
}

Task<absl::StatusOr<ConnectionUse>> Balancer::AwaitPick(std::optional<uint64_t> route_key,
                                                        Deadline deadline, bool wait_for_ready) {
  const std::shared_ptr<const std::optional<absl::Status>> latest = obstacle_;
  for (;;) {
    if (Connection* picked = PickUsable(route_key)) co_return ConnectionUse(*picked);
    if (shard_.closing()) co_return absl::UnavailableError("the runtime is being destroyed");
    const absl::Status obstacle = Obstacle();
    const bool patient =
        wait_for_ready || (deadline.is_set() && ReadRetryAfter(obstacle).has_value());
    const bool waits = patient && Connection::MayPass(obstacle);
    if (!obstacle.ok() && !waits) co_return obstacle;
    Event& event = wait_for_ready ? may_pick_late_ : may_pick_;
    const absl::Status changed = co_await WithDeadline(WaitFor(event), deadline.when());
    // A channel may be gone when a wait that was cut off goes on, and its balancer with it.
    if (absl::IsDeadlineExceeded(changed)) {
      const absl::Status last = latest->value_or(obstacle);
      co_return absl::DeadlineExceededError(
          fmt::format("no server was ready before the deadline{}{}", last.ok() ? "" : ": ",
                      std::string(last.message())));
    }
    VERBENA_CO_RETURN_IF_ERROR(changed);
  }
}

const absl::Status& Balancer::Obstacle() {
  if (!obstacle_->has_value()) {
    *obstacle_ = set_ == nullptr ? resolver_error_ : subchannels_.Obstacle();
  }
  return **obstacle_;
}

}  // namespace verbena::internal
