// The queue pairs of links are told what RdmaOptions say, whoever connects them. Values out of
// range are refused by name.

#include "verbena/transport/link/rdma_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/device/fake_device.h"
#include "tests/transport/link/fake_connector.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace rdma_options_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns how the start refuses `options`.
std::string Refusal(const RdmaOptions& options) {
  const std::unique_ptr<SoftDevice> device = *SoftDevice::Create({});
  const absl::Status status =
      DeviceContext::Create(*device, {.event_thread = false, .rdma = options}).status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(RdmaOptionsRangeTest, NamesTheValueAndItsRange) {
  EXPECT_EQ(Refusal({.traffic_class = 256}),
            "RdmaOptions::traffic_class is 256, but must be in [0, 255]");
  EXPECT_EQ(Refusal({.sl = 16}), "RdmaOptions::sl is 16, but must be in [0, 15]");
  EXPECT_EQ(Refusal({.flow_label = 1 << 20}),
            "RdmaOptions::flow_label is 1048576, but must be in [0, 1048575]");
  EXPECT_EQ(Refusal({.pkey_index = 65536}),
            "RdmaOptions::pkey_index is 65536, but must be in [0, 65535]");
  EXPECT_EQ(Refusal({.path_mtu = 1500}),
            "RdmaOptions::path_mtu is 1500, but must be 0 or one of 256, 512, 1024, 2048 and 4096");
  EXPECT_THAT(Refusal({.path_mtu = 128}), HasSubstr("path_mtu is 128"));
  EXPECT_THAT(Refusal({.path_mtu = 8192}), HasSubstr("path_mtu is 8192"));
  EXPECT_EQ(Refusal({.timeout = 0}), "RdmaOptions::timeout is 0, but must be in [1, 31]");
  EXPECT_EQ(Refusal({.timeout = 32}), "RdmaOptions::timeout is 32, but must be in [1, 31]");
  EXPECT_EQ(Refusal({.retry_cnt = 8}), "RdmaOptions::retry_cnt is 8, but must be in [0, 7]");
}

TEST(RdmaOptionsRangeTest, TakesTheEndsOfEachRange) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({.traffic_class = 255,
                     .sl = 15,
                     .flow_label = (1 << 20) - 1,
                     .pkey_index = 65535,
                     .path_mtu = 256,
                     .timeout = 31,
                     .retry_cnt = 0}),
            "");
  EXPECT_EQ(Refusal({.path_mtu = 4096, .timeout = 1}), "");
}

// Keeps what each queue pair was told.
class RecordingDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;

  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    {
      std::lock_guard lock(mutex_);
      moves_.push_back(attributes);
    }
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }
  // The attributes of all moves to `state`.
  std::vector<ibv_qp_attr> MovesTo(ibv_qp_state state) {
    std::lock_guard lock(mutex_);
    std::vector<ibv_qp_attr> found;
    for (const ibv_qp_attr& each : moves_) {
      if (each.qp_state == state) found.push_back(each);
    }
    return found;
  }

 private:
  std::mutex mutex_;  // control verbs run on threads of their own
  std::vector<ibv_qp_attr> moves_;
};

class RdmaOptionsTest : public LinksFixture {
 protected:
  void ConnectWith(const RdmaOptions& options, QpConnector* connector = nullptr) {
    options_ = options;
    Start({}, {}, connector);
    connector_.set_device(device());
    ASSERT_NE(Connect(client_listener_, server_listener_), nullptr);
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto recording = std::make_unique<RecordingDevice>(device);
    recording_ = recording.get();
    return recording;
  }
  RdmaOptions rdma_options() const override { return options_; }

  // Both the client and the server must have moved with the class.
  void ExpectClassOfBoth() {
    const std::vector<ibv_qp_attr> moves = recording_->MovesTo(IBV_QPS_RTR);
    EXPECT_THAT(moves, SizeIs(2));
    for (const ibv_qp_attr& each : moves) {
      EXPECT_EQ(each.ah_attr.grh.traffic_class, options_.traffic_class);
      EXPECT_EQ(each.ah_attr.sl, options_.sl);
      EXPECT_EQ(each.ah_attr.grh.flow_label, options_.flow_label);
    }
  }

  void ExpectRetriesOfBoth(int timeout, int retry_cnt) {
    const std::vector<ibv_qp_attr> moves = recording_->MovesTo(IBV_QPS_RTS);
    EXPECT_THAT(moves, SizeIs(2));
    for (const ibv_qp_attr& each : moves) {
      EXPECT_EQ(each.timeout, timeout);
      EXPECT_EQ(each.retry_cnt, retry_cnt);
    }
  }

