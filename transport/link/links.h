// Links of one endpoint: LinkTable has them by slot and by queue pair, LostReceives finds receives
// that a device took with a queue pair, and LivenessRound checks all links again and again.
//
// Parts of an Endpoint, on its executor's thread. LinkLimits::max_links bounds them.

#ifndef VERBENA_TRANSPORT_LINK_LINKS_H_
#define VERBENA_TRANSPORT_LINK_LINKS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/receives.h"

namespace verbena::internal {

// A link, and what its endpoint knows of it.
struct LinkSlot {
  std::unique_ptr<Link> link;
  uint32_t generation = 0;
  PortAddress address = {};  // that the link was begun with
  // Its queue pair was, or is being, taken to RTR. One in INIT takes no receives.
  bool may_receive = false;
  // Whether its queue pair, as far as is known, may have a missing receive; and for how many
  // checks.
  bool owes_proof = false;
  uint32_t proof_checks = 0;
};

// LinkTable: the links of one endpoint, by slot and by queue pair.
//
// A slot is named with its generation (LinkKey), so that whatever comes late for a link finds
// nothing in a slot that has become another's. Slots are reused late, first in, first out. As soon
// as the device has destroyed a queue pair, another link's may get its number: Forget() drops the
// number from the index before the slot is freed. Bounded by LinkLimits::max_links. One thread.
//
//   std::optional<uint32_t> index = links.Take();
//   Link& link = links.Add(*index, std::move(made));      // or links.GiveBack(*index)
//   ...
//   links.Forget(link);                                   // its queue pair is gone
//   links.Free(link.key().slot);
class LinkTable {
 public:
  explicit LinkTable(uint32_t slots) : slots_(slots) {
    for (uint32_t index = 0; index < slots; ++index) free_.push_back(index);
  }

  // Whether no slot is taken.
  bool unused() const { return free_.size() == slots_.size(); }
  // Links that were added and not freed.
  uint32_t count() const { return count_; }

  // Takes a slot for a link that is being made; nothing if all are taken.
  std::optional<uint32_t> Take() {
    if (free_.empty()) return std::nullopt;
    const uint32_t index = free_.front();
    free_.pop_front();
    return index;
  }
  // No link was made in the slot.
  void GiveBack(uint32_t index) { free_.push_back(index); }

  LinkKey KeyOf(uint32_t index) const {
    return {index, slots_[index].generation & WrId::kGenerationMask};
  }
  // `link` was made in the taken slot `index`, with KeyOf(index).
  Link& Add(uint32_t index, std::unique_ptr<Link> link) {
    ++count_;
    slots_[index].link = std::move(link);
    Link* added = slots_[index].link.get();
    by_qpn_[added->qpn()] = added;
    last_found_ = nullptr;
    return *added;
  }
  // The queue pair of `link` is gone, and its number may be another's already.
  void Forget(const Link& link) {
    auto found = by_qpn_.find(link.qpn());
    if (found != by_qpn_.end() && found->second == &link) by_qpn_.erase(found);
    if (last_found_ == &link) last_found_ = nullptr;
  }
  // Destroys the link in the slot; the next link there has another key. No link comes there if it
  // is not `reusable`. Call after Forget().
  void Free(uint32_t index, bool reusable = true) {
    --count_;
    slots_[index].link.reset();
    ++slots_[index].generation;
    if (reusable) free_.push_back(index);
  }

  // nullptr if the key's link is gone. Its slot may then be another's.
  Link* Find(LinkKey key) const {
    if (key.slot >= slots_.size()) return nullptr;
    const LinkSlot& found = slots_[key.slot];
    const bool current = (found.generation & WrId::kGenerationMask) == key.generation;
    if (!current) return nullptr;
    return found.link.get();
  }
  // The link of that queue pair, or nullptr. Remembers the last one: usually it is the next, too.
  Link* FindQpn(uint32_t qpn) {
    if (last_found_ == nullptr || last_found_->qpn() != qpn) {
      auto found = by_qpn_.find(qpn);
      last_found_ = found == by_qpn_.end() ? nullptr : found->second;
    }
    return last_found_;
  }
  bool HasQpn(uint32_t qpn) const { return by_qpn_.contains(qpn); }

  LinkSlot& slot(const LinkKey& key) { return slots_[key.slot]; }
  const LinkSlot& slot(const LinkKey& key) const { return slots_[key.slot]; }
  // All slots, of which some have no link.
  std::vector<LinkSlot>& slots() { return slots_; }
  const std::vector<LinkSlot>& slots() const { return slots_; }

