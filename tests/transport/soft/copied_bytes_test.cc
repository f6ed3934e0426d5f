// Bytes of one-sided operations and SENDs take the shortest way that there is, and the device
// counts each on its way.

#include "verbena/transport/soft/copies.h"

#include <cstring>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

void PrintTo(const CopiedBytes& copied, std::ostream* out) {
  *out << "direct " << copied.direct_write_bytes << " + " << copied.direct_read_bytes << ", kernel "
       << copied.kernel_write_bytes << " + " << copied.kernel_read_bytes << ", ring "
       << copied.ring_bytes << ", SENDs " << copied.send_bytes << " + " << copied.receive_bytes
       << ", inline " << copied.inline_bytes;
}

namespace soft {
namespace copied_bytes_test {

constexpr uint32_t kBytes = 3 << 20;  // several chunks and turns
constexpr uint32_t kOdd = 1234567;
constexpr uint32_t kFirst = 8;

struct Process {
  Process(bool shared_arena, bool direct_copies)
      : device(SoftDevice::Create({.direct_copies = direct_copies}).value()),
        endpoint(*device,
                 {.with_channel = true, .bytes = 2 * kBytes, .shared_arena = shared_arena}) {
    EXPECT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  }

  std::unique_ptr<SoftDevice> device;
  QpEnd endpoint;
};

// A process that does nothing but serve, and says whether it copied what it is expected to.
auto Target(bool shared_arena, CopiedBytes expected) {
  return [shared_arena, expected](Side& side) {
    Process process(shared_arena, true);
    side.Connect(process.endpoint);
    side.Await();
    CopiedBytes copied = process.device->copied_bytes();
    // The initiator's first operation took the ring if it was faster than the arenas' mapping.
    if (copied.ring_bytes == expected.ring_bytes + kFirst) copied.ring_bytes -= kFirst;
    EXPECT_EQ(copied, expected);
    side.Signal();
  };
}

// The initiator: connected, and past its first operation, of kFirst bytes, so that the connection
// and the arenas of both stand.
struct Initiator {
  Initiator(Child& child, bool shared_arena, bool direct_copies)
      : process(shared_arena, direct_copies), theirs(child.side().Connect(process.endpoint)) {
    Do(IBV_WR_RDMA_WRITE, kFirst);
    before = process.device->copied_bytes();
  }

  void Do(ibv_wr_opcode opcode, uint32_t bytes) {
    QpEnd& endpoint = process.endpoint;
    const ibv_sge local =
        opcode == IBV_WR_RDMA_READ ? endpoint.ReceiveSge(0, bytes) : endpoint.SendSge(0, bytes);
    ASSERT_EQ(endpoint.PostOneSided(opcode, 1, local, theirs.receive_buffer, theirs.rkey), 0);
    ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  }

  CopiedBytes copied() const { return process.device->copied_bytes() - before; }

