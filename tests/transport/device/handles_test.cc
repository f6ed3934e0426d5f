// A handle destroys its verbs object exactly once, through its own device, and logs a destruction
// that the device refuses.

#include "verbena/transport/device/device.h"

#include <infiniband/verbs.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/device/fake_device.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {
namespace handles_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DeviceHandleTest, DestroysItsObjectOnceThroughItsDevice) {
  FakeDevice device;
  ibv_pd pd{};
  {
    PdHandle owner(device, &pd);
  }
  EXPECT_THAT(device.destroyed, ElementsAre(&pd));
}

TEST(DeviceHandleTest, AnEmptyHandleDestroysNothing) {
  FakeDevice device;
  {
    PdHandle empty;
  }
  {
    PdHandle null(device, nullptr);
  }
  EXPECT_THAT(device.destroyed, IsEmpty());
}

TEST(DeviceHandleTest, AMovedFromHandleDoesNotDestroyASecondTime) {
  FakeDevice device;
  ibv_cq cq{};
  CqHandle from(device, &cq);
  {
    CqHandle to(std::move(from));
    EXPECT_FALSE(from);  // NOLINT(bugprone-use-after-move): the state after a move is the subject
    EXPECT_EQ(to.get(), &cq);
  }
  EXPECT_THAT(device.destroyed, ElementsAre(&cq));
}

TEST(DeviceHandleTest, AssignmentDestroysWhatWasHeldBefore) {
  FakeDevice device;
  ibv_qp first{};
  ibv_qp second{};
  QpHandle handle(device, &first);
  handle = QpHandle(device, &second);
  EXPECT_THAT(device.destroyed, ElementsAre(&first));
  handle.Reset();
  EXPECT_THAT(device.destroyed, ElementsAre(&first, &second));
}

TEST(DeviceHandleTest, AssigningAHandleToItselfKeepsItsObject) {
  FakeDevice device;
  ibv_srq srq{};
  SrqHandle handle(device, &srq);
  SrqHandle& alias = handle;
  handle = std::move(alias);
  EXPECT_EQ(handle.get(), &srq);
  EXPECT_THAT(device.destroyed, IsEmpty());
}

TEST(DeviceHandleTest, AssignmentToAnEmptyHandleTakesTheOthersDevice) {
  FakeDevice device;
  ibv_mr mr{};
  {
    MrHandle handle;
    handle = MrHandle(device, &mr);
    EXPECT_EQ(&handle.device(), &device);
  }
  EXPECT_THAT(device.destroyed, ElementsAre(&mr));
}

TEST(DeviceHandleTest, ARefusedDestructionIsLoggedWithDeviceAndReason) {
  std::string message;
  SetLogSink([&message](const LogRecord& record) {
    if (record.level == LogLevel::kError) message += record.text;
  });
  FakeDevice device;
  device.destroy_status = absl::FailedPreconditionError("ibv_dealloc_pd: EBUSY");
  ibv_pd pd{};
  {
    PdHandle owner(device, &pd);
  }
  SetLogSink(nullptr);
  EXPECT_THAT(message, AllOf(HasSubstr("fake0"), HasSubstr("EBUSY")));
}

TEST(DeviceHandleTest, KeptMemoryExcusesOnlyWhatItHolds) {
  std::string message;
  SetLogSink([&message](const LogRecord& record) { message += record.text; });
  FakeDevice device;
  device.destroy_status = absl::FailedPreconditionError("EBUSY");
  device.KeepMemory();
  ibv_mr mr{};
  ibv_mw mw{};
  ibv_pd pd{};
  {
    PdHandle domain(device, &pd);
    MwHandle window(device, &mw);
    MrHandle region(device, &mr);
  }
  EXPECT_THAT(message, IsEmpty());
  ibv_cq cq{};
  {
    CqHandle owner(device, &cq);
  }
  SetLogSink(nullptr);
  EXPECT_THAT(message, HasSubstr("EBUSY"));
}

}  // namespace handles_test
}  // namespace verbena::internal
