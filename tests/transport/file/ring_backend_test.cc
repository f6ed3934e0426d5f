// Files and buffers of direct transfers are registered with the ring while they are used, and not
// afterwards. Without registration, files work all the same.

#include "verbena/transport/file/ring_backend.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/file/file_fixture.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/file/file_service.h"
#include "verbena/transport/memory/registered_memory.h"

namespace verbena::internal {
namespace {

using testing::Contains;
using testing::HasSubstr;

class RingBackendTest : public FileTest {
 protected:
  RingBackend& backend() {
    return dynamic_cast<RingBackend&>(FileService::Of(*executor_).value()->backend());
  }
  // Reads and writes; whether that was with O_DIRECT.
  Task<void> UseFile(bool& direct) {
    absl::StatusOr<File> file =
        co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT, .direct = true});
    CO_ASSERT_OK(file);
    direct = file->direct();
    Buffer buffer = TakeWith(std::string(8192, 'x'));
    EXPECT_TRUE((co_await file->Write(buffer.view(), 0)).ok());
    buffer.data()[4096] = 'y';
    EXPECT_EQ((co_await file->Read(buffer.view(), 0)).value_or(0), 8192u);
    EXPECT_EQ(buffer.data()[4096], 'x');
  }
  // Whether the kernel refused to register memory: RLIMIT_MEMLOCK bounds what all processes of the
  // user lock together, and others may have used it up.
  static bool WasRefused(CapturedLog& log) {
    return testing::Matches(Contains(HasSubstr("see RLIMIT_MEMLOCK")))(log.Take());
  }
};

constexpr char kUsedUp[] = "other processes of this user have locked all memory that they may";

TEST_F(RingBackendTest, FilesAndRegionsOfDirectTransfersAreRegisteredWhileTheyAreUsed) {
  CapturedLog log;
  bool direct = false;
  size_t registered = 0;
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file =
        co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT, .direct = true});
    CO_ASSERT_OK(file);
    EXPECT_EQ(backend().registered_files(), 1u);
    EXPECT_EQ(backend().registered_buffers(), 0u);
    Buffer buffer = Take(8192);
    EXPECT_TRUE((co_await file->Write(buffer.view(), 0)).ok());
    EXPECT_TRUE((co_await file->Write(buffer.Slice(0, 4096), 8192)).ok());
    direct = file->direct();
    registered = backend().registered_buffers();
    buffer.Reset();
    pool_.reset();
    EXPECT_EQ(backend().registered_buffers(), 0u);
    EXPECT_TRUE((co_await file->Close()).ok());
    EXPECT_EQ(backend().registered_files(), 0u);
  });
  if (WasRefused(log)) GTEST_SKIP() << kUsedUp;
  EXPECT_EQ(registered, direct ? 1u : 0u);
}

TEST_F(RingBackendTest, OrdinaryTransfersRegisterNoMemory) {
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file = co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT});
    CO_ASSERT_OK(file);
    Buffer buffer = TakeWith("abc");
    EXPECT_TRUE((co_await file->Write(buffer.view(), 0)).ok());
    EXPECT_EQ(backend().registered_buffers(), 0u);
  });
}

// Its home's thread may unmap it, or enter it in a ring of its own, at any moment.
TEST_F(RingBackendTest, MemoryOfAnotherExecutorIsNotRegistered) {
  const auto elsewhere = Executor::Create({.waiter = kTestedWaiter}).value();
  const auto pool = BufferPool::Create(*elsewhere, device_, nullptr, {.name = "other"}).value();
  Buffer buffer = pool->TryAllocate(4096).value();
  Run([&]() -> Task<void> {
    absl::StatusOr<File> file =
        co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT, .direct = true});
    CO_ASSERT_OK(file);
    EXPECT_TRUE((co_await file->Write(buffer.view(), 0)).ok());
    EXPECT_EQ((co_await file->Read(buffer.view(), 0)).value_or(0), 4096u);
    EXPECT_EQ(backend().registered_buffers(), 0u);
  });
}

// Memory that a user has registered already.
class UsersMemoryTest : public RingBackendTest {
 protected:
  static constexpr size_t kBytes = 1 << 20;

