// Proves what programs may take for granted of libibverbs on soft devices: identity of a device,
// peers found by LID or GID, events, and errno instead of a crash for misuse.

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "tests/transport/preload/verbs_end.h"
#include "verbena/transport/preload/objects.h"

namespace verbena::internal::preload {
namespace verbs_calls_test {

// Before the first test asks for devices.
const int kTwoDevices = setenv("VERBENA_SOFT_DEVICES", "2", /*overwrite=*/1);

class VerbsCallsTest : public PairTest {};

TEST(DevicesTest, ListsAsManyAsAsked) {
  ASSERT_EQ(kTwoDevices, 0);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(ibv_get_device_name(list[0]), "soft0");
  EXPECT_STREQ(ibv_get_device_name(list[1]), "soft1");
  EXPECT_EQ(list[2], nullptr);
  EXPECT_NE(ibv_get_device_guid(list[0]), ibv_get_device_guid(list[1]));
  ibv_context* context = ibv_open_device(list[1]);
  ASSERT_NE(context, nullptr);
  ibv_device_attr attributes{};
  ASSERT_EQ(ibv_query_device(context, &attributes), 0);
  EXPECT_EQ(attributes.node_guid, ibv_get_device_guid(list[1]));
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_free_device_list(list);
  // A list that is freed twice is left alone.
  ibv_free_device_list(list);
}

TEST(DevicesTest, ADeviceThatIsOpenedAgainHasItsLidAgain) {
  uint16_t lids[2];
  for (uint16_t& lid : lids) {
    ibv_context* context = OpenDevice(0);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
    lid = port.lid;
    ASSERT_EQ(ibv_close_device(context), 0);
  }
  EXPECT_NE(lids[0], 0);
  EXPECT_EQ(lids[0], lids[1]);
}

TEST(PortTest, ATextThatIsNoPortOpensNoDevice) {
  ASSERT_EQ(setenv("VERBENA_SOFT_ADDRESS", "127.0.0.1", /*overwrite=*/1), 0);
  // The last one is for soft1 alone: it would have port 65536.
  for (const char* port : {"70000", "-1", "http", "1x", "65535"}) {
    ASSERT_EQ(setenv("VERBENA_SOFT_PORT", port, /*overwrite=*/1), 0);
    EXPECT_EQ(OpenDevice(1), nullptr) << port;
    EXPECT_EQ(errno, EINVAL) << port;
  }
  unsetenv("VERBENA_SOFT_PORT");
  // As if there were no address: the wire of this host alone.
  ASSERT_EQ(setenv("VERBENA_SOFT_ADDRESS", "", /*overwrite=*/1), 0);
  ibv_context* context = OpenDevice(1);
  unsetenv("VERBENA_SOFT_ADDRESS");
  ASSERT_NE(context, nullptr);
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfd);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(ProfileTest, AtomicOperationsThatAProfileWithholdsAreNotAnnounced) {
  const std::string path = ::testing::TempDir() + "/no_atomics.profile";
  for (const bool has : {true, false}) {
    std::ofstream(path) << "atomics = " << (has ? "true" : "false") << "\n";
    ASSERT_EQ(setenv("VERBENA_SOFT_PROFILE", path.c_str(), /*overwrite=*/1), 0);
    ibv_context* context = OpenDevice(0);
    unsetenv("VERBENA_SOFT_PROFILE");
    ASSERT_NE(context, nullptr);
    ibv_device_attr attributes{};
    ASSERT_EQ(ibv_query_device(context, &attributes), 0);
    EXPECT_EQ(attributes.atomic_cap, has ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
}

TEST_F(VerbsCallsTest, AllContextsOfADeviceHaveOneAddress) {
  const ibv_ah_attr first = a_->Address(/*by_gid=*/true);
  const ibv_ah_attr second = b_->Address(/*by_gid=*/true);
  EXPECT_EQ(first.dlid, second.dlid);
  EXPECT_EQ(std::memcmp(&first.grh.dgid, &second.grh.dgid, sizeof(ibv_gid)), 0);
  ibv_gid_entry entries[4];
  ASSERT_EQ(ibv_query_gid_table(contexts_[0], entries, 4, 0), 1);
  EXPECT_EQ(std::memcmp(&entries[0].gid, &first.grh.dgid, sizeof(ibv_gid)), 0);
}

TEST(AddressTest, ALidAloneFindsThePeer) {
  ibv_context* contexts[2] = {OpenDevice(0), OpenDevice(1)};
  {
    VerbsEnd a(contexts[0]);
    VerbsEnd b(contexts[1]);
    ASSERT_NE(a.Address(false).dlid, b.Address(false).dlid);
    ASSERT_NO_FATAL_FAILURE(a.Connect(b, /*by_gid=*/false));
    ASSERT_NO_FATAL_FAILURE(b.Connect(a, /*by_gid=*/false));
    ASSERT_EQ(b.PostReceive(2), 0);
    std::strcpy(a.memory.data(), "hello");
    ASSERT_EQ(a.PostSend(1, a.Sge(/*upper=*/false, 5)), 0);
    ASSERT_EQ(a.Poll().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.Poll().wr_id, 2u);
    EXPECT_EQ(b.Received(5), "hello");
    // The program finds the address that it gave.
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(ibv_query_qp(a.qp, &attributes, IBV_QP_AV, &init), 0);
    EXPECT_EQ(attributes.ah_attr.is_global, 0);
    EXPECT_EQ(attributes.ah_attr.dlid, b.Address(false).dlid);
    EXPECT_EQ(init.send_cq, ibv_cq_ex_to_cq(a.cq));
  }
  for (ibv_context* context : contexts) EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(VerbsCallsTest, AnUnknownLkeyFailsTheWork) {
  ibv_sge sge = a_->Sge(/*upper=*/false, 4);
  sge.lkey ^= 0xff00;
  ASSERT_EQ(a_->PostSend(1, sge), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(VerbsCallsTest, AnObjectThatIsGoneGivesAnErrno) {
  ibv_qp* qp = std::exchange(a_->qp, nullptr);
  ibv_cq* cq = ibv_cq_ex_to_cq(std::exchange(a_->cq, nullptr));
  ibv_mr* mr = std::exchange(a_->mr, nullptr);
  ibv_pd* pd = std::exchange(a_->pd, nullptr);
  ibv_comp_channel* channel = std::exchange(a_->channel, nullptr);
  EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  ibv_qp_attr attributes{};
  EXPECT_EQ(ibv_destroy_qp(qp), EINVAL);
  EXPECT_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(ibv_destroy_cq(cq), EINVAL);
  EXPECT_EQ(ibv_dereg_mr(mr), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(pd), EINVAL);
  EXPECT_EQ(ibv_alloc_pd(nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST(OpenTest, ADeviceWithoutAThreadIsNotOpened) {
  WithForbidden(SYS_clone3, EAGAIN, [] {
    EXPECT_EQ(OpenDevice(0), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  });
  ibv_context* context = OpenDevice(0);
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(CloseTest, AContextIsClosedOnce) {
  ibv_context* context = OpenDevice(0);
  EXPECT_EQ(ibv_close_device(context), 0);
  EXPECT_EQ(ibv_close_device(context), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(RegistryDeathTest, AnObjectIsRegisteredOnceAndDestroyedByWhoeverBegan) {
  int object = 0;
  Registry& registry = Registry::Get();
  registry.Add(Kind::kDomain, &object, &object, nullptr);
  EXPECT_DEATH(registry.Add(Kind::kRegion, &object, &object, nullptr),
               "an object is registered where one is alive");
  EXPECT_DEATH(registry.EndDestroying(&object, true), "nobody destroys");
  EXPECT_NE(registry.BeginDestroying(Kind::kDomain, &object), nullptr);
  registry.EndDestroying(&object, true);
  EXPECT_EQ(registry.Find(Kind::kDomain, &object), nullptr);
}

TEST(CloseTest, AContextTakesItsObjectsAlong) {
  ibv_context* context = OpenDevice(0);
  ibv_pd* pd = nullptr;
  {
    VerbsEnd left(context, /*shared_receives=*/true);
    pd = left.pd;
    left.qp = nullptr;
    left.srq = nullptr;
    left.cq = nullptr;
    left.channel = nullptr;
    left.mr = nullptr;
    left.pd = nullptr;
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), EINVAL);
}

TEST_F(VerbsCallsTest, BadArgumentsGiveAnErrno) {
  EXPECT_EQ(ibv_create_cq(contexts_[0], 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(contexts_[0], 8, nullptr, nullptr, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(contexts_[0], 8, nullptr, b_->channel, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(contexts_[0], 2, &port), EINVAL);
  ibv_gid gid{};
  EXPECT_EQ(ibv_query_gid(contexts_[0], 1, 1, &gid), -1);
  const int remote_alone = IBV_ACCESS_REMOTE_WRITE;
  EXPECT_EQ(ibv_reg_mr(a_->pd, a_->memory.data(), 64, remote_alone), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // A CQ of another context.
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(b_->cq);
  init.qp_type = IBV_QPT_RC;
  EXPECT_EQ(ibv_create_qp(a_->pd, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(VerbsCallsTest, ACallThatSoftDevicesCannotServeIsRefused) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(a_->cq);
  init.qp_type = IBV_QPT_UD;
  EXPECT_EQ(ibv_create_qp(a_->pd, &init), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_ah_attr address{};
  EXPECT_EQ(ibv_create_ah(a_->pd, &address), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_alloc_mw(a_->pd, IBV_MW_TYPE_1), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_cq_init_attr_ex with_time{};
  with_time.cqe = 8;
  with_time.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  EXPECT_EQ(ibv_create_cq_ex(contexts_[0], &with_time), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_reg_mr_iova(a_->pd, a_->memory.data(), 64, 4096, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(VerbsCallsTest, AnEventEndsAWait) {
  ASSERT_EQ(ibv_req_notify_cq(ibv_cq_ex_to_cq(b_->cq), 0), 0);
  ASSERT_EQ(b_->PostReceive(1), 0);
  std::thread sender([&] { EXPECT_EQ(a_->PostSend(1, a_->Sge(/*upper=*/false, 4)), 0); });
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(b_->channel, &cq, &cq_context), 0);
  EXPECT_EQ(cq, ibv_cq_ex_to_cq(b_->cq));
  ibv_ack_cq_events(cq, 1);
  sender.join();
  EXPECT_EQ(b_->Poll().status, IBV_WC_SUCCESS);
}

TEST_F(VerbsCallsTest, ANonBlockingChannelSaysThatNothingWaits) {
  ASSERT_EQ(fcntl(b_->channel->fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(b_->channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(VerbsCallsTest, AnAsynchronousEventGoesToTheContextOfItsObject) {
  VerbsEnd shared(contexts_[1], /*shared_receives=*/true);
  ASSERT_NO_FATAL_FAILURE(shared.Connect(*a_, /*by_gid=*/true));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(shared.qp, &attributes, IBV_QP_STATE), 0);
  ibv_async_event event{};
  ASSERT_EQ(ibv_get_async_event(contexts_[1], &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, shared.qp);
  ibv_ack_async_event(&event);
  ASSERT_EQ(fcntl(contexts_[0]->async_fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(ibv_get_async_event(contexts_[0], &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

// This process's threads: those that block SIGUSR1, and those that do not.
struct Threads {
  int quiet = 0;
  int others = 0;
};

Threads CountThreads() {
  Threads threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string word;
    while (status >> word && word != "SigBlk:") {
    }
    uint64_t blocked = 0;
    if (!(status >> std::hex >> blocked)) continue;
    ++((blocked >> (SIGUSR1 - 1) & 1) != 0 ? threads.quiet : threads.others);
  }
  return threads;
}

// The test's own thread blocks nothing.
TEST_F(VerbsCallsTest, TheDevicesThreadsTakeNoSignals) {
  // A thread that an earlier test has joined may be listed until the kernel is done with it.
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Threads threads = CountThreads();
  while (threads.others > 1 && std::chrono::steady_clock::now() < late) {
    std::this_thread::yield();
    threads = CountThreads();
  }
  EXPECT_EQ(threads.others, 1);
  // The engine, and who hands events on.
  EXPECT_GE(threads.quiet, 2);
}

TEST_F(VerbsCallsTest, ARegionThatIsReregisteredKeepsItsKeys) {
  const uint32_t key = b_->mr->rkey;
  ASSERT_EQ(
      ibv_rereg_mr(b_->mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE),
      0);
  EXPECT_EQ(b_->mr->rkey, key);
  ibv_qp_ex* post = ibv_qp_to_qp_ex(a_->qp);
  const ibv_sge sge = a_->Sge(/*upper=*/false, 4);
  ibv_wr_start(post);
  ibv_wr_rdma_write(post, key, b_->Sge(/*upper=*/true, 4).addr);
  ibv_wr_set_sge(post, sge.lkey, sge.addr, sge.length);
  ASSERT_EQ(ibv_wr_complete(post), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_rereg_mr(b_->mr, 0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
}

TEST_F(VerbsCallsTest, AnOverrunThatIsToBeIgnoredBreaksNothing) {
  VerbsEnd many(contexts_[0]);
  VerbsEnd one(contexts_[1], /*shared_receives=*/false, /*cqe=*/1,
               IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
  ASSERT_NO_FATAL_FAILURE(many.Connect(one, /*by_gid=*/true));
  ASSERT_NO_FATAL_FAILURE(one.Connect(many, /*by_gid=*/true));
  // Armed: what arrives waits in the queue, which has room for the first.
  ASSERT_EQ(ibv_req_notify_cq(ibv_cq_ex_to_cq(one.cq), 0), 0);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(one.PostReceive(i), 0);
    ASSERT_EQ(many.PostSend(i, many.Sge(/*upper=*/false, 4)), 0);
    EXPECT_EQ(many.Poll().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(one.Poll().wr_id, 1u);
  ASSERT_EQ(one.PostReceive(4), 0);
  ASSERT_EQ(many.PostSend(4, many.Sge(/*upper=*/false, 4)), 0);
  EXPECT_EQ(many.Poll().status, IBV_WC_SUCCESS);
  EXPECT_EQ(one.Poll().wr_id, 4u);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(one.channel, &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
}

TEST_F(VerbsCallsTest, AQueueOfCompletionsGrowsAndShrinks) {
  ibv_cq* cq = ibv_cq_ex_to_cq(b_->cq);
  ASSERT_EQ(b_->PostReceive(1), 0);
  ASSERT_EQ(b_->PostReceive(2), 0);
  // Armed: what arrives waits in the queue.
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  ASSERT_EQ(a_->PostSend(1, a_->Sge(/*upper=*/false, 4)), 0);
  ASSERT_EQ(a_->PostSend(2, a_->Sge(/*upper=*/false, 4)), 0);
  EXPECT_EQ(a_->Poll().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a_->Poll().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_resize_cq(cq, 1), EINVAL);
  ASSERT_EQ(ibv_resize_cq(cq, 1000), 0);
  EXPECT_EQ(cq->cqe, 1000);
  EXPECT_EQ(b_->Poll().wr_id, 1u);
  EXPECT_EQ(b_->Poll().wr_id, 2u);
  EXPECT_EQ(ibv_resize_cq(cq, 1), 0);
  ibv_cq* event_cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(b_->channel, &event_cq, &cq_context), 0);
  ibv_ack_cq_events(event_cq, 1);
}

}  // namespace verbs_calls_test
}  // namespace verbena::internal::preload
