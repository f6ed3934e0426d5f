// Proves that librdmacm's calls connect, refuse and disconnect two ids of one process as its manual
// says: the events, their order and contents, and the states of the queue pairs.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/forbidden_call.h"
#include "tests/support/held_port.h"
#include "tests/transport/preload/rdma_cm_ends.h"
#include "tests/transport/preload/rdma_cm_fake_verbs.h"

namespace verbena::internal::preload {
namespace {

using RdmaCmConnectTest = RdmaCmEnds;
using States = std::vector<ibv_qp_state>;

const States kInService = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};

TEST_F(RdmaCmConnectTest, BothQueuePairsAreInServiceWhenBothHear) {
  Connect();
  FakeQueuePair& ours = Fake(client->qp);
  FakeQueuePair& theirs = Fake(server->qp);
  ASSERT_EQ(ours.States(), kInService);
  ASSERT_EQ(theirs.States(), kInService);
  const ibv_qp_attr& receive = ours.modifications[1].attributes;
  EXPECT_EQ(receive.dest_qp_num, theirs.qp_num);
  EXPECT_EQ(receive.ah_attr.dlid, kFakeLid);
  EXPECT_EQ(receive.ah_attr.grh.dgid.raw[15], 15);
  EXPECT_EQ(receive.path_mtu, IBV_MTU_4096);
  EXPECT_EQ(theirs.modifications[1].attributes.dest_qp_num, ours.qp_num);
  // Each expects the sequence that the other starts with.
  EXPECT_EQ(receive.rq_psn, theirs.modifications[2].attributes.sq_psn);
  EXPECT_EQ(theirs.modifications[1].attributes.rq_psn, ours.modifications[2].attributes.sq_psn);
}

TEST_F(RdmaCmConnectTest, TheQueuePairTakesItsIdsAckTimeout) {
  uint8_t timeout = 21;
  ASSERT_EQ(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), 0);
  Connect();
  EXPECT_EQ(Fake(client->qp).modifications[2].attributes.timeout, 21);
  EXPECT_EQ(Fake(server->qp).modifications[2].attributes.timeout, 14);
}

TEST_F(RdmaCmConnectTest, TheQueuePairTakesItsIdsTypeOfServiceAsTrafficClass) {
  uint8_t service = 106;
  ASSERT_EQ(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &service, 1), 0);
  Connect();
  EXPECT_EQ(Fake(client->qp).modifications[1].attributes.ah_attr.grh.traffic_class, 106);
  EXPECT_EQ(Fake(server->qp).modifications[1].attributes.ah_attr.grh.traffic_class, 0);
}

TEST_F(RdmaCmConnectTest, ANewIdIsBoundAsItsListenerSays) {
  Connect();
  EXPECT_EQ(server->context, &passive_context);
  EXPECT_EQ(server->channel, passive.get());
  EXPECT_NE(server->verbs, nullptr);
  EXPECT_EQ(ntohs(rdma_get_src_port(server)), port());
  EXPECT_EQ(rdma_get_dst_port(server), rdma_get_src_port(client));
  EXPECT_EQ(rdma_get_dst_port(client), rdma_get_src_port(listener));
}

