#include "verbena/transport/soft/tcp_silent.h"

#include <algorithm>

#include "verbena/transport/soft/tcp_source.h"

namespace verbena::internal::soft {
namespace {

DeviceAddress SourceOfRange(const ibv_gid& address) { return {.gid = RangeOf(address), .lid = 0}; }

}  // namespace

void TcpSilent::Add(uint64_t id, const ibv_gid& source) {
  const DeviceAddress range = SourceOfRange(source);
  sockets_.push_back({.id = id, .source = range});
  ++counts_[range];
}

uint64_t TcpSilent::TakeOldestOfMost(const ibv_gid& newcomer) {
  const DeviceAddress range = SourceOfRange(newcomer);
  // With the newcomer's.
  const auto count_of = [&](const DeviceAddress& source) {
    auto found = counts_.find(source);
    return (found == counts_.end() ? 0 : found->second) + (source == range ? 1 : 0);
  };
  size_t most = count_of(range);
  for (const auto& [source, _] : counts_) most = std::max(most, count_of(source));
  auto oldest = std::find_if(sockets_.begin(), sockets_.end(),
                             [&](const Socket& socket) { return count_of(socket.source) == most; });
  const Socket taken = *oldest;
  sockets_.erase(oldest);
  Uncount(taken.source);
  return taken.id;
}

void TcpSilent::Uncount(const DeviceAddress& source) {
  auto found = counts_.find(source);
  if (--found->second == 0) counts_.erase(found);
}

}  // namespace verbena::internal::soft
