// Files read back what was written, at any offset and in any size. Each way in which the file
// system says no gives a Status of its own that names the file. Built once per backend.

#include "verbena/transport/file/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace file_test {

using absl::StatusCode;
using testing::Contains;
using testing::HasSubstr;

constexpr int kCreate = O_RDWR | O_CREAT;

std::string Pattern(size_t bytes, int seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 31 + seed) >> (i % 3));
  return text;
}

// --- Round trips ---------------------------------------------------------------------------------

TEST_F(FileTest, BytesThatAreWrittenAreReadBack) {
  const std::string text = Pattern(1 << 20, 1);
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    EXPECT_EQ(file->path(), Path("a"));
    EXPECT_FALSE(file->direct());
    Buffer out = TakeWith(text);
    EXPECT_TRUE((co_await file->Write(out.view(), 0)).ok());
    EXPECT_TRUE((co_await file->Datasync()).ok());
    EXPECT_TRUE((co_await file->Sync()).ok());
    Buffer in = Take(text.size());
    absl::StatusOr<size_t> read = co_await file->Read(in.view(), 0);
    CO_ASSERT_OK(read);
    EXPECT_EQ(*read, text.size());
    EXPECT_TRUE(Text(in, text.size()) == text);
  });
  EXPECT_TRUE(Contents("a") == text);
}

TEST_F(FileTest, OddPartsAtOddPlaces) {
  MakeFile("a", "0123456789");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith("abcdefgh");
    EXPECT_TRUE((co_await file->Write(buffer.Slice(3, 2), 7)).ok());
    EXPECT_EQ((co_await file->Read(buffer.Slice(1, 3), 6)).value_or(99), 3u);
    EXPECT_EQ(Text(buffer, 8), "a6deefgh");
  });
  EXPECT_EQ(Contents("a"), "0123456de9");
}

TEST_F(FileTest, AReadAtTheEndReturnsWhatThereIs) {
  MakeFile("a", Pattern(10000, 2));
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"));
    CO_ASSERT_OK(file);
    Buffer buffer = Take(8192);
    EXPECT_EQ((co_await file->Read(buffer.view(), 8192)).value_or(99), 10000u - 8192);
    EXPECT_EQ((co_await file->Read(buffer.view(), 10000)).value_or(99), 0u);
    EXPECT_EQ((co_await file->Read(buffer.view(), 1 << 30)).value_or(99), 0u);
    EXPECT_EQ((co_await file->Read(buffer.Slice(0, 0), 0)).value_or(99), 0u);
    EXPECT_EQ((co_await file->Read(BufferView(), 0)).value_or(99), 0u);
    EXPECT_TRUE((co_await file->Write(BufferView(), 0)).ok());
  });
}

TEST_F(FileTest, AWriteBeyondTheEndLeavesAHole) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith("x");
    EXPECT_TRUE((co_await file->Write(buffer.view(), 5)).ok());
  });
  EXPECT_EQ(Contents("a"), std::string(5, '\0') + "x");
}

TEST_F(FileTest, StatAndFallocateTellTheSizeAndReserveIt) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate, .mode = 0640});
    CO_ASSERT_OK(file);
    const absl::Status reserved = co_await file->Fallocate(0, 1 << 20);
    if (!absl::IsUnimplemented(reserved)) {
      EXPECT_TRUE(reserved.ok()) << reserved;
      absl::StatusOr<FileStat> stat = co_await file->Stat();
      CO_ASSERT_OK(stat);
      EXPECT_EQ(stat->size, 1u << 20);
      EXPECT_GE(stat->allocated_bytes, 1u << 20);
    }
    absl::StatusOr<FileStat> stat = co_await file->Stat();
    CO_ASSERT_OK(stat);
    EXPECT_TRUE(S_ISREG(stat->mode));
    EXPECT_EQ(stat->mode & 0137, 0u);
    EXPECT_NE(stat->inode, 0u);
    EXPECT_GT(stat->modified, std::chrono::hours(24 * 365 * 40));
  });
}

TEST_F(FileTest, ManyTransfersAtOnceEachReachTheirPlace) {
  // More than a backend takes at a time (256 or 1024).
  constexpr int kBlocks = 2500;
  Run([&]() -> Task<void> {
    absl::StatusOr<File> opened = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(opened);
    File& file = *opened;
    TaskScope scope(co_await CurrentContext());
    int failures = 0;
    for (int i = 0; i < kBlocks; ++i) {
      scope.Spawn([&, i]() -> Task<void> {
        absl::StatusOr<Buffer> buffer = co_await pool_->Allocate(4096);
        CO_ASSERT_OK(buffer);
        std::memset(buffer->data(), i % 251, 4096);
        if (!(co_await file.Write(buffer->view(), uint64_t{4096} * i)).ok()) ++failures;
        std::memset(buffer->data(), 0xff, 4096);
        absl::StatusOr<size_t> read = co_await file.Read(buffer->view(), uint64_t{4096} * i);
        if (read.value_or(0) != 4096 || buffer->data()[7] != static_cast<char>(i % 251)) ++failures;
      });
    }
    co_await scope.Join();
    EXPECT_EQ(failures, 0);
  });
  const std::string contents = Contents("a");
  ASSERT_EQ(contents.size(), size_t{4096} * kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(contents[4096 * i], static_cast<char>(i % 251)) << i;
    ASSERT_EQ(contents[4096 * i + 4095], static_cast<char>(i % 251)) << i;
  }
}

