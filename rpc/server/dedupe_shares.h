// DedupeShares: whose results a table of deduplicated calls drops first, so that no client pushes
// out the results of clients that have fewer.
//
// A client is a runtime, and belongs to the source address that it first came from. Each result and
// each record of names weighs on its client and on the client's source. The heaviest client of the
// heaviest source loses first. Owned by a DedupeShard, under its lock.

#ifndef VERBENA_RPC_SERVER_DEDUPE_SHARES_H_
#define VERBENA_RPC_SERVER_DEDUPE_SHARES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/connect/runtime_id.h"

namespace verbena::internal {

// The memberships of results and of records in their client's lists.
struct DedupeResultNode : IntrusiveNode<DedupeResultNode> {};
struct DedupeIdleNode : IntrusiveNode<DedupeIdleNode> {};

struct DedupeSource;

// One client's part.
struct DedupeOwner {
  RuntimeId runtime;
  DedupeSource* source = nullptr;
  size_t weight = 0;
  IntrusiveList<DedupeResultNode> results;  // that are kept, the oldest first
  IntrusiveList<DedupeIdleNode> idle;       // records of names without results and calls
};

struct DedupeSource {
  std::string address;
  size_t weight = 0;
  absl::flat_hash_map<RuntimeId, std::unique_ptr<DedupeOwner>> owners;
  absl::btree_set<std::pair<size_t, DedupeOwner*>> by_weight;
};

class DedupeShares {
 public:
  // The part of a runtime at an address. It goes when its weight is 0 again.
  DedupeOwner& Of(const std::string& address, const RuntimeId& runtime) {
    std::unique_ptr<DedupeSource>& source = sources_[address];
    if (source == nullptr) {
      source = std::make_unique<DedupeSource>();
      source->address = address;
      by_weight_.emplace(0, source.get());
    }
    std::unique_ptr<DedupeOwner>& owner = source->owners[runtime];
    if (owner == nullptr) {
      owner = std::make_unique<DedupeOwner>();
      owner->runtime = runtime;
      owner->source = source.get();
      source->by_weight.emplace(0, owner.get());
    }
    return *owner;
  }

  void Add(DedupeOwner& owner, size_t weight) {
    SetWeight(owner, owner.weight + weight, owner.source->weight + weight);
  }
  // Destroys `owner` if that was all.
  void Remove(DedupeOwner& owner, size_t weight) {
    DedupeSource& source = *owner.source;
    SetWeight(owner, owner.weight - weight, source.weight - weight);
    if (owner.weight > 0) return;
    source.by_weight.erase({0, &owner});
    source.owners.erase(RuntimeId(owner.runtime));
    if (!source.owners.empty()) return;
    by_weight_.erase({source.weight, &source});
    sources_.erase(std::string(source.address));
  }

  // The first that loses among those for which `has_some` holds; null if there are none.
  template <typename HasSome>
  DedupeOwner* Heaviest(HasSome has_some) const {
    for (auto source = by_weight_.rbegin(); source != by_weight_.rend(); ++source) {
      const auto& owners = source->second->by_weight;
      for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner) {
        if (has_some(*owner->second)) return owner->second;
      }
    }
    return nullptr;
  }

 private:
  void SetWeight(DedupeOwner& owner, size_t weight, size_t of_source) {
    DedupeSource& source = *owner.source;
    source.by_weight.erase({owner.weight, &owner});
    by_weight_.erase({source.weight, &source});
    owner.weight = weight;
    source.weight = of_source;
    source.by_weight.emplace(owner.weight, &owner);
    by_weight_.emplace(source.weight, &source);
  }

  absl::flat_hash_map<std::string, std::unique_ptr<DedupeSource>> sources_;  // by address
  absl::btree_set<std::pair<size_t, DedupeSource*>> by_weight_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DEDUPE_SHARES_H_
