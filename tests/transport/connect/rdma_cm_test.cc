// rdma_cm connects exactly the queue pair that a token names, once, and refuses each other request.
// On the RDMA device that VERBENA_DEVICE names; without a device, the error says what is missing.

#include "verbena/transport/connect/rdma_cm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/coro/context.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal {
namespace rdma_cm_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ConnectionPtr = std::shared_ptr<QpConnection>;

constexpr uint8_t kReads = 4;

std::string DeviceName() {
  const char* set = std::getenv("VERBENA_DEVICE");
  const std::string name = set == nullptr ? "" : set;
  return name.starts_with("rdma:") ? name.substr(5) : "";
}

class RdmaCmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceName().empty()) GTEST_SKIP() << "VERBENA_DEVICE names no RDMA device";
    executor_ = *Executor::Create({});
    absl::StatusOr<std::unique_ptr<RdmaDevice>> device = RdmaDevice::Open(DeviceName());
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    const DevicePort port = device_->default_port();
    address_ = *ReadPortAddress(*device_, port, {});
    pd_ = PdHandle(*device_, *device_->AllocPd());
    cq_ = CqHandle(*device_, *device_->CreateCq(256, nullptr, nullptr));
    ibv_srq_init_attr srq{};
    srq.attr.max_wr = 16;
    srq.attr.max_sge = 1;
    srq_ = SrqHandle(*device_, *device_->CreateSrq(pd_.get(), srq));
    absl::StatusOr<std::unique_ptr<RdmaCm>> cm = RdmaCm::Start({.device = device_->name(),
                                                                .port = address_.port,
                                                                .kind = address_.kind,
                                                                .gid = address_.gid});
    ASSERT_TRUE(cm.ok()) << cm.status();
    cm_ = *std::move(cm);
  }

  QpHandle MakeQp() {
    absl::StatusOr<QpHandle> qp =
        CreateLinkQp(*device_, pd_.get(), cq_.get(), srq_.get(), LinkLimits{.send_queue_depth = 16},
                     /*max_inline_bytes=*/0, address_);
    EXPECT_TRUE(qp.ok()) << qp.status();
    return qp.ok() ? *std::move(qp) : QpHandle();
  }

  static ConnectableQp Describe(const QpHandle& qp, const QpHandle& peer) {
    return {.qp_number = qp->qp_num,
            .peer_qp_number = peer->qp_num,
            .reads_served = kReads,
            .reads_started = kReads};
  }

  absl::Status Run(Task<absl::Status> task) {
    absl::StatusOr<absl::Status> result = absl::UnknownError("it did not end");
    bool done = false;
    Spawn(*executor_,
          [](Task<absl::Status> task, absl::StatusOr<absl::Status>& result,
             bool& done) -> Task<void> {
            result = co_await std::move(task);
            done = true;
          }(WithDeadline(std::move(task), executor_->now() + std::chrono::seconds(60)), result,
                         done));
    while (!done) executor_->Poll();
    return *result;
  }

  // The status of a client that connects to `service`.
  absl::Status Request(const RdmaCmService& service) {
    const QpHandle qp = MakeQp();
    absl::StatusOr<ConnectionPtr> connection = cm_->Connect(Describe(qp, qp), service);
    if (!connection.ok()) return connection.status();
    return Run((*connection)->AwaitPeer());
  }

  // All steps of both sides; the status of whichever fails first.
  Task<absl::Status> Establish(QpHandle& server_qp, ConnectionPtr server, QpHandle& client_qp,
                               ConnectionPtr client) {
    for (const auto& [qp, connection] :
         {std::pair(&server_qp, server), std::pair(&client_qp, client)}) {
      absl::Status status = co_await connection->AwaitPeer();
      if (!status.ok()) co_return status;
      status = ConnectManagedQp(*device_, qp->get(), address_,
                                {.mtu = address_.path_mtu, .max_reads = kReads}, *connection, {});
      if (!status.ok()) co_return status;
      status = connection->Confirm();
      if (!status.ok()) co_return status;
    }
    for (const ConnectionPtr& connection : {server, client}) {
      absl::Status status = co_await connection->AwaitEstablished();
      if (!status.ok()) co_return status;
    }
    co_return absl::OkStatus();
  }

  std::unique_ptr<Executor> executor_;
  std::unique_ptr<RdmaDevice> device_;
  PortAddress address_;
  PdHandle pd_;
  CqHandle cq_;
  SrqHandle srq_;
  std::unique_ptr<RdmaCm> cm_;
};