  // Files of `home` may use it.
  std::unique_ptr<RegisteredMemory> Register(Scheduler* home) {
    return RegisteredMemory::Register(device_, nullptr, memory_.get(), kBytes, 0, home).value();
  }
  // Writes some of it and reads it back; whether that was with O_DIRECT.
  bool UseBy(RegisteredMemory& memory) {
    bool direct = false;
    Run([&]() -> Task<void> {
      absl::StatusOr<File> file =
          co_await File::Open(Path("a"), {.flags = O_RDWR | O_CREAT, .direct = true});
      CO_ASSERT_OK(file);
      direct = file->direct();
      Buffer from = memory.Wrap(4096, 8192).value();
      Buffer to = memory.Wrap(65536, 8192).value();
      std::memset(from.data(), 'x', from.size());
      EXPECT_TRUE((co_await file->Write(from.view(), 0)).ok());
      EXPECT_EQ((co_await file->Read(to.view(), 0)).value_or(0), 8192u);
      EXPECT_EQ(Text(to, 8192), std::string(8192, 'x'));
    });
    return direct;
  }

  const std::unique_ptr<void, decltype(&std::free)> memory_{std::aligned_alloc(4096, kBytes),
                                                            &std::free};
};

TEST_F(UsersMemoryTest, IsAFixedBufferOfItsHomesRingUntilItLeaves) {
  CapturedLog log;
  std::unique_ptr<RegisteredMemory> memory = Register(executor_.get());
  const bool direct = UseBy(*memory);
  const bool refused = WasRefused(log);
  EXPECT_EQ(backend().registered_buffers(), direct && !refused ? 1u : 0u);
  Run([&]() -> Task<void> {
    EXPECT_TRUE(memory->LeaveRing());
    co_return;
  });
  EXPECT_EQ(backend().registered_buffers(), 0u);
  std::thread([&] { memory.reset(); }).join();
  if (refused) GTEST_SKIP() << kUsedUp;
}

TEST_F(UsersMemoryTest, IsNoFixedBufferWithoutAHome) {
  std::unique_ptr<RegisteredMemory> memory = Register(nullptr);
  UseBy(*memory);
  EXPECT_EQ(backend().registered_buffers(), 0u);
}

TEST_F(UsersMemoryTest, MayOutliveItsHome) {
  std::unique_ptr<RegisteredMemory> memory = Register(executor_.get());
  UseBy(*memory);
  executor_.reset();
  memory.reset();
}

TEST_F(UsersMemoryTest, DestroyingItOnAnotherThreadThanItsRingsAborts) {
  CapturedLog log;
  std::unique_ptr<RegisteredMemory> memory = Register(executor_.get());
  if (!UseBy(*memory)) GTEST_SKIP() << "this file system knows no O_DIRECT";
  if (WasRefused(log)) GTEST_SKIP() << kUsedUp;
  EXPECT_DEATH(memory.reset(), "is in the io_uring of another thread");
  executor_.reset();
}

TEST_F(RingBackendTest, FilesWorkIfNothingCanBeRegisteredAndTheLogSaysSo) {
  WithForbidden(SYS_io_uring_register, EPERM, [&] {
    CapturedLog log;
    bool direct = false;
    Run([&]() -> Task<void> { co_await UseFile(direct); });
    EXPECT_EQ(backend().registered_files(), 0u);
    EXPECT_EQ(backend().registered_buffers(), 0u);
    EXPECT_THAT(log.Take(), Contains(HasSubstr("without registering them or their buffers: "
                                               "PERMISSION_DENIED: io_uring_register_files")));
  });
}

// As when RLIMIT_MEMLOCK is reached: the tables are there, and what should enter is refused.
TEST_F(RingBackendTest, ARefusedRegistrationIsNotAskedForAgain) {
  EXPECT_EQ(backend().registered_files(), 0u);  // makes it
  WithForbidden(SYS_io_uring_register, ENOMEM, [&] {
    CapturedLog log;
    bool direct = false;
    Run([&]() -> Task<void> { co_await UseFile(direct); });
    EXPECT_EQ(backend().registered_files(), 0u);
    EXPECT_EQ(backend().registered_buffers(), 0u);
    if (direct) {
      EXPECT_THAT(log.Take(), Contains(HasSubstr("RLIMIT_MEMLOCK")).Times(1));
    }
  });
}

TEST_F(RingBackendTest, UseOfAnOperationThatIsOverIsReported) {
#ifdef VERBENA_HAS_ASAN
  const FileOperation* operation = nullptr;
  Run([&]() -> Task<void> {
    FileService& service = *FileService::Of(*executor_).value();
    operation = &service.Start({.kind = FileRequest::Kind::kOpen, .path = Path("none")}, nullptr);
    while (service.in_flight() > 0) (co_await Yield()).IgnoreError();
  });
  EXPECT_DEATH([&] { return operation->started; }(), "use-after-poison");
#else
  GTEST_SKIP() << "needs AddressSanitizer";
#endif
}

}  // namespace
}  // namespace verbena::internal
