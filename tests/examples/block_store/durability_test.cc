// What reaches the disk, and in which order: the system calls that the store's files make are
// noted, and fail when told to. On threads: no program sees the calls that a ring makes.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_store.h"
#include "gmock/gmock.h"
#include "tests/examples/block_store/store_fixture.h"

namespace {

// Shared with the threads that make the calls.
struct SystemCalls {
  std::mutex mutex;
  std::vector<std::string> noted;
  std::string failing;  // the call that fails from now on, and with what
  int error = 0;
};

SystemCalls& Calls() {
  static SystemCalls calls;
  return calls;
}

// "NAME of FILE", without the directory; 0, or the errno to fail with.
int Note(const std::string& name, const std::string& path) {
  SystemCalls& calls = Calls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  calls.noted.push_back(name + " " + std::filesystem::path(path).filename().string());
  return calls.failing == name ? calls.error : 0;
}

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string();
}

int Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

// In place of the C library's.
extern "C" {

int fdatasync(int fd) {
  if (const int error = Note("fdatasync", PathOf(fd))) return Fail(error);
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

int fsync(int fd) {
  if (const int error = Note("fsync", PathOf(fd))) return Fail(error);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (const int error = Note("pwrite", PathOf(fd))) return Fail(error);
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int rename(const char* from, const char* to) noexcept {
  if (const int error = Note("rename", to)) return Fail(error);
  return static_cast<int>(syscall(SYS_rename, from, to));
}

}  // extern "C"

namespace block_store {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DurabilityTest : public StoreTest {
 protected:
  void SetUp() override {
    Fail("", 0);
    StoreTest::SetUp();
  }
  void TearDown() override {
    Fail("", 0);
    StoreTest::TearDown();
  }

  static void Fail(const std::string& call, int error) {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    Calls().failing = call;
    Calls().error = error;
  }
  static std::vector<std::string> TakeNoted() {
    const std::lock_guard<std::mutex> lock(Calls().mutex);
    return std::exchange(Calls().noted, {});
  }
  std::string DirectoryName() const { return directory_.filename().string(); }
};

TEST_F(DurabilityTest, AVolumeIsWholeOnTheDiskBeforeItHasItsNameAndTheNameBeforeTheAnswer) {
  TakeNoted();
  ASSERT_TRUE(Create("v", 4).ok());
  EXPECT_THAT(TakeNoted(),
              ElementsAre("fsync v.1.creating", "rename v.volume", "fsync " + DirectoryName()));
}

TEST_F(DurabilityTest, AWriteIsFlushedWhenItAsksForItAndOnlyAfterItsData) {
  ASSERT_TRUE(Create("v", 4).ok());
  TakeNoted();
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("pwrite v.volume"));
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'b'), /*flush=*/true).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("pwrite v.volume", "fdatasync v.volume"));
  ASSERT_TRUE(Await(store_->Flush("v")).ok());
  EXPECT_THAT(TakeNoted(), ElementsAre("fdatasync v.volume"));
}

TEST_F(DurabilityTest, AVolumeThatCannotBeMadeDurableIsNone) {
  for (const char* call : {"fsync", "rename"}) {
    Fail(call, EIO);
    EXPECT_FALSE(Create("v", 4).ok()) << call;
    Fail("", 0);
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << call;
    EXPECT_EQ(Await(store_->Flush("v")).code(), StatusCode::kNotFound) << call;
  }
  EXPECT_TRUE(Create("v", 4).ok()) << "the name is free again";
}

TEST_F(DurabilityTest, AFullDiskIsSaidByTheWriteAndTheRestOfTheVolumeIsWell) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a'), /*flush=*/true).ok());
  Fail("pwrite", ENOSPC);
  const absl::Status full = Write("v", kBlockBytes, Blocks(2, 'b'), /*flush=*/true);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(full.ToString(), AllOf(HasSubstr("v.volume"), HasSubstr("ENOSPC")));
  Fail("", 0);
  EXPECT_EQ(Read("v", 0, 2 * kBlockBytes).value(), Blocks(1, 'a') + Blocks(1, '\0'));
  EXPECT_TRUE(Write("v", kBlockBytes, Blocks(2, 'b'), /*flush=*/true).ok())
      << "there is room again";
}

TEST_F(DurabilityTest, AfterAFlushThatFailedNothingPassesForDurable) {
  ASSERT_TRUE(Create("v", 4).ok());
  ASSERT_TRUE(Create("other", 4).ok());
  ASSERT_TRUE(Write("v", 0, Blocks(1, 'a')).ok());
  Fail("fdatasync", EIO);
  const absl::Status failed = Await(store_->Flush("v"));
  EXPECT_EQ(failed.code(), StatusCode::kDataLoss) << failed;
  // As the kernel does: it tells once, and forgets.
  Fail("", 0);
  TakeNoted();
  for (const absl::Status& status : {Await(store_->Flush("v")), Write("v", 0, Blocks(1, 'b')),
                                     Write("v", 0, Blocks(1, 'b'), /*flush=*/true)}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'v'"), HasSubstr("restarted")));
  }
  EXPECT_THAT(TakeNoted(), IsEmpty());
  EXPECT_TRUE(Read("v", 0, kBlockBytes).ok());
  EXPECT_TRUE(Write("other", 0, Blocks(1, 'b'), /*flush=*/true).ok()) << "another volume";
  Reopen();
  EXPECT_TRUE(Write("v", 0, Blocks(1, 'b'), /*flush=*/true).ok());
}

}  // namespace
}  // namespace block_store