TEST_F(FileTest, ManyFilesAreOpenedWrittenAndClosed) {
  constexpr int kFiles = 1200;  // more than the ring registers
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < kFiles + 100) GTEST_SKIP() << "RLIMIT_NOFILE is " << limit.rlim_cur;
  Run([&]() -> Task<void> {
    std::vector<File> files;
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < kFiles; ++i) {
        absl::StatusOr<File> file =
            co_await File::Open(Path("f" + std::to_string(i)), {.flags = kCreate});
        CO_ASSERT_OK(file);
        files.push_back(*std::move(file));
      }
      for (int i = 0; i < kFiles; i += 100) {
        Buffer buffer = TakeWith(std::to_string(i + round));
        EXPECT_TRUE((co_await files[i].Write(buffer.view(), 0)).ok());
      }
      files.clear();
    }
  });
  EXPECT_EQ(Contents("f100"), "101");
  EXPECT_EQ(Contents("f1100"), "1101");
}

// --- Closing -------------------------------------------------------------------------------------

TEST_F(FileTest, CloseSaysWhetherItIsDone) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    EXPECT_TRUE((co_await file->Close()).ok());
    EXPECT_FALSE(*file);
  });
}

TEST_F(FileTest, AFileMayGoWhileATaskOnItWaits) {
  MakeFile("a", "abc");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"));
    CO_ASSERT_OK(file);
    Buffer buffer = Take(3);
    Task<absl::StatusOr<size_t>> read = file->Read(buffer.view(), 0);
    EXPECT_EQ((co_await file->Close()).code(), StatusCode::kFailedPrecondition);
    *file = File();
    EXPECT_EQ((co_await std::move(read)).value_or(99), 3u);
    EXPECT_EQ(Text(buffer, 3), "abc");
  });
}

TEST_F(FileTest, ACloseGoesOnWhenItsScopeIsCancelled) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    CancelScope scope;
    scope.Request();
    EXPECT_TRUE((co_await file->Close().In(&scope)).ok());
  });
}

TEST_F(FileTest, AFileDestroyedOffItsExecutorIsClosedThere) {
  File kept;
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    kept = *std::move(file);
  });
  kept = File();
  Run([]() -> Task<void> { co_return; });
}

// --- Errors --------------------------------------------------------------------------------------

TEST_F(FileTest, AMissingFileIsNotFoundByName) {
  Run([&]() -> Task<void> {
    const absl::StatusOr<File> file = co_await File::Open(Path("none"));
    EXPECT_EQ(file.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(file.status().ToString(), HasSubstr("/none"));
    EXPECT_THAT(file.status().ToString(), HasSubstr("ENOENT"));
  });
}

TEST_F(FileTest, OpeningSaysWhyItFailed) {
  MakeFile("a", "");
  Run([&]() -> Task<void> {
    EXPECT_EQ((co_await File::Open(Path("a"), {.flags = kCreate | O_EXCL})).status().code(),
              StatusCode::kAlreadyExists);
    EXPECT_EQ((co_await File::Open(Path(""), {.flags = O_RDWR})).status().code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ((co_await File::Open(Path("a/b"))).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ((co_await File::Open(Path(std::string(300, 'x')))).status().code(),
              StatusCode::kInvalidArgument);
  });
}

TEST_F(FileTest, AFullDiskIsResourceExhaustedAndNamesThePlace) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open("/dev/full", {.flags = O_RDWR});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith("abcd");
    const absl::Status full = co_await file->Write(buffer.view(), 12);
    EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(full.ToString(), HasSubstr("write of 4 bytes at 12 of /dev/full"));
    EXPECT_THAT(full.ToString(), HasSubstr("ENOSPC"));
  });
}

TEST_F(FileTest, AFileThatWouldBeTooLargeIsOutOfRangeAndKeepsWhatFits) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = 6000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = kCreate});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith(Pattern(8192, 3));
    const absl::Status too_large = co_await file->Write(buffer.view(), 0);
    EXPECT_EQ(too_large.code(), StatusCode::kOutOfRange) << too_large;
    EXPECT_THAT(too_large.ToString(), HasSubstr("after 6000 bytes"));
    EXPECT_THAT(too_large.ToString(), HasSubstr("EFBIG"));
  });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(Contents("a").size(), 6000u);
}

