// One-sided operations in another process's shared memory need nothing of that process, and its
// memory is not reused before a copy that is under way has ended.

#include <sched.h>

#include <cstring>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/transport/soft/copying_peer.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"

namespace verbena::internal::soft {
namespace direct_copy_test {

constexpr uint32_t kBytes = 4 << 20;

struct Process {
  Process() : device(SoftDevice::Create().value()), endpoint(*device, Options()) {
    EXPECT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  }
  static QpEndOptions Options() {
    return {.with_channel = true, .bytes = 2 * kBytes, .shared_arena = true};
  }

  std::unique_ptr<SoftDevice> device;
  QpEnd endpoint;
};

TEST(DirectCopyTest, OperationsInASharedArenaNeedNothingOfTheTarget) {
  Child child([](Side& side) {
    Process process;
    side.Connect(process.endpoint);
    side.Signal();
    side.Await();
    for (uint32_t i = 8; i < kBytes; i += 97) {
      ASSERT_EQ(process.endpoint.receive_buffer()[i], std::byte(i * 3));
    }
  });
  Process process;
  QpEnd& endpoint = process.endpoint;
  Side side = child.side();
  const Address theirs = side.Connect(endpoint);
  // One operation while it runs: from then on the connection stands.
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, endpoint.SendSge(0, 8),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  side.Await();
  child.Stop();
  for (uint32_t i = 0; i < kBytes; ++i) endpoint.send_buffer()[i] = std::byte(i * 3);
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 1, endpoint.SendSge(0, kBytes),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_READ, 2, endpoint.ReceiveSge(0, kBytes),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(endpoint.send_buffer(), endpoint.receive_buffer(), kBytes), 0);
  ibv_sge result = endpoint.ReceiveSge(0, 8);
  ibv_send_wr wr{};
  wr.sg_list = &result;
  wr.num_sge = 1;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic = {
      .remote_addr = theirs.receive_buffer, .compare_add = 1, .swap = 0, .rkey = theirs.rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(endpoint.qp(), &wr, &bad), 0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), endpoint.send_buffer(), 8), 0);
  child.Continue();
  side.Signal();
  child.Join();
}

// Writes all of the other side's buffer with 'w', over and over, until that fails.
void WriteForever(Side& side) {
  Process process;
  QpEnd& endpoint = process.endpoint;
  const Address theirs = side.Connect(endpoint);
  EXPECT_EQ(WriteUntilItFails(endpoint, theirs, kBytes), IBV_WC_RETRY_EXC_ERR);
  side.Signal();
}

TEST(DirectCopyTest, MemoryIsQuarantinedUntilAFrozenWriterIsOutOfItAndNothingLandsLater) {
  Child child(WriteForever);
  Process process;
  QpEnd& endpoint = process.endpoint;
  child.side().Connect(endpoint);
  const QpIdentity qp = process.device->IdentityOf(endpoint.qp());
  EXPECT_FALSE(process.device->Quiesced(qp)) << "it is in service";
  FreezeInsideACopy(child, endpoint);
  // The link ends at once, whatever the writer does.
  endpoint.ToState(IBV_QPS_ERR);
  endpoint.qp_handle().Reset();
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(process.device->Quiesced(qp));
  EXPECT_EQ(process.device->DeregMr(endpoint.mr()).code(), absl::StatusCode::kFailedPrecondition);
  child.Continue();
  while (!process.device->Quiesced(qp)) sched_yield();
  // The memory is ours again: not one byte may change any more.
  std::memset(endpoint.receive_buffer(), 'o', kBytes);
  child.side().Await();
  child.Join();
  const std::string ours(kBytes, 'o');
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), ours.data(), kBytes), 0);
}

// In this order programs end: then the CQ, which knows who is copying, is no more.
TEST(DirectCopyTest, MemoryIsQuarantinedAlsoOnceTheCqOfItsWriterIsGone) {
  Child child(WriteForever);
  Process process;
  QpEnd& endpoint = process.endpoint;
  child.side().Connect(endpoint);
  const QpIdentity qp = process.device->IdentityOf(endpoint.qp());
  FreezeInsideACopy(child, endpoint);
  endpoint.qp_handle().Reset();
  endpoint.cq_handle().Reset();
  EXPECT_FALSE(process.device->AwaitQuiesced(qp));
  EXPECT_EQ(process.device->DeregMr(endpoint.mr()).code(), absl::StatusCode::kFailedPrecondition);
  child.Continue();
  while (!process.device->Quiesced(qp)) sched_yield();
  EXPECT_TRUE(process.device->AwaitQuiesced(qp));
  EXPECT_TRUE(process.device->DeregMr(endpoint.mr()).ok());
  endpoint.mr_handle().Release();
  std::memset(endpoint.receive_buffer(), 'o', kBytes);
  child.side().Await();
  child.Join();
  const std::string ours(kBytes, 'o');
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), ours.data(), kBytes), 0);
}

TEST(DirectCopyTest, ARightIsWithdrawnOnceNoCopyByItIsUnderWay) {
  Child child([](Side& side) {
    Process process;
    QpEnd& endpoint = process.endpoint;
    const Address theirs = side.Connect(endpoint);
    EXPECT_EQ(WriteUntilItFails(endpoint, theirs, kBytes), IBV_WC_REM_ACCESS_ERR);
    side.Signal();
  });
  Process process;
  QpEnd& endpoint = process.endpoint;
  child.side().Connect(endpoint);
  FreezeInsideACopy(child, endpoint);
  ibv_qp_attr no_writes{};
  no_writes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(process.device->ModifyQp(endpoint.qp(), no_writes, IBV_QP_ACCESS_FLAGS).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  child.Continue();
  while (IsCopying(endpoint)) sched_yield();
  std::memset(endpoint.receive_buffer(), 'o', kBytes);
  child.side().Await();
  child.Join();
  const std::string ours(kBytes, 'o');
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), ours.data(), kBytes), 0);
}

TEST(DirectCopyTest, WriterThatDiesInTheMiddleOfACopyLeavesItsTargetQuiesced) {
  Child child(WriteForever);
  Process process;
  QpEnd& endpoint = process.endpoint;
  child.side().Connect(endpoint);
  const QpIdentity qp = process.device->IdentityOf(endpoint.qp());
  while (!IsCopying(endpoint)) sched_yield();
  child.Stop();
  endpoint.ToState(IBV_QPS_ERR);
  child.Kill();
  while (!process.device->Quiesced(qp)) sched_yield();
}

TEST(DirectCopyTest, ArenaInUseCannotBeFreedAndAFreedOneIsNoArena) {
  auto device = SoftDevice::Create().value();
  std::byte* memory = device->AllocateShared(1 << 20).value();
  PdHandle pd(*device, device->AllocPd().value());
  MrHandle mr(*device,
              device->RegMr(pd.get(), memory + 4096, 4096, IBV_ACCESS_LOCAL_WRITE).value());
  EXPECT_EQ(device->FreeShared(memory).code(), absl::StatusCode::kFailedPrecondition);
  mr.Reset();
  EXPECT_EQ(device->FreeShared(memory + 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(device->FreeShared(memory).ok());
  EXPECT_EQ(device->FreeShared(memory).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace direct_copy_test
}  // namespace verbena::internal::soft
