#include "verbena/transport/soft/tcp_shares.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {
namespace {

const char* NameOf(TcpShares::Kind kind) {
  switch (kind) {
    case TcpShares::Kind::kPeers:
      return "peers";
    case TcpShares::Kind::kSockets:
      return "connections (RLIMIT_NOFILE bounds them)";
    case TcpShares::Kind::kLaneBytes:
      return "bytes for rings (TcpWireOptions::lane_bytes bounds them)";
    case TcpShares::Kind::kLanes:
      return "connections of this CQ";
  }
  return "";
}

}  // namespace

struct TcpShares::Held {
  struct Resource {
    uint64_t all = 0;
    std::map<IpAddress, uint64_t> by_source;
  };
  using Key = std::pair<Kind, uint64_t>;  // and the CQ

  std::mutex mutex;
  std::map<Key, Resource> resources;  // only those that are held

  // Under the mutex.
  bool MayTake(const IpAddress& source, const Wanted& wanted) const;
  uint64_t Of(const IpAddress& source, const Wanted& wanted) const;
  uint64_t All(const Wanted& wanted) const;
};

uint64_t TcpShares::Held::All(const Wanted& wanted) const {
  auto found = resources.find({wanted.kind, wanted.cq});
  return found == resources.end() ? 0 : found->second.all;
}

uint64_t TcpShares::Held::Of(const IpAddress& source, const Wanted& wanted) const {
  auto found = resources.find({wanted.kind, wanted.cq});
  if (found == resources.end()) return 0;
  auto one = found->second.by_source.find(source);
  return one == found->second.by_source.end() ? 0 : one->second;
}

bool TcpShares::Held::MayTake(const IpAddress& source, const Wanted& wanted) const {
  const uint64_t all = All(wanted);
  if (all > wanted.limit || wanted.amount > wanted.limit - all) return false;
  const uint64_t left = wanted.limit - all - wanted.amount;
  return Of(source, wanted) + wanted.amount <= left;
}

// Held by whoever has the share.
class TcpShares::Taken {
 public:
  Taken(std::shared_ptr<Held> held, const IpAddress& source, std::vector<Wanted> wanted)
      : held_(std::move(held)), source_(source), wanted_(std::move(wanted)) {}
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() {
    std::lock_guard<std::mutex> lock(held_->mutex);
    for (const Wanted& one : wanted_) {
      auto resource = held_->resources.find({one.kind, one.cq});
      VERBENA_CHECK(resource != held_->resources.end() && resource->second.all >= one.amount)
          << NameOf(one.kind);
      auto source = resource->second.by_source.find(source_);
      VERBENA_CHECK(source != resource->second.by_source.end() && source->second >= one.amount)
          << NameOf(one.kind) << " of " << FormatIp(source_);
      resource->second.all -= one.amount;
      source->second -= one.amount;
      if (source->second == 0) resource->second.by_source.erase(source);
      if (resource->second.by_source.empty()) held_->resources.erase(resource);
    }
  }

 private:
  const std::shared_ptr<Held> held_;
  const IpAddress source_;
  const std::vector<Wanted> wanted_;
};

TcpShares::TcpShares() : held_(std::make_shared<Held>()) {}

absl::StatusOr<TcpShares::Share> TcpShares::Take(const IpAddress& source,
                                                 std::initializer_list<Wanted> wanted) {
  const IpAddress range = RangeOf(source);
  std::lock_guard<std::mutex> lock(held_->mutex);
  for (const Wanted& one : wanted) {
    if (held_->MayTake(range, one)) continue;
    const uint64_t all = held_->All(one);
    return absl::ResourceExhaustedError(
        fmt::format("{} holds {} of {} {}, {} are free, and it wants {} more", FormatIp(source),
                    held_->Of(range, one), one.limit, NameOf(one.kind),
                    one.limit - std::min(all, one.limit), one.amount));
  }
  for (const Wanted& one : wanted) {
    Held::Resource& resource = held_->resources[{one.kind, one.cq}];
    resource.all += one.amount;
    resource.by_source[range] += one.amount;
  }
  return Share(std::make_shared<Taken>(held_, range, std::vector<Wanted>(wanted)));
}

void TcpSilent::Add(uint64_t id, const IpAddress& source) {
  const IpAddress range = RangeOf(source);
  sockets_.push_back({.id = id, .source = range});
  ++counts_[range];
}

uint64_t TcpSilent::TakeOldestOfMost(const IpAddress& newcomer) {
  const IpAddress range = RangeOf(newcomer);
  // With the newcomer's.
  const auto count_of = [&](const IpAddress& source) {
    auto found = counts_.find(source);
    return (found == counts_.end() ? 0 : found->second) + (source == range ? 1 : 0);
  };
  size_t most = count_of(range);
  for (const auto& [source, _] : counts_) most = std::max(most, count_of(source));
  auto oldest = std::find_if(sockets_.begin(), sockets_.end(),
                             [&](const Socket& socket) { return count_of(socket.source) == most; });
  VERBENA_CHECK(oldest != sockets_.end()) << "none of " << sockets_.size() << " sockets";
  const Socket taken = *oldest;
  sockets_.erase(oldest);
  Uncount(taken.source);
  return taken.id;
}

void TcpSilent::Uncount(const IpAddress& source) {
  auto found = counts_.find(source);
  VERBENA_CHECK(found != counts_.end() && found->second != 0) << FormatIp(source);
  if (--found->second == 0) counts_.erase(found);
}

}  // namespace verbena::internal::soft
