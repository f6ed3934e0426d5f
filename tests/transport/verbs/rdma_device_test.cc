// Each RDMA device is listed once and describes itself, and a missing one is refused with the names
// of the others. Opening a siw device ignores SIGPIPE, unless the application handles it.

#include "verbena/transport/verbs/rdma_device.h"

#include <signal.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/verbs/siw.h"

namespace verbena::internal {
namespace rdma_device_test {

using ::testing::HasSubstr;

TEST(RdmaDeviceTest, ListingWorksWithAndWithoutHardwareAndNamesEachDeviceOnce) {
  std::set<std::string> names;
  for (const RdmaDeviceInfo& info : RdmaDevice::List()) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " is listed twice";
  }
}

TEST(RdmaDeviceTest, OpeningAMissingDeviceNamesThoseThatExist) {
  absl::StatusOr<std::unique_ptr<RdmaDevice>> device = RdmaDevice::Open("no_such_device");
  ASSERT_EQ(device.status().code(), absl::StatusCode::kNotFound) << device.status();
  const std::string message(device.status().message());
  EXPECT_THAT(message, HasSubstr("\"no_such_device\""));
  const std::vector<RdmaDeviceInfo> existing = RdmaDevice::List();
  for (const RdmaDeviceInfo& info : existing) EXPECT_THAT(message, HasSubstr(info.name));
  if (existing.empty()) {
    EXPECT_THAT(message, HasSubstr("none"));
  }
}

TEST(RdmaDeviceTest, EveryListedDeviceThatOpensReportsItself) {
  const std::vector<RdmaDeviceInfo> existing = RdmaDevice::List();
  if (existing.empty()) GTEST_SKIP() << "this host has no RDMA device";
  for (const RdmaDeviceInfo& info : existing) {
    absl::StatusOr<std::unique_ptr<RdmaDevice>> device = RdmaDevice::Open(info.name);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->name(), info.name);
    EXPECT_GT((*device)->attributes().max_qp, 0);
    EXPECT_EQ((*device)->capabilities().srq, (*device)->attributes().max_srq > 0);
    EXPECT_TRUE((*device)->QueryPort(1).ok());
    EXPECT_FALSE((*device)->QueryPort(255).ok());
    EXPECT_EQ((*device)->GetAsyncEvent().status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(VerbsErrorDeathTest, ACallThatSucceededHasNoError) {
  EXPECT_EQ(ErrorOfResult(-1, EAGAIN), EAGAIN);
  EXPECT_DEATH((void)ErrorOfResult(0, EAGAIN), "a call that succeeded has no error");
}

// Restores what SIGPIPE does.
class SigpipeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(sigaction(SIGPIPE, nullptr, &before_), 0); }
  void TearDown() override { ASSERT_EQ(sigaction(SIGPIPE, &before_, nullptr), 0); }

  // The handler of SIGPIPE once every device has been opened, if it was `handler` before.
  static void (*AfterOpening(void (*handler)(int)))(int) {
    struct sigaction action = {};
    action.sa_handler = handler;
    EXPECT_EQ(sigaction(SIGPIPE, &action, nullptr), 0);
    for (const RdmaDeviceInfo& info : RdmaDevice::List()) {
      EXPECT_TRUE(RdmaDevice::Open(info.name).ok());
    }
    EXPECT_EQ(sigaction(SIGPIPE, nullptr, &action), 0);
    return action.sa_handler;
  }
  static bool HasSiw() {
    for (const RdmaDeviceInfo& info : RdmaDevice::List()) {
      if (IsSiw(**RdmaDevice::Open(info.name))) return true;
    }
    return false;
  }

  struct sigaction before_ = {};
};

TEST_F(SigpipeTest, PostingToASiwPeerThatIsGoneDoesNotEndTheProcess) {
  EXPECT_EQ(AfterOpening(SIG_DFL), HasSiw() ? SIG_IGN : SIG_DFL);
}

TEST_F(SigpipeTest, TheApplicationsHandlerStays) {
  const auto handler = [](int) {};
  EXPECT_EQ(AfterOpening(handler), static_cast<void (*)(int)>(handler));
}

}  // namespace rdma_device_test
}  // namespace verbena::internal
