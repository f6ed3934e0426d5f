// Device::Quiesced answers for exactly the queue pair that it is asked about, even if another one
// has its number by then.

#include <sched.h>

#include <memory>

#include "gtest/gtest.h"
#include "tests/transport/soft/copying_peer.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {
namespace quiesced_test {

constexpr uint32_t kBytes = 4 << 20;

QpEndOptions Large() { return {.bytes = 2 * kBytes, .shared_arena = true}; }

// A device that has one queue pair at a time, so that its numbers come round soon.
std::unique_ptr<SoftDevice> OneAtATime() {
  return SoftDevice::Create({.max_queue_pairs = 1}).value();
}

// Destroys the endpoint's queue pair, and makes others until one has its number.
void ReuseNumber(QpEnd& endpoint) {
  const uint32_t number = endpoint.qp()->qp_num;
  int made = 0;
  do {
    endpoint.qp_handle().Reset();
    endpoint.qp_handle() = endpoint.AddQp();
    ASSERT_LT(++made, 2000) << "the number does not come back";
  } while (endpoint.qp()->qp_num != number);
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
}

TEST(QuiescedTest, TheNumbersNextOwnerInServiceHoldsBackNothing) {
  auto device = OneAtATime();
  auto other = SoftDevice::Create().value();
  QpEnd endpoint(*device, {});
  QpEnd peer(*other, {});
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), peer.gid(), peer.qp()->qp_num).ok());
  const QpIdentity first = device->IdentityOf(endpoint.qp());
  EXPECT_FALSE(device->Quiesced(first)) << "it is in service";
  endpoint.ToState(IBV_QPS_ERR);
  ReuseNumber(endpoint);
  ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), peer.gid(), peer.qp()->qp_num).ok());
  EXPECT_TRUE(device->Quiesced(first));
  EXPECT_FALSE(device->Quiesced(device->IdentityOf(endpoint.qp()))) << "it is in service";
}

void WriteForever(Side& side) {
  auto device = SoftDevice::Create().value();
  QpEnd endpoint(*device, Large());
  ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  const Address theirs = side.Connect(endpoint);
  (void)WriteUntilItFails(endpoint, theirs, kBytes);
}

TEST(QuiescedTest, TheNumbersNextOwnerDoesNotWaitForTheFrozenWriterOfTheLast) {
  Child child(WriteForever);
  auto device = OneAtATime();
  auto other = SoftDevice::Create().value();
  {
    QpEnd endpoint(*device, Large());
    QpEnd peer(*other, {});
    ASSERT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
    child.side().Connect(endpoint);
    const QpIdentity first = device->IdentityOf(endpoint.qp());
    FreezeInsideACopy(child, endpoint);
    endpoint.ToState(IBV_QPS_ERR);
    ReuseNumber(endpoint);
    ASSERT_TRUE(endpoint.ToRtr(endpoint.qp(), peer.gid(), peer.qp()->qp_num).ok());
    endpoint.ToState(IBV_QPS_ERR);
    EXPECT_TRUE(device->Quiesced(device->IdentityOf(endpoint.qp())));
    EXPECT_FALSE(device->Quiesced(first));
    child.Continue();
    while (!device->Quiesced(first)) sched_yield();
    child.Join();
  }
}

TEST(QuiescedTest, ADeviceOfNoQueuePairsIsRefused) {
  for (const uint32_t count : {0u, 16385u}) {
    EXPECT_EQ(SoftDevice::Create({.max_queue_pairs = count}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace quiesced_test
}  // namespace verbena::internal::soft
