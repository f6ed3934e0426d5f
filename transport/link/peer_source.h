// Source addresses of an endpoint's links: PeerSource for one address, PeerSources for all.
//
// Part of the endpoint's LinkSupplies; one thread. At most one for each link.

#ifndef VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_
#define VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/link/credits.h"

namespace verbena::internal {

// A link's place among those that wait for send buffers.
class RoomWaiter : public IntrusiveNode<RoomWaiter> {
 public:
  virtual ~RoomWaiter() = default;
  // There may be a buffer again. The waiter is off the list.
  virtual void OnRoom() = 0;
};

// PeerSource: the links to one source address, and what they hold of their endpoint's send buffers
// and credits.
//
// A peer keeps a buffer for as long as it leaves the SEND in it unacknowledged, and credits for as
// long as it sends. Addresses are harder to get than connections, so the links to one address are
// bounded together (SendBuffers, CreditPool). Owned by PeerSources for as long as there is a link
// to that address. One thread.
//
// In a list of SendRoom while links to it wait because it is full.
struct PeerSource : IntrusiveNode<PeerSource> {
  // `bounded` is false if `name` stands for peers that are not told apart.
  PeerSource(std::string name, bool bounded) : name(std::move(name)), bounded(bounded) {}

  const std::string name;
  const bool bounded;
  uint32_t links = 0;
  uint32_t held = 0;  // send buffers
  CreditShare credits;
  // Links that hold no buffer, until the source holds less than it may.
  WaiterQueue<RoomWaiter> waiters;
};

// PeerSources: the source addresses that the links of one endpoint come from or go to.
//
// Part of LinkSupplies. A source is there while it has links; references to it are valid as long.
// One thread.
class PeerSources {
 public:
  size_t size() const { return by_name_.size(); }

  // Counts a link to the source of that name; `bounded` as in PeerSource.
  PeerSource& Join(const std::string& name, bool bounded) {
    std::unique_ptr<PeerSource>& source = by_name_[std::pair(name, bounded)];
    if (source == nullptr) source = std::make_unique<PeerSource>(name, bounded);
    ++source->links;
    return *source;
  }
  // Ends a Join(). True if that was the last link, and the source is gone.
  bool Leave(PeerSource& source) {
    if (--source.links > 0) return false;
    by_name_.erase(std::pair(source.name, source.bounded));
    return true;
  }
  // The source that is alone, or nullptr.
  PeerSource* alone() const { return size() == 1 ? by_name_.begin()->second.get() : nullptr; }

 private:
  absl::flat_hash_map<std::pair<std::string, bool>, std::unique_ptr<PeerSource>> by_name_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_PEER_SOURCE_H_