  RdmaOptions options_;
  RecordingDevice* recording_ = nullptr;
  FakeConnector connector_;
  Receiver client_listener_;
  Receiver server_listener_;
};

const RdmaOptions kClass = {.traffic_class = 106, .sl = 3, .flow_label = 0x12345};

TEST_F(RdmaOptionsTest, LinksHaveTheClassThatTheOptionsSay) {
  ConnectWith(kClass);
  ExpectClassOfBoth();
}

TEST_F(RdmaOptionsTest, LinksOfAConnectionManagerHaveItToo) {
  ConnectWith(kClass, &connector_);
  ExpectClassOfBoth();
}

TEST_F(RdmaOptionsTest, LinksRetryAsTheOptionsSay) {
  ConnectWith({.timeout = 20, .retry_cnt = 6});
  ExpectRetriesOfBoth(20, 6);
}

TEST_F(RdmaOptionsTest, LinksOfAConnectionManagerRetryAsTheOptionsSay) {
  ConnectWith({.timeout = 20, .retry_cnt = 6}, &connector_);
  ExpectRetriesOfBoth(20, 6);
}

TEST_F(RdmaOptionsTest, ByDefaultALinkWaitsSixtySevenMillisecondsSevenTimes) {
  ConnectWith({});
  ExpectRetriesOfBoth(14, 7);
}

// The path that a connection manager has found.
class ManagersPath final : public QpConnection {
 public:
  Task<absl::Status> AwaitPeer() override { co_return absl::OkStatus(); }
  Task<absl::Status> AwaitEstablished() override { co_return absl::OkStatus(); }
  bool client_sends_first() const override { return false; }
  absl::Status Confirm() override { return absl::OkStatus(); }
  absl::Status FillIn(ibv_qp_attr& attributes, int& mask) override {
    mask = IBV_QP_STATE;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.ah_attr.sl = 5;
    attributes.ah_attr.grh.traffic_class = 32;
    attributes.ah_attr.grh.flow_label = 99;
    return absl::OkStatus();
  }
};

// Keeps the last attributes of each state.
class KeepingDevice final : public FakeDevice {
 public:
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd*, ibv_qp_init_attr&) override { return &qp_; }
  absl::Status ModifyQp(ibv_qp*, const ibv_qp_attr& attributes, int) override {
    if (attributes.qp_state == IBV_QPS_INIT) init = attributes;
    if (attributes.qp_state == IBV_QPS_RTR) ready_to_receive = attributes;
    if (attributes.qp_state == IBV_QPS_RTS) ready_to_send = attributes;
    return absl::OkStatus();
  }
  ibv_qp_attr init = {};
  ibv_qp_attr ready_to_receive = {};
  ibv_qp_attr ready_to_send = {};

 private:
  ibv_qp qp_ = {};
};

TEST(ManagedPathTest, StaysAsTheManagerSaysWhereTheOptionsAreZero) {
  KeepingDevice device;
  ManagersPath path;
  ASSERT_TRUE(ConnectManagedQp(device, nullptr, {}, {}, path, {}).ok());
  EXPECT_EQ(device.ready_to_receive.ah_attr.sl, 5);
  EXPECT_EQ(device.ready_to_receive.ah_attr.grh.traffic_class, 32);
  EXPECT_EQ(device.ready_to_receive.ah_attr.grh.flow_label, 99u);
}

TEST(ManagedPathTest, HasTheSmallerPathMtuOfBothSides) {
  KeepingDevice device;
  ManagersPath path;
  const PortAddress local = {.path_mtu = IBV_MTU_2048};
  ASSERT_TRUE(ConnectManagedQp(device, nullptr, local, {.mtu = IBV_MTU_4096}, path, {}).ok());
  EXPECT_EQ(device.ready_to_receive.path_mtu, IBV_MTU_2048);
  ASSERT_TRUE(ConnectManagedQp(device, nullptr, local, {.mtu = IBV_MTU_1024}, path, {}).ok());
  EXPECT_EQ(device.ready_to_receive.path_mtu, IBV_MTU_1024);
}

// A port of an InfiniBand NIC.
class NicDevice final : public FakeDevice {
 public:
  NicDevice() {
    context_.device = &device_;
    port.state = IBV_PORT_ACTIVE;
    port.active_mtu = IBV_MTU_2048;
    port.pkey_tbl_len = 128;
    port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  }
  DeviceKind kind() const override { return DeviceKind::kRdma; }
  ibv_context* context() override { return &context_; }
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t) override { return port; }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t, int) override {
    return ibv_gid{.raw = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  }

  ibv_port_attr port = {};

 private:
  ibv_device device_ = {};
  ibv_context context_ = {};
};

