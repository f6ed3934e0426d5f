// Proves that ids without a channel wait in their calls: endpoints, as rdma_create_ep makes them,
// and what rdma_getaddrinfo tells of addresses.

#include <gtest/gtest.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <cerrno>
#include <string>
#include <thread>

#include "tests/transport/preload/rdma_cm_ends.h"
#include "tests/transport/preload/rdma_cm_fake_verbs.h"

namespace verbena::internal::preload {
namespace {

ibv_qp_init_attr SmallQp() {
  ibv_qp_init_attr init = {};
  init.cap.max_send_wr = 1;
  init.cap.max_recv_wr = 1;
  return init;
}

class RdmaCmEndpointTest : public testing::Test {
 protected:
  RdmaCmEndpointTest() {
    rdma_addrinfo* info = Address("0", RAI_PASSIVE);
    ibv_qp_init_attr init = SmallQp();
    EXPECT_EQ(rdma_create_ep(&listener_, info, nullptr, &init), 0);
    rdma_freeaddrinfo(info);
    EXPECT_EQ(rdma_listen(listener_, 0), 0);
  }

  ~RdmaCmEndpointTest() override { rdma_destroy_ep(listener_); }

  std::string port() const { return std::to_string(ntohs(rdma_get_src_port(listener_))); }

  static rdma_addrinfo* Address(const std::string& port, int flags) {
    rdma_addrinfo hints = {};
    hints.ai_flags = flags;
    hints.ai_port_space = RDMA_PS_TCP;
    rdma_addrinfo* info = nullptr;
    EXPECT_EQ(rdma_getaddrinfo("127.0.0.1", port.c_str(), &hints, &info), 0);
    return info;
  }

  rdma_cm_id* Client() {
    rdma_addrinfo* info = Address(port(), 0);
    ibv_qp_init_attr init = SmallQp();
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_ep(&id, info, nullptr, &init), 0);
    rdma_freeaddrinfo(info);
    return id;
  }

  rdma_cm_id* listener_ = nullptr;
};

TEST_F(RdmaCmEndpointTest, CallsReturnWhenTheirEventIsThere) {
  std::thread server([this] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_, &id), 0);
    ASSERT_NE(id->qp, nullptr);
    ASSERT_EQ(rdma_accept(id, nullptr), 0);
    EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(Fake(id->qp).States().back(), IBV_QPS_RTS);
    rdma_disconnect(id);
    rdma_destroy_ep(id);
  });
  rdma_cm_id* const client = Client();
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  EXPECT_EQ(client->event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(Fake(client->qp).States().back(), IBV_QPS_RTS);
  server.join();
  EXPECT_EQ(rdma_disconnect(client), 0);
  rdma_destroy_ep(client);
}

TEST_F(RdmaCmEndpointTest, ARejectionIsARefusedConnection) {
  std::thread server([this] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener_, &id), 0);
    EXPECT_EQ(rdma_reject(id, nullptr, 0), 0);
    rdma_destroy_ep(id);
  });
  rdma_cm_id* const client = Client();
  EXPECT_EQ(rdma_connect(client, nullptr), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  server.join();
  rdma_destroy_ep(client);
}

TEST_F(RdmaCmEndpointTest, OnlyEndpointsGetRequests) {
  const WaitedChannel channel;
  rdma_cm_id* id = nullptr;
  rdma_cm_id* request = nullptr;
  ASSERT_EQ(rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_TCP), 0);
  EXPECT_EQ(rdma_get_request(id, &request), -1);
  EXPECT_EQ(errno, EINVAL);
  rdma_destroy_id(id);
}

TEST_F(RdmaCmEndpointTest, ASharedReceiveQueueServesItsId) {
  rdma_cm_id* const client = Client();
  rdma_destroy_qp(client);
  ibv_srq_init_attr attributes = {};
  ASSERT_EQ(rdma_create_srq(client, nullptr, &attributes), 0);
  EXPECT_EQ(rdma_create_srq(client, nullptr, &attributes), -1);
  ibv_qp_init_attr init = SmallQp();
  init.qp_type = IBV_QPT_RC;
  ASSERT_EQ(rdma_create_qp(client, nullptr, &init), 0);
  EXPECT_EQ(client->qp->srq, client->srq);
  rdma_destroy_ep(client);
}

TEST(RdmaCmAddressTest, PassiveAddressesAreSources) {
  rdma_addrinfo hints = {};
  hints.ai_flags = RAI_PASSIVE;
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(rdma_getaddrinfo(nullptr, "7471", &hints, &info), 0);
  EXPECT_NE(info->ai_src_addr, nullptr);
  EXPECT_EQ(info->ai_dst_addr, nullptr);
  EXPECT_EQ(info->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(info->ai_qp_type, IBV_QPT_RC);
  rdma_freeaddrinfo(info);
}

// libfabric asks like this.
TEST(RdmaCmAddressTest, HintsAloneMayHoldTheAddresses) {
  sockaddr_in peer = Loopback(7471);
  rdma_addrinfo hints = {};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_dst_addr = AsAddress(peer);
  hints.ai_dst_len = sizeof(peer);
  rdma_addrinfo* info = nullptr;
  ASSERT_EQ(rdma_getaddrinfo(nullptr, nullptr, &hints, &info), 0);
  ASSERT_EQ(info->ai_dst_len, sizeof(peer));
  EXPECT_EQ(reinterpret_cast<sockaddr_in*>(info->ai_dst_addr)->sin_port, htons(7471));
  rdma_freeaddrinfo(info);
  EXPECT_EQ(rdma_getaddrinfo(nullptr, nullptr, nullptr, &info), -1);
}

TEST(RdmaCmAddressTest, FailuresAreThoseOfGetaddrinfo) {
  rdma_addrinfo hints = {};
  hints.ai_flags = RAI_NUMERICHOST;
  rdma_addrinfo* info = nullptr;
  EXPECT_EQ(rdma_getaddrinfo("no address", "7471", &hints, &info), EAI_NONAME);
}

TEST(RdmaCmAddressTest, OptionsAreCheckedByLength) {
  const WaitedChannel channel;
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_TCP), 0);
  int on = 1;
  uint8_t service = 3;
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &service, 1), 0);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof(on)), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &service, 1), 0);
  service = 32;
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &service, 1), -1);
  EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, sizeof(on)), -1);
  EXPECT_EQ(errno, ENOSYS);
  rdma_destroy_id(id);
}

}  // namespace
}  // namespace verbena::internal::preload
