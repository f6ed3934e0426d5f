#include "verbena/rpc/client/device_attempts.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/rpc/client/connect_order.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {

DeviceAttempts::DeviceAttempts(Shard& shard, const MessageStream& stream)
    : shard_(shard),
      same_host_(stream.same_host()),
      order_(ConnectOrder(shard.kinds(), stream.same_host())) {
  std::erase_if(order_, [&](size_t device) { return !shard.MayConnectOver(device, stream); });
}

std::string DeviceAttempts::NameOf(size_t device) const {
  return LinkKindName(shard_.kinds()[device]);
}

void DeviceAttempts::AddFailure(size_t i, const absl::Status& why) {
  VERBENA_CHECK(i == failures_.size()) << "device " << i << " of " << order_.size();
  failures_.push_back(why);
}

absl::Status DeviceAttempts::Failure(const std::string& address) const {
  VERBENA_CHECK(!failures_.empty()) << address;
  if (order_.size() == 1) return failures_.front();
  std::string all;
  for (size_t i = 0; i < failures_.size(); ++i) {
    all += fmt::format("{}{}: {}", i == 0 ? "" : "; ", NameOf(order_[i]),
                       std::string(failures_[i].message()));
  }
  // A device that is down may be back soon, so its UNAVAILABLE outweighs the errors of the others.
  const bool unavailable = std::ranges::any_of(failures_, absl::IsUnavailable);
  return absl::Status(unavailable ? absl::StatusCode::kUnavailable : failures_.back().code(),
                      fmt::format("no device reaches {}: {}", address, all));
}

void DeviceAttempts::NoteChoice(size_t i, const std::string& target) const {
  const std::string chosen = NameOf(order_[i]);
  std::string passed_over;
  for (size_t other = 0; other < order_.size(); ++other) {
    if (other == i) continue;
    const std::string why = other < i ? std::string(failures_[other].message())
                                      : fmt::format("{} comes before it", chosen);
    shard_.devices()[order_[other]]->NotePassedOver(fmt::format("{}: {}", target, why));
    passed_over += fmt::format("; {} is not used: {}", NameOf(order_[other]), why);
  }
  ShardDevice& device = *shard_.devices()[order_[i]];
  if (!device.NoteFirstLink()) return;
  Log(LogLevel::kInfo,
      fmt::format("{} carries its first link over {}, to {}, {}{}", device.name(), chosen, target,
                  same_host_ ? "on this host" : "on another host", passed_over));
}

}  // namespace verbena::internal
