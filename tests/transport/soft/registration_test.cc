// Registering memory asks the kernel whether the process may read or write it, for the mappings of
// that memory alone, and on an older kernel by the list of all mappings.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "tests/support/forbidden_call.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace registration_test {

// A page that may be written, and behind it one that may only be read.
class RegistrationTest : public testing::Test {
 protected:
  RegistrationTest()
      : memory_(static_cast<std::byte*>(
            mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(static_cast<void*>(memory_), MAP_FAILED);
    EXPECT_EQ(mprotect(memory_ + page_, page_, PROT_READ), 0);
  }
  ~RegistrationTest() override {
    EXPECT_TRUE(device_->DeallocPd(pd_).ok()) << "memory is registered";
    munmap(memory_, 2 * page_);
  }

  bool MayRegister(size_t offset, size_t bytes, int access) {
    absl::StatusOr<ibv_mr*> region = device_->RegMr(pd_, memory_ + offset, bytes, access);
    return region.ok() && device_->DeregMr(*region).ok();
  }
  void ExpectTheRightsCount() {
    EXPECT_TRUE(MayRegister(0, page_, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_TRUE(MayRegister(page_ - 1, 1, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_FALSE(MayRegister(page_ - 1, 2, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_FALSE(MayRegister(page_, page_, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_TRUE(MayRegister(0, 2 * page_, 0));
    EXPECT_EQ(mprotect(memory_ + page_, page_, PROT_NONE), 0);
    EXPECT_FALSE(MayRegister(0, 2 * page_, 0));
    EXPECT_TRUE(MayRegister(0, page_, 0));
  }

  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::byte* const memory_;
  const std::unique_ptr<SoftDevice> device_ = SoftDevice::Create({.engine_thread = false}).value();
  ibv_pd* const pd_ = device_->AllocPd().value();
};

TEST_F(RegistrationTest, MemoryIsRegisteredWithTheRightsOfTheProcess) { ExpectTheRightsCount(); }

TEST_F(RegistrationTest, AnOlderKernelIsAskedForAllMappings) {
  WithForbidden(SYS_ioctl, ENOTTY, [this] { ExpectTheRightsCount(); });
}

TEST_F(RegistrationTest, AKernelThatFindsAMappingListsNone) {
  const UniqueFd maps(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  // A kernel that knows PROCMAP_QUERY looks at its argument.
  if (ioctl(maps.get(), _IOWR('f', 17, std::byte[104]), nullptr) == 0 || errno != EFAULT) {
    GTEST_SKIP() << "needs Linux 6.11";
  }
  WithForbidden(SYS_read, EIO, [this] { ExpectTheRightsCount(); });
}

}  // namespace registration_test
}  // namespace verbena::internal::soft
