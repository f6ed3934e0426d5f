// A device's asynchronous events end the links that they concern and no others, replace lost
// queues, and keep new links to addresses that work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/device/raising_device.h"
#include "tests/transport/link/fake_connector.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace device_events_test {

using ::testing::HasSubstr;

class DeviceEventsTest : public LinksFixture {
 protected:
  void SetUp() override {
    Start({}, {});
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto raising = std::make_unique<RaisingDevice>(device);
    raising_ = raising.get();
    return raising;
  }
  RaisingDevice& raising() { return *raising_; }
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }

  // Tries until a link comes about, and uses it in both directions.
  void ExpectThatNewLinksWork() {
    Receiver client_listener, server_listener;
    absl::StatusOr<Link*> link = absl::UnknownError("");
    while (!link.ok()) {
      link = TryConnect(client_listener, server_listener);
      for (int turn = 0; turn < 100; ++turn) executor().Poll();
    }
    PollUntil([this] { return accepted().has_value(); });
    Flood there(3000, 32), back(3000, 32);
    there.Run(**link);
    back.Run(***accepted());
    PollUntil(
        [&] { return server_listener.received() == 3000 && client_listener.received() == 3000; });
    (*link)->Close(absl::CancelledError("the test ends it"));
    const uint32_t others = link_ != nullptr && link_->open() ? 2 : 0;
    PollUntil([&] { return client().stats().links + server().stats().links == others; });
  }
  void ExpectThatTheLinkServes() {
    const uint32_t before = server_listener_.received();
    Flood flood(before + 100, 32, before);
    flood.Run(*link_);
    PollUntil([&] { return server_listener_.received() == before + 100; });
  }
  void AwaitLoss() {
    WaitUntilNoLinks();
    link_ = nullptr;
  }

  Receiver client_listener_, server_listener_;
  Link* link_ = nullptr;

 private:
  RaisingDevice* raising_ = nullptr;
};

// Both ends' queues, one after the other: each endpoint takes links again.
TEST_F(DeviceEventsTest, AQueueThatIsLostIsReplacedAndNewLinksUseTheNewOne) {
  if (!device().capabilities().srq)
    GTEST_SKIP() << "the device has no shared receive queue to lose";
  size_t current[] = {0, 1};  // the client's and the server's, of all that were made
  for (const ibv_event_type type : {IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_WQ_FATAL}) {
    for (size_t side = 0; side < 2; ++side) {
      const size_t queues = raising().cqs().size();
      ASSERT_EQ(raising().srqs().size(), queues);
      if (link_ == nullptr) {
        client_listener_ = Receiver();
        server_listener_ = Receiver();
        link_ = Connect(client_listener_, server_listener_);
        ASSERT_NE(link_, nullptr);
      }
      const size_t index = current[side];
      current[side] = queues;
      void* const lost = type == IBV_EVENT_CQ_ERR ? static_cast<void*>(raising().cqs()[index])
                                                  : static_cast<void*>(raising().srqs()[index]);
      raising().Raise(type, lost);
      AwaitLoss();
      EXPECT_TRUE(absl::IsUnavailable(client_listener_.reason())) << client_listener_.reason();
      EXPECT_THAT(Message(client_listener_.reason()) + Message(server_listener_.reason()),
                  HasSubstr(ibv_event_type_str(type)));
      const size_t replaced = type == IBV_EVENT_WQ_FATAL ? 2 : 1;
      PollUntil([&] { return raising().cqs().size() == queues + replaced; });
      ExpectThatNewLinksWork();
      if (replaced == 2) break;
    }
  }
}

TEST_F(DeviceEventsTest, AQueuePairThatFailsEndsItsLinkAndNoOther) {
  Receiver other_client, other_server;
  Link* other = Connect(other_client, other_server);
  ASSERT_NE(other, nullptr);
  const uint32_t qpn = other->qpn();
  for (ibv_qp* qp : raising().qps()) {
    if (qp->qp_num == qpn) raising().Raise(IBV_EVENT_QP_FATAL, qp);
  }
  PollUntil([&] { return client().stats().links + server().stats().links == 2; });
  EXPECT_THAT(Message(other_client.reason()), HasSubstr(ibv_event_type_str(IBV_EVENT_QP_FATAL)));
  ExpectThatTheLinkServes();
  ExpectThatNewLinksWork();
}

// The other events are for requests of the peer's, which no other device would take either.
TEST_F(DeviceEventsTest, OnlyAQueuePairThatFailsCountsAgainstItsDevice) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    Receiver client_end, server_end;
    Link* const link = Connect(client_end, server_end);
    ASSERT_NE(link, nullptr);
    // The queue pairs of earlier rounds are gone.
    const std::vector<ibv_qp*> made = raising().qps();
    ASSERT_GE(made.size(), 2u);
    for (ibv_qp* qp : {made[made.size() - 2], made.back()}) {
      if (qp->qp_num == link->qpn()) raising().Raise(type, qp);
    }
    PollUntil([&] { return client().stats().links + server().stats().links == 2; });
    EXPECT_THAT(Message(client_end.reason()), HasSubstr(ibv_event_type_str(type)));
    EXPECT_EQ(client_end.broken(), type == IBV_EVENT_QP_FATAL) << ibv_event_type_str(type);
  }
}

