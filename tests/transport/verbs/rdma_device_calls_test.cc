// A device reads its port anew without opening a device, its own or another, and hands the
// completion vector on. The test stands in for libibverbs' functions, so that no device is needed.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/verbs/rdma_device.h"

// A macro of verbs.h, whose function is defined here.
#undef ibv_query_port

namespace {

int g_listings = 0;
int g_openings = 0;
int g_comp_vector = -1;  // of the last CQ
uint32_t g_gid_index = 0;
bool g_has_gid = true;

// FakeNic holds the parts of a device of libibverbs.
struct FakeNic {
  ibv_device device = {};
  ibv_context context = {};
  ibv_pd pd = {};
};

int RefuseSend(ibv_qp*, ibv_send_wr*, ibv_send_wr**) { return ENOSYS; }
int FindNothing(ibv_cq*, int, ibv_wc*) { return 0; }

std::array<FakeNic, 2>& Nics() {
  static std::array<FakeNic, 2> nics = [] {
    std::array<FakeNic, 2> made;
    for (size_t i = 0; i < made.size(); ++i) {
      std::snprintf(made[i].device.name, sizeof(made[i].device.name), "fake%zu", i);
      made[i].context.async_fd = eventfd(0, EFD_CLOEXEC);
      made[i].context.ops.post_send = RefuseSend;
      made[i].context.ops.poll_cq = FindNothing;
    }
    return made;
  }();
  return nics;
}

}  // namespace

extern "C" {

ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

ibv_device** ibv_get_device_list(int* count) {
  ++g_listings;
  static ibv_device* list[3] = {&Nics()[0].device, &Nics()[1].device, nullptr};
  *count = 2;
  return list;
}

void ibv_free_device_list(ibv_device**) {}

ibv_context* ibv_open_device(ibv_device* device) {
  ++g_openings;
  const auto nic =
      std::ranges::find_if(Nics(), [device](FakeNic& each) { return &each.device == device; });
  nic->context.device = device;
  return &nic->context;
}

int ibv_close_device(ibv_context*) { return 0; }

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = 1;
  return 0;
}

int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* attributes) {
  auto& port = *reinterpret_cast<ibv_port_attr*>(attributes);
  port.state = IBV_PORT_ACTIVE;
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context*, ibv_gid_entry* entries, size_t, uint32_t, size_t) {
  if (!g_has_gid) return 0;
  entries[0] = {};
  entries[0].gid.raw[15] = 1;
  entries[0].gid_index = g_gid_index;
  entries[0].port_num = 1;
  return 1;
}

// So its probes connect no queue pairs.
int ibv_query_gid(ibv_context*, uint8_t, int, ibv_gid*) { return ENOSYS; }

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  for (FakeNic& nic : Nics()) {
    if (&nic.context != context) continue;
    nic.pd.context = context;
    return &nic.pd;
  }
  return nullptr;
}

int ibv_dealloc_pd(ibv_pd*) { return 0; }

ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int comp_vector) {
  g_comp_vector = comp_vector;
  auto* cq = new ibv_cq{};
  cq->context = context;
  return cq;
}

int ibv_destroy_cq(ibv_cq* cq) {
  delete cq;
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr*) {
  auto* qp = new ibv_qp{};
  qp->context = pd->context;
  return qp;
}

int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return 0; }

int ibv_destroy_qp(ibv_qp* qp) {
  delete qp;
  return 0;
}

}  // extern "C"

namespace verbena::internal {
namespace {

class RdmaDeviceCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    g_has_gid = true;
    absl::StatusOr<std::unique_ptr<RdmaDevice>> opened = RdmaDevice::Open("fake1");
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
  }

  std::unique_ptr<RdmaDevice> device_;
};

TEST_F(RdmaDeviceCallsTest, APortIsReadAnewWithoutOpeningADevice) {
  const int listings = g_listings;
  const int openings = g_openings;
  for (uint32_t index : {3u, 5u}) {
    g_gid_index = index;
    const absl::StatusOr<DevicePort> port = device_->ChoosePortAgain();
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_EQ(port->gid_index, index);
  }
  g_has_gid = false;
  EXPECT_FALSE(device_->ChoosePortAgain().ok());
  EXPECT_EQ(g_listings, listings);
  EXPECT_EQ(g_openings, openings);
}

using RdmaDeviceCallsDeathTest = RdmaDeviceCallsTest;

TEST_F(RdmaDeviceCallsDeathTest, AQueuePairOfNobodyIsNeitherKnownNorDestroyed) {
  ibv_qp stranger{};
  EXPECT_DEATH((void)device_->IdentityOf(&stranger), "a queue pair that is not one of fake1");
  EXPECT_DEATH((void)device_->DestroyQp(&stranger), "a queue pair that is not one of fake1");
}

TEST_F(RdmaDeviceCallsTest, ACompletionQueueHasTheVectorThatItsOwnerNames) {
  const CqHandle first(*device_, *device_->CreateCq(16, nullptr, nullptr));
  EXPECT_EQ(g_comp_vector, 0);
  const CqHandle other(*device_, *device_->CreateCqOnVector(16, nullptr, nullptr, 2));
  EXPECT_EQ(g_comp_vector, 2);
}

}  // namespace
}  // namespace verbena::internal
