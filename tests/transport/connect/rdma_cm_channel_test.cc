// An id of rdma_cm is destroyed where its events are handled, and nowhere else while that thread
// runs; a client's id has its traffic class before it is resolved. The test stands in for
// librdmacm, so that it holds an event between its being acknowledged and its being handled.

#include "verbena/transport/connect/rdma_cm.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

#include "verbena/transport/base/socket.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/connect/qp_connector.h"

namespace {

std::atomic<rdma_cm_id*> g_removed = nullptr;  // an event of this id is due
std::atomic<rdma_cm_id*> g_handled = nullptr;  // its event is acknowledged and not yet handled
std::atomic<bool> g_go_on = false;             // the event is handled then
std::atomic<bool> g_destroyed_too_early = false;
std::atomic<int> g_destroyed = 0;
std::atomic<int> g_type_of_service = -1;  // what an id was given last
std::atomic<int> g_resolved_with = -1;    // and what it was when an address was resolved
rdma_cm_event g_event{};

}  // namespace

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  return new rdma_event_channel{.fd = eventfd(0, EFD_CLOEXEC)};
}

void rdma_destroy_event_channel(rdma_event_channel* channel) {
  close(channel->fd);
  delete channel;
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space) {
  *id = new rdma_cm_id{};
  (*id)->channel = channel;
  (*id)->context = context;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* id) {
  if (id == g_handled.load()) {
    g_destroyed_too_early = true;
  } else {
    delete id;
  }
  ++g_destroyed;
  return 0;
}

int rdma_set_option(rdma_cm_id*, int level, int option, void* value, size_t bytes) {
  EXPECT_EQ(level, RDMA_OPTION_ID);
  EXPECT_EQ(option, RDMA_OPTION_ID_TOS);
  EXPECT_EQ(bytes, 1u);
  g_type_of_service = *static_cast<uint8_t*>(value);
  return 0;
}

int rdma_resolve_addr(rdma_cm_id*, sockaddr*, sockaddr*, int) {
  g_resolved_with = g_type_of_service.load();
  errno = ENODEV;
  return -1;
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  rdma_cm_id* id = g_removed.exchange(nullptr);
  if (id == nullptr) {
    errno = EAGAIN;
    return -1;
  }
  eventfd_t count = 0;
  (void)eventfd_read(channel->fd, &count);
  g_event = {};
  g_event.id = id;
  g_event.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
  *event = &g_event;
  return 0;
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  g_handled = event->id;
  g_handled.notify_all();
  g_go_on.wait(false);
  return 0;
}

}  // extern "C"

namespace verbena::internal {
namespace {

class Listener final : public CmEventListener {
 public:
  void OnCmEvent(const CmEvent& event) override {
    EXPECT_EQ(event.id, g_handled.load());
    ++events_;
    g_handled = nullptr;
  }
  int events() const { return events_.load(); }

 private:
  std::atomic<int> events_ = 0;
};

TEST(CmChannelTest, AnIdIsDestroyedOnlyWhereItsEventsAreHandled) {
  absl::StatusOr<std::shared_ptr<CmChannel>> channel = CmChannel::Open();
  ASSERT_TRUE(channel.ok()) << channel.status();
  Listener listener;
  absl::StatusOr<rdma_cm_id*> id = (*channel)->CreateId(listener);
  ASSERT_TRUE(id.ok()) << id.status();
  const int descriptor = (*id)->channel->fd;

  g_removed = *id;
  ASSERT_EQ(eventfd_write(descriptor, 1), 0);
  g_handled.wait(nullptr);
  (*channel)->DestroyId(*id);
  g_go_on = true;
  g_go_on.notify_all();
  (*channel)->Stop();

  EXPECT_FALSE(g_destroyed_too_early);
  EXPECT_EQ(g_destroyed, 1);
  EXPECT_EQ(listener.events(), 1);
}

TEST(CmChannelTest, AnIdIsDestroyedWhenItsChannelHasStopped) {
  absl::StatusOr<std::shared_ptr<CmChannel>> channel = CmChannel::Open();
  ASSERT_TRUE(channel.ok()) << channel.status();
  Listener listener;
  absl::StatusOr<rdma_cm_id*> id = (*channel)->CreateId(listener);
  ASSERT_TRUE(id.ok()) << id.status();
  (*channel)->Stop();
  const int before = g_destroyed;
  (*channel)->DestroyId(*id);
  EXPECT_EQ(g_destroyed, before + 1);
}

// The value that an id has when it begins to resolve its address as a client.
int ResolvedWith(uint8_t traffic_class) {
  g_type_of_service = g_resolved_with = -1;
  absl::StatusOr<std::shared_ptr<CmChannel>> channel = CmChannel::Open();
  EXPECT_TRUE(channel.ok()) << channel.status();
  if (!channel.ok()) return -1;
  auto connection =
      std::make_shared<CmConnection>(*channel, "fake0", ConnectableQp{}, "its server");
  connection->Start(IpAddress{}, RdmaCmService{}, traffic_class);
  CmConnection::Share(std::move(connection)).reset();
  (*channel)->Stop();
  return g_resolved_with;
}

TEST(CmConnectionTest, AClientsTrafficClassIsSetBeforeItsAddressIsResolved) {
  EXPECT_EQ(ResolvedWith(106), 106);
}

TEST(CmConnectionTest, WithoutATrafficClassTheKernelChooses) { EXPECT_EQ(ResolvedWith(0), -1); }

}  // namespace
}  // namespace verbena::internal
