#include "verbena/transport/soft/tcp_shares.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/soft/device_address.h"
#include "verbena/transport/soft/tcp_source.h"

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
    std::map<DeviceAddress, uint64_t> by_source;
  };
  using Key = std::pair<Kind, uint64_t>;  // and the CQ

  std::mutex mutex;
  std::map<Key, Resource> resources;  // only those that are held

  // Under the mutex.
  bool MayTake(const DeviceAddress& source, const Wanted& wanted) const;
  uint64_t Of(const DeviceAddress& source, const Wanted& wanted) const;
  uint64_t All(const Wanted& wanted) const;
};

uint64_t TcpShares::Held::All(const Wanted& wanted) const {
  auto found = resources.find({wanted.kind, wanted.cq});
  return found == resources.end() ? 0 : found->second.all;
}

uint64_t TcpShares::Held::Of(const DeviceAddress& source, const Wanted& wanted) const {
  auto found = resources.find({wanted.kind, wanted.cq});
  if (found == resources.end()) return 0;
  auto one = found->second.by_source.find(source);
  return one == found->second.by_source.end() ? 0 : one->second;
}

bool TcpShares::Held::MayTake(const DeviceAddress& source, const Wanted& wanted) const {
  const uint64_t all = All(wanted);
  if (all > wanted.limit || wanted.amount > wanted.limit - all) return false;
  const uint64_t left = wanted.limit - all - wanted.amount;
  return Of(source, wanted) + wanted.amount <= left;
}

// Held by whoever has the share.
class TcpShares::Taken {
 public:
  Taken(std::shared_ptr<Held> held, const DeviceAddress& source, std::vector<Wanted> wanted)
      : held_(std::move(held)), source_(source), wanted_(std::move(wanted)) {}
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() {
    std::lock_guard<std::mutex> lock(held_->mutex);
    for (const Wanted& one : wanted_) {
      auto resource = held_->resources.find({one.kind, one.cq});
      auto source = resource->second.by_source.find(source_);
      resource->second.all -= one.amount;
      source->second -= one.amount;
      if (source->second == 0) resource->second.by_source.erase(source);
      if (resource->second.by_source.empty()) held_->resources.erase(resource);
    }
  }

 private:
  const std::shared_ptr<Held> held_;
  const DeviceAddress source_;
  const std::vector<Wanted> wanted_;
};

TcpShares::TcpShares() : held_(std::make_shared<Held>()) {}

absl::StatusOr<TcpShares::Share> TcpShares::Take(const ibv_gid& source,
                                                 std::initializer_list<Wanted> wanted) {
  const DeviceAddress range{.gid = RangeOf(source), .lid = 0};
  std::lock_guard<std::mutex> lock(held_->mutex);
  for (const Wanted& one : wanted) {
    if (held_->MayTake(range, one)) continue;
    const uint64_t all = held_->All(one);
    return absl::ResourceExhaustedError(
        fmt::format("{} holds {} of {} {}, {} are free, and it wants {} more", IpText(source),
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

}  // namespace verbena::internal::soft
