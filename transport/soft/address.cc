#include "verbena/transport/soft/address.h"

#include <sys/random.h>

#include <atomic>
#include <cstring>
#include <random>

#include "fmt/format.h"

namespace verbena::internal::soft {
namespace {

// A locally assigned IPv6 prefix, so that the GID is a valid address that nobody routes. Bytes 4 to
// 9 are 0.
constexpr uint8_t kPrefix[4] = {0xfd, 'v', 'b', 'n'};
constexpr size_t kUniqueOffset = 10;

}  // namespace

std::string AddressText(const DeviceAddress& address) {
  if (address.lid != 0) return address.tcp().text();
  std::string text;
  for (size_t i = 0; i < sizeof(address.gid.raw); i += 2) {
    if (i != 0) text += ':';
    text += fmt::format("{:02x}{:02x}", address.gid.raw[i], address.gid.raw[i + 1]);
  }
  return text;
}

ibv_gid NewGid(bool predictable) {
  static std::atomic<uint64_t> last_predictable{0};
  ibv_gid gid{};
  std::memcpy(gid.raw, kPrefix, sizeof(kPrefix));
  uint64_t unique = 0;
  if (predictable) {
    unique = ++last_predictable;
  } else if (getrandom(&unique, sizeof(unique), 0) != static_cast<ssize_t>(sizeof(unique))) {
    unique = std::random_device()();
  }
  for (size_t i = kUniqueOffset; i < sizeof(gid.raw); ++i, unique >>= 8) {
    gid.raw[i] = static_cast<uint8_t>(unique);
  }
  return gid;
}

absl::Status PeerAnswer::Await(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (told_.wait_for(lock, patience, [this] { return answer_.has_value(); })) return *answer_;
  return absl::UnavailableError(
      fmt::format("its process has not answered within {} ms; is it stopped?", patience.count()));
}

void PeerAnswer::Tell(const absl::Status& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (answer_.has_value()) return;
  answer_ = what;
  told_.notify_all();
}

}  // namespace verbena::internal::soft