TEST_F(RdmaCmConnectTest, PrivateDataAndTermsReachTheOtherSide) {
  MakeQp(client);
  const std::string asked(56, 'q');
  rdma_conn_param parameters = {};
  parameters.private_data = asked.data();
  parameters.private_data_len = 56;
  parameters.responder_resources = 5;
  parameters.initiator_depth = 9;
  parameters.retry_count = 4;
  parameters.rnr_retry_count = 3;
  ASSERT_EQ(rdma_connect(client, &parameters), 0);
  {
    const GotEvent request = passive.Next();
    ASSERT_EQ(request.name(), "RDMA_CM_EVENT_CONNECT_REQUEST");
    EXPECT_EQ(request->listen_id, listener);
    EXPECT_EQ(request.private_data(), asked);
    // The other side's depth is what we are asked to serve.
    EXPECT_EQ(request->param.conn.responder_resources, 9);
    EXPECT_EQ(request->param.conn.initiator_depth, 5);
    EXPECT_EQ(request->param.conn.retry_count, 4);
    EXPECT_EQ(request->param.conn.rnr_retry_count, 3);
    EXPECT_EQ(request->param.conn.qp_num, client->qp->qp_num);
    server = request->id;
  }
  MakeQp(server);
  const std::string answered(196, 'a');
  parameters.private_data = answered.data();
  parameters.private_data_len = 196;
  parameters.responder_resources = 2;
  parameters.initiator_depth = 16;
  parameters.rnr_retry_count = 6;
  ASSERT_EQ(rdma_accept(server, &parameters), 0);
  const GotEvent established = active.Next();
  ASSERT_EQ(established.name(), "RDMA_CM_EVENT_ESTABLISHED");
  EXPECT_EQ(established.private_data(), answered);
  passive.Expect("RDMA_CM_EVENT_ESTABLISHED");

  // Neither starts more than the other serves.
  const ibv_qp_attr& ours = Fake(client->qp).modifications[2].attributes;
  EXPECT_EQ(ours.max_rd_atomic, 2);
  EXPECT_EQ(ours.rnr_retry, 6);
  EXPECT_EQ(Fake(client->qp).modifications[1].attributes.max_dest_rd_atomic, 5);
  const ibv_qp_attr& theirs = Fake(server->qp).modifications[2].attributes;
  EXPECT_EQ(theirs.max_rd_atomic, 5);
  EXPECT_EQ(theirs.rnr_retry, 3);
  EXPECT_EQ(theirs.retry_cnt, 4);
  EXPECT_EQ(Fake(server->qp).modifications[1].attributes.max_dest_rd_atomic, 2);
}

TEST_F(RdmaCmConnectTest, ARejectionTellsItsReasonAndPrivateData) {
  MakeQp(client);
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  ASSERT_EQ(rdma_reject(server, "no", 2), 0);
  const GotEvent rejected = active.Next();
  ASSERT_EQ(rejected.name(), "RDMA_CM_EVENT_REJECTED");
  EXPECT_EQ(rejected->status, 28);
  EXPECT_EQ(rejected.private_data(), "no");
  EXPECT_EQ(Fake(client->qp).States(), States{IBV_QPS_INIT});
}

TEST_F(RdmaCmConnectTest, APortWithoutAListenerRejects) {
  const HeldPort nobody;
  rdma_destroy_id(client);
  client = Resolved(nobody.port());
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  const GotEvent rejected = active.Next();
  EXPECT_EQ(rejected.name(), "RDMA_CM_EVENT_REJECTED");
  EXPECT_EQ(rejected->status, 8);
}

