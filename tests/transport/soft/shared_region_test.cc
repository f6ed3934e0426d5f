// A large shared region asks for huge pages, here and in the peer that maps it. A region that is
// not sealed or has another size than announced is refused.

#include "verbena/transport/soft/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace shared_region_test {

constexpr size_t kMiB = size_t{1} << 20;

// The VmFlags of the mapping that begins at `address`, as /proc/self/smaps gives them (proc(5)).
std::string FlagsOf(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  char start[32];
  snprintf(start, sizeof(start), "%lx-", reinterpret_cast<unsigned long>(address));
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    if (line.starts_with(start)) inside = true;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

bool AsksForHugePages(const SharedRegion& region) {
  const std::string flags = FlagsOf(region.data());
  return flags.find(" hg ") != std::string::npos || flags.find(" ht ") != std::string::npos;
}

bool KernelHasHugePages() {
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool has = madvise(page, 4096, MADV_HUGEPAGE) == 0;
  munmap(page, 4096);
  return has;
}

TEST(SharedRegionTest, ALargeRegionAsksForHugePagesHereAndInThePeerThatMapsIt) {
  if (!KernelHasHugePages()) GTEST_SKIP() << "this kernel has no transparent huge pages";
  absl::StatusOr<SharedRegion> region = SharedRegion::CreateLarge("test", 3 * kMiB);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->size(), 4 * kMiB);
  EXPECT_TRUE(AsksForHugePages(*region)) << FlagsOf(region->data());
  absl::StatusOr<SharedRegion> mapped =
      SharedRegion::Map(dup(region->fd()), region->size(), SharedRegion::Access::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_TRUE(AsksForHugePages(*mapped)) << FlagsOf(mapped->data());
  std::memset(region->data(), 'x', region->size());
  EXPECT_EQ(std::memcmp(region->data(), mapped->data(), region->size()), 0);
}

TEST(SharedRegionTest, ASmallRegionHasItsOwnSize) {
  absl::StatusOr<SharedRegion> region = SharedRegion::CreateLarge("test", 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->size(), 4096u);
  EXPECT_FALSE(AsksForHugePages(*region));
}

TEST(SharedRegionTest, ARegionNotSealedOrOfAnotherSizeIsRefused) {
  absl::StatusOr<SharedRegion> region = SharedRegion::Create("test", 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_FALSE(SharedRegion::Map(dup(region->fd()), 8192, SharedRegion::Access::kReadOnly).ok());
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_FALSE(SharedRegion::Map(unsealed, 4096, SharedRegion::Access::kReadOnly).ok());
}

}  // namespace shared_region_test
}  // namespace verbena::internal::soft
