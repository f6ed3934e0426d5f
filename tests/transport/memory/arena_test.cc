// An arena's memory is zeroed, aligned to huge pages if it is large, and registered. It goes with
// its owner, unless the device still uses it.

#include "verbena/transport/memory/arena.h"

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/memory/pinning_device.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace arena_test {

constexpr size_t kMiB = size_t{1} << 20;

TEST(PagesTest, AreZeroedAndCanBeWrittenToTheirEnd) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 4096}) {
    auto pages = MapPages(bytes);
    ASSERT_TRUE(pages.ok()) << pages.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*pages) % 4096, 0u);
    EXPECT_EQ((*pages)[0], std::byte{0});
    EXPECT_EQ((*pages)[bytes - 1], std::byte{0});
    std::memset(*pages, 1, bytes);
    UnmapPages(*pages, bytes);
  }
}

TEST(PagesTest, LargeOnesBeginAtAHugePage) {
  for (int i = 0; i < 4; ++i) {
    auto small = MapPages(4096);
    auto pages = MapPages(3 * kMiB);
    ASSERT_TRUE(small.ok() && pages.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*pages) % (2 * kMiB), 0u);
    UnmapPages(*pages, 3 * kMiB);
    UnmapPages(*small, 4096);
  }
}

TEST(PagesTest, MoreThanThereCanBeIsRefused) {
  EXPECT_EQ(MapPages(size_t{1} << 62).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ArenaTest, RoundsUpToPagesAndIsGoneWithItsOwner) {
  PinningDevice device;
  {
    auto arena = Arena::Create(device, nullptr, 5000, 0);
    ASSERT_TRUE(arena.ok()) << arena.status();
    EXPECT_EQ(arena->size(), 8192u);
    EXPECT_EQ(device.pinned(), 8192u);
    EXPECT_EQ(device.allocations(), 0);
    Arena moved = *std::move(arena);
    std::memset(moved.data(), 7, moved.size());
    EXPECT_EQ(moved.lkey(), moved.mr()->lkey);
  }
  EXPECT_EQ(device.regions(), 0u);
}

TEST(ArenaTest, ExposedMemoryIsTheDevicesOwn) {
  PinningDevice device;
  {
    auto arena = Arena::Create(device, nullptr, kMiB, 0, ArenaKind::kExposed);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(device.allocations(), 1);
  }
  EXPECT_EQ(device.allocations(), 0);
}

TEST(ArenaTest, MemoryThatTheDeviceRefusesToRegisterIsGivenBack) {
  PinningDevice device;
  device.limit = 4096;
  auto arena = Arena::Create(device, nullptr, kMiB, 0, ArenaKind::kExposed);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device.allocations(), 0);
}

TEST(ArenaTest, WithoutMemoryOfTheDeviceThePagesOfTheProcessServe) {
  PinningDevice device;
  device.allocate_status = absl::ResourceExhaustedError("63 arenas");
  {
    auto arena = Arena::Create(device, nullptr, kMiB, 0, ArenaKind::kExposed);
    ASSERT_TRUE(arena.ok()) << arena.status();
    std::memset(arena->data(), 7, arena->size());
  }
  EXPECT_EQ(device.regions(), 0u);
}

TEST(ArenaTest, MemoryThatIsStillRegisteredStaysMapped) {
  PinningDevice device;
  char* data = nullptr;
  {
    auto arena = Arena::Create(device, nullptr, kMiB, 0, ArenaKind::kExposed);
    ASSERT_TRUE(arena.ok());
    data = arena->data();
    device.dereg_status = absl::FailedPreconditionError("a frozen peer");
  }
  EXPECT_EQ(device.allocations(), 1);
  std::memset(data, 1, kMiB);
  EXPECT_TRUE(device.FreeMemory(reinterpret_cast<std::byte*>(data), kMiB).ok());
}

TEST(ArenaTest, ASoftDevicesArenaLiesWherePeersCanMapIt) {
  auto device =
      SoftDevice::Create({.name = "arena_test", .engine_thread = false, .shared_memory = false});
  ASSERT_TRUE(device.ok()) << device.status();
  PdHandle pd(**device, (*device)->AllocPd().value());
  auto arena = Arena::Create(**device, pd.get(), kMiB, IBV_ACCESS_LOCAL_WRITE, ArenaKind::kExposed);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto* memory = reinterpret_cast<std::byte*>(arena->data());
  // The device knows the memory, and that it is registered.
  EXPECT_EQ((*device)->FreeShared(memory).code(), absl::StatusCode::kFailedPrecondition);
  *arena = Arena();
  EXPECT_EQ((*device)->FreeShared(memory).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace arena_test
}  // namespace verbena::internal