TEST_F(DeviceEventsTest, ALinkBegunAfterItsPortChangedTellsThePeerTheNewAddress) {
  uint16_t lid = 7;
  for (const ibv_event_type type :
       {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_PORT_ACTIVE}) {
    raising().SetPort(IBV_PORT_ACTIVE, ++lid);
    raising().Raise(type);
    // A thread of its own reads it.
    ASSERT_TRUE(DoneInTime([&] { return device_context().address().lid == lid; }))
        << ibv_event_type_str(type);
    ExpectThatNewLinksWork();
    EXPECT_EQ(last_offer().lid, lid);
    ExpectThatTheLinkServes();
  }
}

TEST_F(DeviceEventsTest, WhileItsPortIsDownNewLinksAreRefusedAndItsLinksStay) {
  raising().SetPort(IBV_PORT_DOWN, 0);
  raising().Raise(IBV_EVENT_PORT_ERR);
  PollUntil([this] { return !device_context().CurrentAddress("").ok(); });
  Receiver client_listener, server_listener;
  const absl::Status refused = TryConnect(client_listener, server_listener).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("port 1"));
  ExpectThatTheLinkServes();
  raising().SetPort(IBV_PORT_ACTIVE, 0);
  raising().Raise(IBV_EVENT_PORT_ACTIVE);
  PollUntil([this] { return device_context().CurrentAddress("").ok(); });
  ExpectThatNewLinksWork();
  ExpectThatTheLinkServes();
}

TEST_F(DeviceEventsTest, ADeviceThatFailsOrIsRemovedEndsItsLinksAndTakesNoMore) {
  raising().Raise(IBV_EVENT_DEVICE_FATAL);
  AwaitLoss();
  for (const Receiver* listener : {&client_listener_, &server_listener_}) {
    EXPECT_TRUE(absl::IsUnavailable(listener->reason())) << listener->reason();
  }
  Receiver client_listener, server_listener;
  const absl::Status refused = TryConnect(client_listener, server_listener).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("has failed, or was removed"));
}

TEST_F(DeviceEventsTest, ADeviceThatFailsWhileAQueueIsReplacedStaysOutOfService) {
  raising().Raise(IBV_EVENT_CQ_ERR, raising().cqs()[0]);
  raising().Raise(IBV_EVENT_DEVICE_FATAL);
  AwaitLoss();
  Receiver client_listener, server_listener;
  const auto refusal = [&] {
    return Message(TryConnect(client_listener, server_listener).status());
  };
  PollUntil([&] { return refusal().find("has failed, or was removed") != std::string::npos; });
  WaitUntilNoLinks();
  // New queues would be there by now.
  int turns = 0;
  PollUntil([&turns] { return ++turns > 10'000; });
  EXPECT_THAT(refusal(), HasSubstr("has failed, or was removed"));
}

// No thread reads events, and no link is there whose timer would.
class UnattendedEventsTest : public DeviceEventsTest {
 protected:
  void SetUp() override { Start({}, {}); }
  bool has_event_thread() const override { return false; }
};

TEST_F(UnattendedEventsTest, ANewLinkReadsWhatHasHappenedBefore) {
  raising().SetPort(IBV_PORT_DOWN, 0);
  raising().Raise(IBV_EVENT_PORT_ERR);
  const absl::Status refused = TryConnect(client_listener_, server_listener_).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("port 1"));
  raising().SetPort(IBV_PORT_ACTIVE, 0);
  raising().Raise(IBV_EVENT_PORT_ACTIVE);
  ExpectThatNewLinksWork();
}

// Opened by an address that is taken away, and given back: opening it says NOT_FOUND meanwhile.
TEST_F(UnattendedEventsTest, APortThatLacksItsAddressRefusesLinksUntilItHasOne) {
  raising().SetPortMissing(absl::NotFoundError("no RDMA device with address 10.0.0.1"));
  raising().Raise(IBV_EVENT_GID_CHANGE);
  const absl::Status refused = TryConnect(client_listener_, server_listener_).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("10.0.0.1"));
  raising().SetPortMissing(absl::OkStatus());
  raising().Raise(IBV_EVENT_GID_CHANGE);
  ExpectThatNewLinksWork();
}

// Queue pairs are connected by a connection manager, which has addresses of its own.
class ManagedEventsTest : public UnattendedEventsTest {
 protected:
  void SetUp() override {
    Start({}, {}, &connector_);
    connector_.set_device(device());
  }

  FakeConnector connector_;
};

TEST_F(ManagedEventsTest, AConnectionManagerIsToldOfEachChangeOfThePortsAddress) {
  connector_.move_status = absl::FailedPreconditionError("rdma_cm needs an IP address on port 1");
  raising().Raise(IBV_EVENT_GID_CHANGE);
  const absl::Status refused = TryConnect(client_listener_, server_listener_).status();
  EXPECT_EQ(connector_.moves, 1);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("rdma_cm needs an IP address"));
  connector_.move_status = absl::OkStatus();
  raising().Raise(IBV_EVENT_GID_CHANGE);
  ExpectThatNewLinksWork();
  EXPECT_EQ(connector_.moves, 2);
}

}  // namespace device_events_test
}  // namespace verbena::internal