TEST_F(FileTest, OperationsThatTheFileWasNotOpenedForAreRefused) {
  MakeFile("a", "abc");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDONLY});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith("x");
    EXPECT_EQ((co_await file->Write(buffer.view(), 0)).code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ((co_await file->Read(buffer.view(), ~uint64_t{0} / 2 + 5)).status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_FALSE((co_await file->Fallocate(0, 0)).ok());
  });
}

TEST(FileSchedulerTest, FilesNeedAnExecutor) {
  ManualScheduler scheduler;
  const absl::StatusOr<File> file = scheduler.Run(File::Open("/dev/null"));
  EXPECT_EQ(file.status().code(), StatusCode::kFailedPrecondition);
}

// --- O_DIRECT ------------------------------------------------------------------------------------

TEST_F(FileTest, DirectTransfersGoStraightBetweenDiskAndBuffer) {
  const std::string text = Pattern(1 << 20, 4);
  MakeFile("a", text + "tail");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR, .direct = true});
    CO_ASSERT_OK(file);
    EXPECT_EQ(file->alignment() > 1, file->direct());
    Buffer buffer = Take(2 << 20);
    for (int round = 0; round < 3; ++round) {
      std::memset(buffer.data(), 0, buffer.size());
      EXPECT_EQ((co_await file->Read(buffer.view(), 0)).value_or(99), text.size() + 4);
      EXPECT_TRUE(Text(buffer, text.size() + 4) == text + "tail");
    }
    EXPECT_EQ((co_await file->Read(buffer.Slice(4096, 8192), 65536)).value_or(99), 8192u);
    EXPECT_TRUE(std::string(buffer.data() + 4096, 8192) == text.substr(65536, 8192));
    EXPECT_TRUE((co_await file->Write(buffer.Slice(0, 4096), 4096)).ok());
  });
  EXPECT_TRUE(Contents("a").substr(4096, 4096) == text.substr(0, 4096));
}

TEST_F(FileTest, AMisalignedDirectTransferNamesTheAlignment) {
  MakeFile("a", Pattern(65536, 5));
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR, .direct = true});
    CO_ASSERT_OK(file);
    Buffer buffer = Take(8192);
    const absl::StatusOr<size_t> read = co_await file->Read(buffer.Slice(1, 4096), 7);
    // Some file systems, as tmpfs, take any.
    if (read.ok()) co_return;
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(read.status().ToString(), HasSubstr("read of 4096 bytes at 7 of "));
    EXPECT_THAT(read.status().ToString(),
                HasSubstr("in multiples of " + std::to_string(file->alignment())));
  });
}

TEST_F(FileTest, WithoutDirectTransfersTheFileIsUsedAllTheSameAndTheLogSaysSo) {
  CapturedLog log;
  Run([&]() -> Task<void> {
    // procfs has none.
    absl::StatusOr<File> file = co_await File::Open("/proc/version", {.direct = true});
    CO_ASSERT_OK(file);
    EXPECT_FALSE(file->direct());
    EXPECT_EQ(file->alignment(), 1u);
    Buffer buffer = Take(4096);
    EXPECT_GT((co_await file->Read(buffer.view(), 0)).value_or(0), 0u);
    EXPECT_EQ(Text(buffer, 5), "Linux");
  });
  EXPECT_THAT(log.Take(), Contains(HasSubstr("/proc/version is used without O_DIRECT")));
}

TEST_F(FileTest, BuffersOfSeveralArenasAndOfGoneOnesServeDirectTransfers) {
  MakeFile("a", Pattern(65536, 6));
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR, .direct = true});
    CO_ASSERT_OK(file);
    // More arenas, over time, than the ring registers at once.
    for (int i = 0; i < 80; ++i) {
      auto pool = BufferPool::Create(*executor_, device_, nullptr,
                                     {.name = "short-lived", .budget_bytes = 65536});
      CO_ASSERT_OK(pool);
      Buffer buffer = (*pool)->TryAllocate(8192).value();
      EXPECT_EQ((co_await file->Read(buffer.view(), 8192)).value_or(99), 8192u);
      EXPECT_TRUE(Text(buffer, 8192) == Pattern(65536, 6).substr(8192, 8192));
      // The operation that was at the buffer has let go of it.
      buffer.Reset();
      EXPECT_EQ((*pool)->stats().bytes_in_use, 0u);
    }
  });
}

// --- Modes ---------------------------------------------------------------------------------------

class BusyFileTest : public FileTest {
 protected:
  ExecutorMode mode() const override { return ExecutorMode::kBusy; }
};

TEST_F(BusyFileTest, CompletionsAreSeenWithoutSleeping) {
  MakeFile("a", "abc");
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"));
    CO_ASSERT_OK(file);
    Buffer buffer = Take(3);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ((co_await file->Read(buffer.view(), 0)).value_or(99), 3u);
    }
  });
  EXPECT_EQ(executor_->stats().sleeps, 0u);
}

}  // namespace file_test
}  // namespace verbena::internal
