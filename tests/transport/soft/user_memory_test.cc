// With the guard, a copy of memory that is not mapped, or protected, ends and says so, on every
// thread. Other faults still end the process. A store stores its last word last.

#include "verbena/transport/soft/user_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "verbena/transport/base/process.h"

namespace verbena::internal::soft {
namespace user_memory_test {

// Two pages: the first as `protection` says, the second to be read and written.
class Pages {
 public:
  explicit Pages(int protection)
      : data_(static_cast<std::byte*>(mmap(nullptr, 2 * size(), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(static_cast<void*>(data_), MAP_FAILED);
    EXPECT_EQ(mprotect(data_, size(), protection), 0);
  }
  Pages(const Pages&) = delete;
  ~Pages() { munmap(data_, 2 * size()); }

  static size_t size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  std::byte* data() const { return data_; }
  std::byte* second() const { return data_ + size(); }

 private:
  std::byte* const data_;
};

class UserMemoryTest : public testing::Test {
 protected:
  UserMemoryTest() { GuardUserMemory(); }
};

TEST_F(UserMemoryTest, ACopyIsACopy) {
  const char from[] = "some bytes";
  char to[sizeof(from)] = {};
  EXPECT_TRUE(CopyUserMemory(to, from, sizeof(from)));
  EXPECT_STREQ(to, from);
}

TEST_F(UserMemoryTest, MemoryThatCannotBeReadOrWrittenIsAnAnswerAndTheNextCopyWorks) {
  const Pages none(PROT_NONE);
  const Pages read(PROT_READ);
  char bytes[256] = {};
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(CopyUserMemory(bytes, none.data(), sizeof(bytes)));
    EXPECT_FALSE(CopyUserMemory(none.data(), bytes, sizeof(bytes)));
    EXPECT_FALSE(CopyUserMemory(read.data(), bytes, sizeof(bytes)));
    // From the middle of a range on.
    EXPECT_FALSE(CopyUserMemory(none.second() - 100, bytes, sizeof(bytes)));
    EXPECT_TRUE(CopyUserMemory(bytes, read.data(), sizeof(bytes)));
    EXPECT_TRUE(CopyUserMemory(none.second(), bytes, sizeof(bytes)));
  }
  EXPECT_FALSE(AccessUserMemory(none.data(), 8, [&] {
    reinterpret_cast<std::atomic<uint64_t>*>(none.data())->fetch_add(1);
  }));
}

TEST_F(UserMemoryTest, AStoreIsACopyWhateverItsPlace) {
  std::array<std::byte, 64> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i + 1);
  for (size_t at = 0; at < 16; ++at) {
    for (size_t bytes = 0; bytes <= 40; ++bytes) {
      alignas(8) std::array<std::byte, 64> to{};
      ASSERT_TRUE(StoreUserMemory(&to[at], &from[3], bytes));
      for (size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= at && i < at + bytes;
        ASSERT_EQ(to[i], inside ? from[3 + i - at] : std::byte(0))
            << at << " " << bytes << " " << i;
      }
    }
  }
}

// Its first bytes cannot be stored. So those that are stored after them are not.
TEST_F(UserMemoryTest, TheLastWordIsStoredLast) {
  const Pages pages(PROT_READ);
  const std::vector<std::byte> from(Pages::size(), std::byte(1));
  for (const size_t bytes : {17, 24, 40, 72, 136, 200, 264, 520, 1032, 2056}) {
    for (const size_t before : {size_t{1}, size_t{8}}) {
      std::byte* const to = pages.second() - before;
      EXPECT_FALSE(StoreUserMemory(to, from.data(), bytes));
      const size_t last = LastWordBytes(reinterpret_cast<uintptr_t>(to), bytes);
      for (const std::byte* at = to + bytes - last; at != to + bytes; ++at) {
        EXPECT_EQ(*at, std::byte(0)) << bytes;
      }
      std::memset(pages.second(), 0, Pages::size());
    }
  }
}

// A file that has become shorter: SIGBUS.
TEST_F(UserMemoryTest, MemoryBehindTheEndOfAFileIsAnAnswer) {
  const UniqueFd file(memfd_create("verbena-short", MFD_CLOEXEC));
  void* const data = mmap(nullptr, Pages::size(), PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  char bytes[16];
  EXPECT_FALSE(CopyUserMemory(bytes, data, sizeof(bytes)));
  EXPECT_FALSE(CopyUserMemory(bytes, data, sizeof(bytes)));
  munmap(data, Pages::size());
}

TEST_F(UserMemoryTest, ThreadsThatTakeNoSignalsHaveTheGuard) {
  const Pages none(PROT_NONE);
  bool copied = true;
  StartQuietThread([&] {
    char bytes[16];
    copied = CopyUserMemory(bytes, none.data(), sizeof(bytes));
  }).join();
  EXPECT_FALSE(copied);
}

using UserMemoryDeathTest = UserMemoryTest;

TEST_F(UserMemoryDeathTest, OtherFaultsEndTheProcess) {
  const Pages none(PROT_NONE);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(none.data()) = 1, "");
  // During a copy of other memory.
  EXPECT_DEATH(AccessUserMemory(none.second(), 8,
                                [&] { *reinterpret_cast<volatile char*>(none.data()) = 1; }),
               "");
  EXPECT_DEATH(raise(SIGSEGV), "");
}

}  // namespace user_memory_test
}  // namespace verbena::internal::soft