// The soft device as if it were a NIC with four completion vectors. Keeps those that are used.
class VectorsDevice final : public DelegatingDevice {
 public:
  explicit VectorsDevice(Device& device) : DelegatingDevice(device) {
    context_.device = device.context()->device;
    context_.num_comp_vectors = 4;
    told_kind = DeviceKind::kRdma;
  }
  ibv_context* context() override { return &context_; }
  absl::StatusOr<ibv_cq*> CreateCqOnVector(int entries, void* cq_context, ibv_comp_channel* channel,
                                           int comp_vector) override {
    used.push_back(comp_vector);
    return DelegatingDevice::CreateCqOnVector(entries, cq_context, channel, comp_vector);
  }
  std::vector<int> used;

 private:
  ibv_context context_ = {};
};

class CompVectorsTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DeviceContext>> MakeContext(std::vector<int> comp_vectors) {
    return DeviceContext::Create(device_, {.event_thread = false,
                                           .control_threads = false,
                                           .connect = "exchange",
                                           .rdma = {.comp_vectors = std::move(comp_vectors)}});
  }
  // The vectors of the completion queues of that many executors.
  std::vector<int> Used(std::vector<int> comp_vectors, uint32_t executors) {
    const std::unique_ptr<DeviceContext> context = *MakeContext(std::move(comp_vectors));
    const LinkLimits limits = {.max_links = 1, .srq_depth = 64, .send_buffers = 16};
    for (uint32_t i = 0; i < executors; ++i) {
      const std::unique_ptr<Executor> executor = *Executor::Create({});
      EXPECT_TRUE(Endpoint::Create(*executor, *context, limits, i, executors).ok());
    }
    return std::exchange(device_.used, {});
  }

  const std::unique_ptr<SoftDevice> soft_ = *SoftDevice::Create({});
  VectorsDevice device_{*soft_};
};

TEST_F(CompVectorsTest, AreTakenInTurn) { EXPECT_THAT(Used({}, 6), ElementsAre(0, 1, 2, 3, 0, 1)); }

TEST_F(CompVectorsTest, AreThoseOfTheOptionsForExecutorsThatHaveAnEntry) {
  EXPECT_THAT(Used({3, 3}, 4), ElementsAre(3, 3, 2, 3));
}

TEST_F(CompVectorsTest, ThatTheDeviceDoesNotHaveAreRefused) {
  EXPECT_TRUE(MakeContext({0, 3}).ok());
  for (int wrong : {-1, 4}) {
    const absl::Status status = MakeContext({0, wrong}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(fmt::format("RdmaOptions::comp_vectors has {}, but must be in [0, 3]: "
                                      "soft0 has 4 completion vectors",
                                      wrong)));
  }
}

TEST(PartitionTest, IsTheOneThatTheOptionsName) {
  NicDevice nic;
  const absl::StatusOr<PortAddress> address = ReadPortAddress(nic, {}, {.pkey_index = 7});
  ASSERT_TRUE(address.ok()) << address.status();
  KeepingDevice device;
  ASSERT_TRUE(CreateLinkQp(device, nullptr, nullptr, nullptr, {}, 0, *address).ok());
  EXPECT_EQ(device.init.pkey_index, 7);
}

TEST(PartitionTest, ThatThePortDoesNotHaveIsRefusedByIndexAndRange) {
  NicDevice nic;
  const absl::Status status = ReadPortAddress(nic, {}, {.pkey_index = 128}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(status.message(),
            "RdmaOptions::pkey_index is 128, but must be in [0, 127]: port 1 of fake0 has 128 "
            "P_Keys");
}

TEST(PartitionTest, IsTheOnlyOneOnRoce) {
  NicDevice nic;
  nic.port.link_layer = IBV_LINK_LAYER_ETHERNET;
  nic.port.pkey_tbl_len = 1;
  const absl::StatusOr<PortAddress> address = ReadPortAddress(nic, {}, {.pkey_index = 7});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->pkey_index, 0);
}

TEST(PathMtuTest, IsThePortsUnlessTheOptionsSayLess) {
  NicDevice device;
  EXPECT_EQ(ReadPortAddress(device, {}, {})->path_mtu, IBV_MTU_2048);
  EXPECT_EQ(ReadPortAddress(device, {}, {.path_mtu = 1024})->path_mtu, IBV_MTU_1024);
  EXPECT_EQ(ReadPortAddress(device, {}, {.path_mtu = 4096})->path_mtu, IBV_MTU_2048);
}

}  // namespace rdma_options_test
}  // namespace verbena::internal
