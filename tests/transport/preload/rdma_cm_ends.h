// Both ends of a connection in one process, driven by librdmacm's calls, for the tests of the
// connection manager.

#ifndef VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_ENDS_H_
#define VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_ENDS_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <string>

namespace verbena::internal::preload {

inline sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

inline sockaddr* AsAddress(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

// An event that is acknowledged with its holder.
class GotEvent {
 public:
  explicit GotEvent(rdma_cm_event* event) : event_(event) {}
  GotEvent(GotEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  ~GotEvent() {
    if (event_ != nullptr) rdma_ack_cm_event(event_);
  }
  rdma_cm_event* operator->() const { return event_; }
  bool there() const { return event_ != nullptr; }
  std::string name() const { return there() ? rdma_event_str(event_->event) : "no event"; }
  std::string private_data() const {
    const rdma_conn_param& conn = event_->param.conn;
    return std::string(static_cast<const char*>(conn.private_data), conn.private_data_len);
  }

 private:
  rdma_cm_event* event_;
};

// A channel whose events are waited for: for long, so that only a failure takes long.
class WaitedChannel {
 public:
  WaitedChannel() : channel_(rdma_create_event_channel()) {}
  ~WaitedChannel() { rdma_destroy_event_channel(channel_); }
  WaitedChannel(const WaitedChannel&) = delete;
  WaitedChannel& operator=(const WaitedChannel&) = delete;

  rdma_event_channel* get() const { return channel_; }

  bool Ready(int ms = 0) const {
    pollfd ready{.fd = channel_->fd, .events = POLLIN, .revents = 0};
    return poll(&ready, 1, ms) == 1;
  }

  GotEvent Next() const {
    rdma_cm_event* event = nullptr;
    if (Ready(20'000)) rdma_get_cm_event(channel_, &event);
    return GotEvent(event);
  }

  // Takes the next event, which must be `name`. Returns its id.
  rdma_cm_id* Expect(const char* name) const {
    const GotEvent event = Next();
    EXPECT_EQ(event.name(), name) << (event.there() ? event->status : 0);
    return event.there() ? event->id : nullptr;
  }

 private:
  rdma_event_channel* channel_;
};

// A listening id and an id that is ready to connect to it, with a channel each.
class RdmaCmEnds : public testing::Test {
 protected:
  RdmaCmEnds() {
    EXPECT_EQ(rdma_create_id(passive.get(), &listener, &passive_context, RDMA_PS_TCP), 0);
    sockaddr_in any = Loopback(0);
    EXPECT_EQ(rdma_bind_addr(listener, AsAddress(any)), 0);
    EXPECT_EQ(rdma_listen(listener, 8), 0);
    client = Resolved(port());
  }

  ~RdmaCmEnds() override {
    for (rdma_cm_id* id : {client, server, listener}) {
      if (id == nullptr) continue;
      rdma_destroy_qp(id);
      rdma_destroy_id(id);
    }
  }

  uint16_t port() const { return ntohs(rdma_get_src_port(listener)); }

  // An id whose route to `port` is resolved.
  rdma_cm_id* Resolved(uint16_t port) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(active.get(), &id, &active_context, RDMA_PS_TCP), 0);
    sockaddr_in peer = Loopback(port);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, AsAddress(peer), 1000), 0);
    EXPECT_EQ(active.Expect("RDMA_CM_EVENT_ADDR_RESOLVED"), id);
    EXPECT_EQ(rdma_resolve_route(id, 1000), 0);
    EXPECT_EQ(active.Expect("RDMA_CM_EVENT_ROUTE_RESOLVED"), id);
    return id;
  }

  static void MakeQp(rdma_cm_id* id) {
    ibv_qp_init_attr init = {};
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 4;
    init.cap.max_recv_wr = 4;
    ASSERT_EQ(rdma_create_qp(id, nullptr, &init), 0);
  }

  // Connects client and server, both with queue pairs.
  void Connect() {
    MakeQp(client);
    ASSERT_EQ(rdma_connect(client, nullptr), 0);
    server = passive.Expect("RDMA_CM_EVENT_CONNECT_REQUEST");
    ASSERT_NE(server, nullptr);
    MakeQp(server);
    ASSERT_EQ(rdma_accept(server, nullptr), 0);
    ASSERT_EQ(active.Expect("RDMA_CM_EVENT_ESTABLISHED"), client);
    ASSERT_EQ(passive.Expect("RDMA_CM_EVENT_ESTABLISHED"), server);
  }

  int passive_context = 0;
  int active_context = 0;
  WaitedChannel passive;
  WaitedChannel active;
  rdma_cm_id* listener = nullptr;
  rdma_cm_id* client = nullptr;
  rdma_cm_id* server = nullptr;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_ENDS_H_