TEST_F(RdmaCmConnectTest, AListenerMayBeALittleLate) {
  const HeldPort held;
  const uint16_t late = held.port();
  // On a busy machine the listener may come too late, and the connection is rejected: then again.
  for (int attempt = 0; server == nullptr && attempt < 10; ++attempt) {
    rdma_destroy_id(listener);
    listener = nullptr;
    rdma_destroy_id(client);
    client = Resolved(late);
    ASSERT_EQ(rdma_connect(client, nullptr), 0);
    ASSERT_EQ(rdma_create_id(passive.get(), &listener, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in address = Loopback(late);
    ASSERT_EQ(rdma_bind_addr(listener, AsAddress(address)), 0);
    ASSERT_EQ(rdma_listen(listener, 1), 0);
    pollfd either[] = {{.fd = passive.get()->fd, .events = POLLIN, .revents = 0},
                       {.fd = active.get()->fd, .events = POLLIN, .revents = 0}};
    ASSERT_GT(poll(either, std::size(either), 20'000), 0);
    if (active.Ready()) {
      ASSERT_EQ(active.Expect("RDMA_CM_EVENT_REJECTED"), client);
    } else {
      server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
    }
  }
  EXPECT_NE(server, nullptr);
}

TEST_F(RdmaCmConnectTest, BothHearOfADisconnectAndTheCallersQueuePairFails) {
  Connect();
  ASSERT_EQ(rdma_disconnect(client), 0);
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_DISCONNECTED"), client);
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_DISCONNECTED"), server);
  EXPECT_EQ(Fake(client->qp).States().back(), IBV_QPS_ERR);
  EXPECT_EQ(Fake(server->qp).States(), kInService);
  // The manual has both sides call it; the second gets no further event.
  ASSERT_EQ(rdma_disconnect(server), 0);
  EXPECT_EQ(Fake(server->qp).States().back(), IBV_QPS_ERR);
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmConnectTest, AnIdThatIsDestroyedDisconnectsItsPeer) {
  Connect();
  rdma_destroy_qp(client);
  rdma_destroy_id(client);
  client = nullptr;
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_DISCONNECTED"), server);
}

TEST_F(RdmaCmConnectTest, AListenerThatIsDestroyedRejectsWhoWaits) {
  MakeQp(client);
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  ASSERT_TRUE(passive.Ready(20'000));
  rdma_destroy_id(listener);
  listener = nullptr;
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_REJECTED"), client);
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmConnectTest, AClientThatLeavesIsToldAsARejection) {
  MakeQp(client);
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  rdma_destroy_qp(client);
  rdma_destroy_id(client);
  client = nullptr;
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_REJECTED"), server);
  EXPECT_NE(rdma_accept(server, nullptr), 0);
}

TEST_F(RdmaCmConnectTest, AQueuePairThatCannotBeConnectedFailsTheConnection) {
  MakeQp(client);
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  MakeQp(server);
  ASSERT_EQ(rdma_accept(server, nullptr), 0);
  ASSERT_TRUE(active.Ready(20'000));
  FailNextFakeMove(IBV_QPS_RTS);
  const GotEvent failed = active.Next();
  EXPECT_EQ(failed.name(), "RDMA_CM_EVENT_CONNECT_ERROR");
  EXPECT_EQ(failed->status, -EINVAL);
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_REJECTED"), server);
}

// A program with a queue pair of its own finishes the connection by itself.
TEST_F(RdmaCmConnectTest, WithoutAQueuePairTheProgramEstablishes) {
  rdma_conn_param parameters = {};
  parameters.qp_num = 77;
  parameters.responder_resources = 4;
  parameters.initiator_depth = 4;
  ASSERT_EQ(rdma_connect(client, &parameters), 0);
  {
    const GotEvent request = passive.Next();
    ASSERT_EQ(request.name(), "RDMA_CM_EVENT_CONNECT_REQUEST");
    EXPECT_EQ(request->param.conn.qp_num, 77u);
    server = request->id;
  }
  ibv_qp_attr attributes = {};
  int mask = 0;
  attributes.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(rdma_init_qp_attr(server, &attributes, &mask), 0);
  EXPECT_EQ(attributes.max_rd_atomic, 4);
  parameters.qp_num = 78;
  ASSERT_EQ(rdma_accept(server, &parameters), 0);
  EXPECT_EQ(active.Expect("RDMA_CM_EVENT_CONNECT_RESPONSE"), client);
  EXPECT_FALSE(passive.Ready());
  attributes.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(rdma_init_qp_attr(client, &attributes, &mask), 0);
  EXPECT_EQ(attributes.dest_qp_num, 78u);
  EXPECT_TRUE((mask & IBV_QP_AV) != 0);
  ASSERT_EQ(rdma_establish(client), 0);
  EXPECT_EQ(passive.Expect("RDMA_CM_EVENT_ESTABLISHED"), server);
}

TEST_F(RdmaCmConnectTest, CallsOutOfTurnAreRefused) {
  EXPECT_EQ(rdma_accept(client, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_disconnect(client), -1);
  EXPECT_EQ(rdma_reject(client, nullptr, 0), -1);
  EXPECT_EQ(rdma_establish(client), -1);
  EXPECT_EQ(rdma_connect(listener, nullptr), -1);
  EXPECT_EQ(rdma_listen(client, 1), -1);
  EXPECT_EQ(rdma_resolve_route(client, 1000), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(RdmaCmConnectTest, TooMuchIsRefusedBeforeAnythingIsSent) {
  const std::string data(57, 'x');
  rdma_conn_param parameters = {};
  parameters.private_data = data.data();
  parameters.private_data_len = 57;
  EXPECT_EQ(rdma_connect(client, &parameters), -1);
  EXPECT_EQ(errno, EINVAL);
  parameters.private_data_len = 0;
  parameters.initiator_depth = kFakeReads + 1;
  EXPECT_EQ(rdma_connect(client, &parameters), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(passive.Ready());
}

TEST_F(RdmaCmConnectTest, PortsAreTakenOnce) {
  rdma_cm_id* second = nullptr;
  ASSERT_EQ(rdma_create_id(passive.get(), &second, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in taken = Loopback(port());
  EXPECT_EQ(rdma_bind_addr(second, AsAddress(taken)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  rdma_destroy_id(second);
}

TEST_F(RdmaCmConnectTest, AChannelThatDoesNotBlockSaysSo) {
  ASSERT_EQ(fcntl(passive.get()->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(passive.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RdmaCmConnectTest, AnIdTakesItsEventsToAnotherChannel) {
  Connect();
  const WaitedChannel other;
  ASSERT_EQ(rdma_disconnect(client), 0);
  ASSERT_TRUE(passive.Ready(20'000));
  ASSERT_EQ(rdma_migrate_id(server, other.get()), 0);
  EXPECT_FALSE(passive.Ready());
  EXPECT_EQ(other.Expect("RDMA_CM_EVENT_DISCONNECTED"), server);
  active.Expect("RDMA_CM_EVENT_DISCONNECTED");
  rdma_destroy_qp(server);
  rdma_destroy_id(server);
  server = nullptr;
}

TEST_F(RdmaCmConnectTest, AListenerTakesWhoWaitsToAnotherChannel) {
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  ASSERT_TRUE(passive.Ready(20'000));
  const WaitedChannel other;
  ASSERT_EQ(rdma_migrate_id(listener, other.get()), 0);
  EXPECT_FALSE(passive.Ready());
  server = other.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->channel, other.get());
  // Its later events come there, too.
  rdma_destroy_id(client);
  client = nullptr;
  EXPECT_EQ(other.Expect("RDMA_CM_EVENT_REJECTED"), server);
  // Before their channel.
  rdma_destroy_id(server);
  rdma_destroy_id(listener);
  server = listener = nullptr;
}

// As at the kernel's limit of watches (/proc/sys/fs/epoll/max_user_watches).
TEST_F(RdmaCmConnectTest, ASocketThatTheKernelDoesNotWatchIsAnError) {
  rdma_cm_id* other = nullptr;
  ASSERT_EQ(rdma_create_id(passive.get(), &other, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in any = Loopback(0);
  ASSERT_EQ(rdma_bind_addr(other, AsAddress(any)), 0);
  MakeQp(client);
  bool tried = false;
  WithForbidden(SYS_epoll_ctl, ENOSPC, [&] {
    tried = true;
    EXPECT_EQ(rdma_listen(other, 8), -1);
    EXPECT_EQ(errno, ENOSPC);
    EXPECT_EQ(rdma_connect(client, nullptr), 0);
  });
  if (tried) {
    const GotEvent event = active.Next();
    EXPECT_EQ(event.name(), "RDMA_CM_EVENT_UNREACHABLE");
    EXPECT_EQ(event->status, -ENOSPC);
    // The id is bound as before.
    EXPECT_EQ(rdma_listen(other, 8), 0) << errno;
  }
  rdma_destroy_id(other);
}

TEST_F(RdmaCmConnectTest, RsocketsAreRefused) {
  EXPECT_EQ(rsocket(AF_INET, SOCK_STREAM, 0), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(RdmaCmConnectTest, DatagramsAreRefused) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(active.get(), &id, nullptr, RDMA_PS_UDP), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(RdmaCmConnectTest, CompletionQueuesOfTheLibraryGoWithTheirQueuePair) {
  const int before = FakeObjects();
  MakeQp(client);
  EXPECT_NE(client->send_cq, nullptr);
  EXPECT_NE(client->recv_cq_channel, nullptr);
  EXPECT_EQ(client->send_cq->cq_context, client);
  // Programs send inline though they asked for no room.
  EXPECT_GE(Fake(client->qp).inline_bytes, 64u);
  rdma_destroy_qp(client);
  EXPECT_EQ(client->send_cq, nullptr);
  EXPECT_EQ(FakeObjects(), before);
}

TEST_F(RdmaCmConnectTest, ADeviceWithoutInlineDataGivesWhatIsAskedFor) {
  LimitFakeInline(0);
  MakeQp(client);
  LimitFakeInline(UINT32_MAX);
  ASSERT_NE(client->qp, nullptr);
  EXPECT_EQ(Fake(client->qp).inline_bytes, 0u);
}

}  // namespace
}  // namespace verbena::internal::preload
