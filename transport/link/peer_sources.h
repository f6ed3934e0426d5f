// PeerSources: the source addresses that the links of one endpoint come from or go to.
//
// Part of LinkSupplies. A source is there while it has links; references to it are valid as long.
// One thread.

#ifndef VERBENA_TRANSPORT_LINK_PEER_SOURCES_H_
#define VERBENA_TRANSPORT_LINK_PEER_SOURCES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "verbena/transport/link/peer_source.h"

namespace verbena::internal {

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

#endif  // VERBENA_TRANSPORT_LINK_PEER_SOURCES_H_