 private:
  std::vector<LinkSlot> slots_;
  std::deque<uint32_t> free_;
  uint32_t count_ = 0;
  absl::flat_hash_map<uint32_t, Link*> by_qpn_;
  Link* last_found_ = nullptr;
};

// LostReceives: finds receives that a device took with a queue pair and will never tell of.
//
// Some devices drop completions together with the queue pair that they belong to (mlx5, those that
// were not polled). Each such receive is one fewer for all links of the endpoint. When a link is
// freed that may have taken some along, the receives posted before are in doubt. They are found by
// order: a shared receive queue is used from its front, so when all older receives should be taken,
// each queue pair that still exists proves that it has none of the missing ones by receiving a
// newer one. Quiet peers are made to send by a PING. Then the missing ones are free again, or
// written off if a queue pair that the device did not destroy may have them.
//
// Part of an Endpoint, on its executor's thread.
class LostReceives {
 public:
  // Receives beyond LinkLimits::srq_depth that `device` has room for.
  static uint32_t Spares(const LinkLimits& limits, const Device& device);

  // `device` and `links` outlive it.
  LostReceives(Device& device, LinkTable& links) : device_(device), links_(links) {}

  // Looks at `ring` from now on. `ring` must live until another one is followed, or this object is
  // used no more.
  void Follow(ReceiveRing& ring);

  // The link in `slot` is about to be freed. Its queue pair `qp` is destroyed, if the device could
  // do that, and its completion queue is empty. `told_of_last`: LAST_WQE had come before that queue
  // was emptied, so that no receive was left behind.
  void OnLinkFreed(LinkSlot& slot, bool told_of_last, QpIdentity qp);
  // The queue pair `qpn`, which may be gone by now, has received something while the ring is
  // in_doubt().
  void OnReceive(uint32_t qpn);
  // At each liveness check. Asks again for a proof that is owed, or closes the link.
  void Check(LinkSlot& slot);
  // Call after each of the three above. Returns how many receives are free again.
  uint32_t Settle(TimePoint now);

  // Whether too many may be lost, so that only new queues help. `in_service`: new ones could be
  // made. True at most once in a while.
  bool WantsNewQueues(TimePoint now, bool in_service);

 private:
  void AskForProofs();
  bool asked() const {
    return ring_->doubt().older_are_taken() && asked_for_doubt_ == ring_->doubt().number();
  }
  void ForgetQuiesced();
  uint32_t EndDoubt(TimePoint now);

  Device& device_;
  LinkTable& links_;
  ReceiveRing* ring_ = nullptr;
  uint32_t asked_for_doubt_ = 0;  // the doubt of ring_ that links owe a proof for
  uint32_t proofs_owed_ = 0;      // by so many queue pairs
  // Queue pairs that the device could not destroy, or not yet: no proof comes from them. Few: each
  // is lost to the device.
  std::vector<QpIdentity> unquiesced_;
  std::optional<TimePoint> replaced_;  // when new queues were last wanted
  ThrottledLog log_{LogComponent::kLink, {.lines = 2, .interval = std::chrono::seconds(10)}};
};

// Steps of all teardowns of an endpoint in one turn. A step takes about ten microseconds, and
// delays the completions of other links by that. (start)
inline constexpr size_t kTeardownStepsPerTurn = 8;

// LivenessRound: checks the links of one endpoint, twice in each LinkLimits::ping_interval.
//
// A round looks at the links that wait for something. Then it goes through all slots, closes links
// that were idle for too long, and looks for lost receives. It is spread over turns of the
// executor: a host that vanishes takes a thousand links along, and closing them must not delay
// other links. The timer runs while the endpoint has links. Part of an Endpoint, on its executor's
// thread.
class LivenessRound final : private Timer {
 public:
  // All outlive it. `teardowns` has the teardown of each link that a check closes.
  LivenessRound(Executor& executor, DeviceContext& context, LinkTable& links,
                LostReceives& lost_receives, const TaskScope& teardowns, Duration interval)
      : executor_(executor),
        context_(context),
        links_(links),
        lost_receives_(lost_receives),
        teardowns_(teardowns),
        interval_(interval) {}

  // The next round looks at `link`.
  void Watch(WatchedLink& link) { watched_.PushBack(link); }
  // Does nothing if the timer runs.
  void Start();
  void Stop();

 private:
  void OnTimer() override;
  // Returns false if links are left for the next turn.
  bool CheckSome();

  Executor& executor_;
  DeviceContext& context_;
  LinkTable& links_;
  LostReceives& lost_receives_;
  const TaskScope& teardowns_;
  const Duration interval_;
  IntrusiveList<WatchedLink> watched_;
  // The round under way has yet to look at these, and at the slots from here on.
  IntrusiveList<WatchedLink> unchecked_;
  size_t unchecked_slot_ = 0;
  bool checking_ = false;
  bool timer_running_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINKS_H_
