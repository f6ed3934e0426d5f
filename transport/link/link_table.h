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

#ifndef VERBENA_TRANSPORT_LINK_LINK_TABLE_H_
#define VERBENA_TRANSPORT_LINK_LINK_TABLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/qp.h"

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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LINK_TABLE_H_
