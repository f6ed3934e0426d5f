// A file's lock has one holder at a time, is seen by those who look, and is never refused because
// somebody looks. Who cannot look takes it for held.

#include "verbena/transport/connect/file_spool.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tests/support/forbidden_call.h"

namespace verbena::internal {
namespace file_lock_test {

std::string NewPath(const char* name) { return ::testing::TempDir() + "/" + name; }

TEST(FileLockTest, OneHoldsItUntilItEnds) {
  const std::string path = NewPath("one");
  EXPECT_FALSE(FileLock::IsHeld(path)) << "there is no such file";
  {
    absl::StatusOr<FileLock> first = FileLock::Take(path);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(FileLock::IsHeld(path));
    EXPECT_TRUE(absl::IsAlreadyExists(FileLock::Take(path).status()));
    FileLock moved = *std::move(first);
    EXPECT_TRUE(FileLock::IsHeld(path));
  }
  EXPECT_FALSE(FileLock::IsHeld(path));
  EXPECT_TRUE(FileLock::Take(path).ok());
}

TEST(FileLockTest, WhoeverLooksIsInNobodysWay) {
  const std::string path = NewPath("looked_at");
  ASSERT_TRUE(FileLock::Take(path).ok());
  std::atomic<bool> stops{false};
  std::atomic<int> looks{0};
  std::thread looker([&] {
    while (!stops) {
      (void)FileLock::IsHeld(path);
      ++looks;
    }
  });
  int refused = 0;
  for (int i = 0; i < 20'000 || looks < 20'000; ++i) refused += FileLock::Take(path).ok() ? 0 : 1;
  stops = true;
  looker.join();
  EXPECT_EQ(refused, 0);
}

TEST(FileLockTest, WithoutADescriptorToLookItCountsAsHeld) {
  const std::string path = NewPath("starved");
  const absl::StatusOr<FileLock> lock = FileLock::Take(path);
  ASSERT_TRUE(lock.ok()) << lock.status();
  WithForbidden(SYS_openat, EMFILE, [&] { EXPECT_TRUE(FileLock::IsHeld(path)); });
  WithForbidden(SYS_openat, EACCES, [&] { EXPECT_FALSE(FileLock::IsHeld(path)); });
}

}  // namespace file_lock_test
}  // namespace verbena::internal
