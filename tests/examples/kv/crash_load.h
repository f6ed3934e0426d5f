// The load that crash tests put on a store until the crash, and the check of its keys after it.
//
// Each writer has its own keys. For each key it notes which write was sent and which was
// acknowledged. The writes of a key are numbered from 1; 0 stands for no value.

#ifndef VERBENA_TESTS_EXAMPLES_KV_CRASH_LOAD_H_
#define VERBENA_TESTS_EXAMPLES_KV_CRASH_LOAD_H_

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "verbena/rpc/task.h"

namespace kv {

inline constexpr size_t kCrashWriters = 8;
inline constexpr size_t kKeysOfWriter = 8;
inline constexpr size_t kCrashKeys = kCrashWriters * kKeysOfWriter;

// Numbers of the last writes of one key.
struct KeyState {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> acknowledged{0};
};

inline std::string CrashKey(size_t index) { return fmt::format("key {:03}", index); }

// Lengths differ, and so does the value for each key and number.
inline std::string CrashValue(size_t index, uint64_t number) {
  std::string value = fmt::format("{} {}", number, CrashKey(index));
  const char filler = static_cast<char>('a' + (index + number) % 26);
  value.append((index * 131 + number * 37) % 1500, filler);
  return value;
}

// The number of the write that left `value`, or nothing if no write did.
inline std::optional<uint64_t> NumberOf(size_t index, std::string_view value) {
  uint64_t number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  if (value != CrashValue(index, number)) return std::nullopt;
  return number;
}

// `Target` has Put(index, number), which stores CrashValue() under CrashKey(). It may have
// OnAcknowledged(), which is called after each update of KeyState::acknowledged.
template <typename Target>
class CrashWriter {
 public:
  CrashWriter(Target& target, size_t writer, uint32_t seed, absl::Span<KeyState> keys)
      : target_(target), first_(writer * kKeysOfWriter), random_(seed), keys_(keys) {}

  // Writes until a call fails.
  verbena::Task<void> Run() {
    for (;;) {
      const size_t index = first_ + random_() % kKeysOfWriter;
      const uint64_t number = ++keys_[index].sent;
      const absl::Status put = co_await target_.Put(index, number);
      if (!put.ok()) co_return;
      keys_[index].acknowledged = number;
      if constexpr (requires { target_.OnAcknowledged(); }) target_.OnAcknowledged();
    }
  }

 private:
  Target& target_;
  const size_t first_;
  std::mt19937 random_;
  const absl::Span<KeyState> keys_;
};

// Checks what a key holds after the crash; nothing stands for no value. Returns the number of the
// write that left it.
inline uint64_t CheckKeyAfterCrash(size_t index, const std::optional<std::string>& value,
                                   uint64_t acknowledged, uint64_t sent) {
  const std::optional<uint64_t> number = value.has_value() ? NumberOf(index, *value) : 0;
  if (!number.has_value()) {
    ADD_FAILURE() << CrashKey(index) << " has a value that nobody wrote: " << *value;
    return 0;
  }
  EXPECT_GE(*number, acknowledged) << CrashKey(index) << " has lost an acknowledged write";
  EXPECT_LE(*number, sent) << CrashKey(index);
  return *number;
}

// A new seed, or VERBENA_SEED, which replays a load as far as the machine's timing allows. The test
// prints it.
inline uint32_t CrashSeed() {
  const char* given = std::getenv("VERBENA_SEED");
  return given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                          : std::random_device()();
}

}  // namespace kv

#endif  // VERBENA_TESTS_EXAMPLES_KV_CRASH_LOAD_H_