// One line, and no number alone.
void ExpectClear(const absl::Status& status, const std::string& says) {
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), HasSubstr(says));
  EXPECT_THAT(status.ToString(), Not(HasSubstr("\n")));
}

TEST(WithoutRdmaCmTest, TheStatusSaysWhatIsMissing) {
  absl::StatusOr<std::unique_ptr<RdmaCm>> cm = RdmaCm::Start({.device = "no_such_device"});
  if (absl::IsUnavailable(cm.status())) {
    ExpectClear(cm.status(), "modprobe rdma_ucm");
  } else {
    ExpectClear(cm.status(), "needs an IP address on port 1 of no_such_device");
    EXPECT_EQ(cm.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(RdmaCmTest, TwoQueuePairsConnectAndTheEndOfOneIsToldToTheOther) {
  QpHandle server_qp = MakeQp();
  QpHandle client_qp = MakeQp();
  std::atomic<int> ends = 0;
  std::string reason;  // read once `ends` is set
  ConnectableQp described = Describe(server_qp, client_qp);
  described.on_end = [&](const std::string& why) {
    reason = why;
    ++ends;
  };
  RdmaCmService service;
  absl::StatusOr<ConnectionPtr> server = cm_->Expect(std::move(described), service);
  ASSERT_TRUE(server.ok()) << server.status();
  absl::StatusOr<ConnectionPtr> client = cm_->Connect(Describe(client_qp, server_qp), service);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_EQ(Run(Establish(server_qp, *server, client_qp, *client)), absl::OkStatus());
  // siw does not tell the state of a queue pair.
  for (QpHandle* qp : {&server_qp, &client_qp}) {
    if (address_.kind == LinkKind::kIwarp) continue;
    EXPECT_EQ(device_->QueryQp(qp->get(), IBV_QP_STATE)->qp_state, IBV_QPS_RTS);
  }
  EXPECT_EQ(ends, 0);

  EXPECT_EQ(MoveQpToError(*device_, client_qp.get()), absl::OkStatus());
  client_qp.Reset();
  client->reset();
  while (ends == 0) executor_->Poll();
  EXPECT_THAT(reason, HasSubstr("disconnected"));
  EXPECT_EQ(MoveQpToError(*device_, server_qp.get()), absl::OkStatus());
  server_qp.Reset();
  server->reset();
  EXPECT_EQ(ends, 1);
}

TEST_F(RdmaCmTest, AnUnknownTokenIsRefused) {
  const QpHandle qp = MakeQp();
  RdmaCmService service;
  absl::StatusOr<ConnectionPtr> server = cm_->Expect(Describe(qp, qp), service);
  ASSERT_TRUE(server.ok()) << server.status();
  service.token ^= 1;
  ExpectClear(Request(service), "does not know the token");
}

TEST_F(RdmaCmTest, ATokenEndsWithWhoeverWaitsForIt) {
  const QpHandle qp = MakeQp();
  RdmaCmService service;
  cm_->Expect(Describe(qp, qp), service)->reset();
  ExpectClear(Request(service), "does not know the token");
}

TEST_F(RdmaCmTest, ATokenIsGoodForOneRequest) {
  QpHandle server_qp = MakeQp();
  QpHandle client_qp = MakeQp();
  RdmaCmService service;
  ConnectionPtr server = *cm_->Expect(Describe(server_qp, client_qp), service);
  ConnectionPtr client = *cm_->Connect(Describe(client_qp, server_qp), service);
  ASSERT_EQ(Run(Establish(server_qp, server, client_qp, client)), absl::OkStatus());
  ExpectClear(Request(service), "does not know the token");
}

TEST_F(RdmaCmTest, ARequestForAnotherQueuePairIsRefusedWhereItIsTold) {
  if (address_.kind == LinkKind::kIwarp) GTEST_SKIP() << "iWARP tells no queue pair numbers";
  const QpHandle server_qp = MakeQp();
  const QpHandle expected = MakeQp();
  RdmaCmService service;
  ConnectionPtr server = *cm_->Expect(Describe(server_qp, expected), service);
  ExpectClear(Request(service), "another queue pair");
  ExpectClear(Run(server->AwaitPeer()), "was offered");
}

TEST_F(RdmaCmTest, AServerThatGivesUpAfterTheRequestRefusesIt) {
  const QpHandle server_qp = MakeQp();
  const QpHandle client_qp = MakeQp();
  RdmaCmService service;
  ConnectionPtr server = *cm_->Expect(Describe(server_qp, client_qp), service);
  ConnectionPtr client = *cm_->Connect(Describe(client_qp, server_qp), service);
  ASSERT_EQ(Run(server->AwaitPeer()), absl::OkStatus());
  server.reset();
  ExpectClear(Run(client->AwaitPeer()), "gave up waiting");
}

TEST_F(RdmaCmTest, TheStatusSaysThatNobodyListens) {
  ExpectClear(Request({.address = cm_->addresses().front(), .port = 9, .token = 1}),
              "nobody listens there");
}

TEST_F(RdmaCmTest, AnAddressThatNoRdmaDeviceReachesIsRefused) {
  RdmaCmService service{.address = cm_->addresses().front(), .port = 9, .token = 1};
  service.address[12] = 192;  // 192.0.2.1, for documentation: nobody has it
  service.address[13] = 0;
  service.address[14] = 2;
  service.address[15] = 1;
  ExpectClear(Request(service), "rdma_cm to 192.0.2.1:9: ");
  service.address = {0xfd, 1};
  ExpectClear(Request(service), "no IPv6 address to connect from");
}

// A program that is none of Verbena's.
TEST_F(RdmaCmTest, ARequestWithoutOurPrivateDataIsRefused) {
  const QpHandle qp = MakeQp();
  RdmaCmService service;
  ConnectionPtr server = *cm_->Expect(Describe(qp, qp), service);
  for (const std::string& data : {std::string(), std::string("hello"), std::string(56, 'x')}) {
    rdma_cm_id* id = nullptr;  // without a channel its calls wait
    ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
    SocketAddress from(cm_->addresses().front(), 0);
    SocketAddress to(service.address, service.port);
    ASSERT_EQ(rdma_resolve_addr(id, from.get(), to.get(), 2000), 0);
    ASSERT_EQ(rdma_resolve_route(id, 2000), 0);
    rdma_conn_param parameters{};
    parameters.private_data = data.data();
    parameters.private_data_len = static_cast<uint8_t>(data.size());
    const QpHandle client_qp = MakeQp();
    parameters.qp_num = client_qp->qp_num;
    EXPECT_EQ(rdma_connect(id, &parameters), -1);
    EXPECT_EQ(errno, ECONNREFUSED);
    rdma_destroy_id(id);
  }
}

TEST_F(RdmaCmTest, NoMoreConnectionsWaitThanTheLimit) {
  const QpHandle qp = MakeQp();
  RdmaCmService service;
  std::vector<ConnectionPtr> waiting;
  for (size_t i = 0; i < kMaxExpectedConnections; ++i) {
    absl::StatusOr<ConnectionPtr> connection = cm_->Expect(Describe(qp, qp), service);
    ASSERT_TRUE(connection.ok()) << connection.status();
    waiting.push_back(*std::move(connection));
  }
  EXPECT_EQ(cm_->Expect(Describe(qp, qp), service).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace rdma_cm_test
}  // namespace verbena::internal