  Process process;
  Address theirs;
  CopiedBytes before;
};

void End(Child& child) {
  child.side().Signal();
  child.side().Await();
  child.Join();
}

TEST(CopiedBytesTest, WriteBetweenSharedArenasIsOneDirectCopy) {
  Child child(Target(true, {}));
  Initiator initiator(child, true, true);
  initiator.Do(IBV_WR_RDMA_WRITE, kBytes);
  EXPECT_EQ(initiator.copied(), CopiedBytes{.direct_write_bytes = kBytes});
  initiator.Do(IBV_WR_RDMA_WRITE, kOdd);
  EXPECT_EQ(initiator.copied(), CopiedBytes{.direct_write_bytes = kBytes + kOdd});
  End(child);
}

TEST(CopiedBytesTest, ReadBetweenSharedArenasIsOneDirectCopy) {
  Child child(Target(true, {}));
  Initiator initiator(child, true, true);
  initiator.Do(IBV_WR_RDMA_READ, kBytes);
  EXPECT_EQ(initiator.copied(), CopiedBytes{.direct_read_bytes = kBytes});
  End(child);
}

TEST(CopiedBytesTest, MemoryThatIsNotMappedIsCopiedByTheKernelOnce) {
  Child child(Target(false, {.ring_bytes = kFirst}));
  Initiator initiator(child, false, true);
  initiator.Do(IBV_WR_RDMA_WRITE, kBytes);
  initiator.Do(IBV_WR_RDMA_READ, kOdd);
  if (initiator.copied().kernel_write_bytes == 0) {
    GTEST_SKIP() << "process_vm_writev is refused here";
  }
  EXPECT_EQ(initiator.copied(),
            (CopiedBytes{.kernel_write_bytes = kBytes, .kernel_read_bytes = kOdd}));
  End(child);
}

TEST(CopiedBytesTest, WithoutDirectCopiesEachByteIsCopiedIntoTheRingAndOutOfIt) {
  Child child(Target(true, {.ring_bytes = kFirst + kBytes + kOdd}));
  Initiator initiator(child, true, false);
  initiator.Do(IBV_WR_RDMA_WRITE, kBytes);
  initiator.Do(IBV_WR_RDMA_READ, kOdd);
  EXPECT_EQ(initiator.copied(), CopiedBytes{.ring_bytes = kBytes + kOdd});
  End(child);
}

struct TwoDevices {
  TwoDevices() { Connect(a, b); }

  std::unique_ptr<SoftDevice> device_a =
      SoftDevice::Create({.name = "a", .engine_thread = false, .shared_memory = false}).value();
  std::unique_ptr<SoftDevice> device_b =
      SoftDevice::Create({.name = "b", .engine_thread = false, .shared_memory = false}).value();
  QpEnd a{*device_a, {}};
  QpEnd b{*device_b, {}};
};

TEST(CopiedBytesTest, SendsAreCountedApart) {
  TwoDevices devices;
  ASSERT_EQ(devices.b.PostReceive(1, devices.b.ReceiveSge(0, 1000)), 0);
  ASSERT_EQ(devices.a.PostSend(2, devices.a.SendSge(0, 900)), 0);
  ibv_wc wc{};
  while (ibv_poll_cq(devices.b.cq(), 1, &wc) == 0) devices.device_a->Step();
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(devices.device_a->copied_bytes(), CopiedBytes{.send_bytes = 900});
  EXPECT_EQ(devices.device_b->copied_bytes(), CopiedBytes{.receive_bytes = 900});
}

TEST(CopiedBytesTest, InlineDataThatIsRefusedIsCountedAsKeptAside) {
  TwoDevices devices;  // nothing is posted at b
  ASSERT_EQ(devices.a.PostSend(1, devices.a.SendSge(0, 100), IBV_SEND_SIGNALED | IBV_SEND_INLINE),
            0);
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(devices.b.cq(), 1, &wc), 0);
  ASSERT_EQ(ibv_poll_cq(devices.a.cq(), 1, &wc), 0);
  EXPECT_EQ(devices.device_a->copied_bytes(),
            (CopiedBytes{.send_bytes = 100, .inline_bytes = 100}));
}

TEST(CopiedBytesTest, ACqsCopiedBytesOutliveIt) {
  auto device = SoftDevice::Create().value();
  {
    QpEnd a(*device, {});
    QpEnd b(*device, {});
    Connect(a, b);
    ASSERT_EQ(a.PostOneSided(IBV_WR_RDMA_WRITE, 1, a.SendSge(0, 5000),
                             reinterpret_cast<uint64_t>(b.receive_buffer()), b.mr()->rkey),
              0);
    ASSERT_EQ(AwaitByPolling(a.cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(device->copied_bytes(), CopiedBytes{.direct_write_bytes = 5000});
  }
  EXPECT_EQ(device->copied_bytes(), CopiedBytes{.direct_write_bytes = 5000});
}

}  // namespace copied_bytes_test
}  // namespace soft
}  // namespace verbena::internal
