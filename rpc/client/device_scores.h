// DeviceScores: which devices of a runtime keep losing their links to a server's address, and are
// passed over on the way there.
//
// A link may prove itself when it opens and carry nothing later: then each call that goes over the
// device fails after some seconds, and the next link opens again. So a device that has lost
// kLosses links to an address within kWithin, each before an answer came over it, comes last among
// the devices for that address. A link of the device that proves itself beside another one ends
// this. So does one that was made because no other device reached the address, and that brought an
// answer. One more loss within kWithin brings it back.
//
// A part of the runtime, since its executors share its devices. Any thread: a mutex guards it, for
// it is asked when a link is made or lost. At most kMaxEntries pairs of a device and an address;
// one more takes the place of the one whose last loss is the oldest.
//
//   if (scores.NoteLoss(address, device, reason, now)) Log(…);
//   if (std::string why = scores.WhyPassedOver(address, device); !why.empty()) …

#ifndef VERBENA_RPC_CLIENT_DEVICE_SCORES_H_
#define VERBENA_RPC_CLIENT_DEVICE_SCORES_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class Shard;

class DeviceScores final : public Part {
 public:
  static constexpr size_t kLosses = 3;
  static constexpr Duration kWithin = std::chrono::minutes(1);
  static constexpr size_t kMaxEntries = 1024;

  // The scores of the runtime of `shard`.
  static DeviceScores& Of(Shard& shard);

  // The device, by its index in the shard, has lost a link to `address` for `reason`, before an
  // answer came over it. True if the device is passed over there from now on.
  bool NoteLoss(const std::string& address, size_t device, const absl::Status& reason,
                TimePoint now);
  // A link over the device works again.
  void NoteReturn(const std::string& address, size_t device, TimePoint now);
  // Empty if the device is not passed over.
  std::string WhyPassedOver(const std::string& address, size_t device) const;
  // For tests.
  size_t size() const;

 private:
  using Key = std::pair<std::string, size_t>;
  struct Entry {
    std::array<TimePoint, kLosses> losses{};  // the last one last
    size_t count = 0;                         // of them
    std::string why;                          // not empty: the device is passed over
  };

  // Makes room for another entry. With mutex_ held.
  void DropOldest();

  mutable std::mutex mutex_;  // guards what follows
  absl::flat_hash_map<Key, Entry> entries_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_DEVICE_SCORES_H_
