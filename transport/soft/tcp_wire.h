// TcpWire: the control side of the TCP wire of one device.
//
// The wire listens on the device's port. With each peer device it keeps one control connection, on
// which both resolve QP numbers to CQs, and one connection for each pair of CQs that exchange
// messages (lane_pair.h). Whoever dialed the control connection dials these, too: so a firewall may
// forbid the other direction. When a control connection ends, all lanes of that peer end with it.
//
// Strangers harm nobody: sockets that have not greeted are few and closed in time, and what they
// say is checked (tcp_format.h). Runs on the engine's thread; Connect may be called from any.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
#define VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/log/throttled_log.h"
#include "verbena/transport/soft/connect_request.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/device_address.h"
#include "verbena/transport/soft/tcp_format.h"
#include "verbena/transport/soft/tcp_session.h"
#include "verbena/transport/soft/tcp_socket.h"

namespace verbena::internal::soft {

class Rnic;

class TcpWire {
 public:
  // Sockets that were accepted and have not greeted. The oldest makes way for one more.
  static constexpr size_t kMaxSilent = 256;

  TcpWire(Rnic& rnic, TcpWireListener listener, bool dial_from_own_address);
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;
  ~TcpWire();

  absl::Status Start();
  const DeviceAddress& address() const { return listener_.address; }
  // Readable when Serve has something to do. CQs that nobody polls add their own epoll to it.
  int fd() const { return epoll_.get(); }
  // When Serve has something to do although fd() may not be readable.
  TimePoint next() const { return next_; }

  // Any thread. Rnic::FinishConnect hears the outcome.
  void Connect(const ConnectRequest& request);
  // One turn. True when something happened.
  bool Serve(TimePoint now);

 private:
  using Phase = TcpWireConnection::Phase;

  // Sockets and greetings (tcp_wire.cc).
  void TakeRequests();
  void AcceptSome();
  TcpWireConnection& Add(UniqueFd socket);
  TcpWireConnection* Find(uint64_t id);
  void OnReady(TcpWireConnection& connection);
  absl::Status Dialed(TcpWireConnection& connection);
  absl::Status Read(TcpWireConnection& connection);
  absl::Status Send(TcpWireConnection& connection, std::span<const std::byte> bytes);
  absl::Status Flush(TcpWireConnection& connection);
  void Watch(TcpWireConnection& connection, bool writable);
  absl::Status OnGreeting(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status OnAnswer(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status Refuse(TcpWireConnection& connection, TcpGreeting::Kind kind,
                      TcpGreeting::Verdict verdict);
  void End(TcpWireConnection& connection, const absl::Status& reason);
  // Forgets the socket, which is a LanePair's from here on.
  UniqueFd Release(TcpWireConnection& connection);
  void Expire();
  void Until(TimePoint deadline);

  // Agreements with peers (tcp_wire_sessions.cc).
  void StartRequest(const ConnectRequest& request);
  void Dial(TcpSession& session, TcpGreeting::Kind kind, CqPair cqs);
  absl::Status AcceptControl(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status AcceptLanes(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status OpenSession(TcpSession& session, TcpWireConnection& connection,
                           uint64_t their_secret);
  absl::Status OpenLanes(TcpSession& session, CqPair cqs, UniqueFd socket,
                         const LaneGeometry& theirs);
  absl::Status Handle(TcpWireConnection& connection, const TcpControl& message);
  absl::Status Say(TcpSession& session, const TcpControl& message);
  absl::Status Resolve(TcpSession& session, const ConnectRequest& request);
  absl::Status HandleResolved(TcpSession& session, const TcpControl& message);
  absl::Status HandleDial(TcpSession& session, const TcpControl& message);
  absl::Status WantLanes(TcpSession& session, const ConnectRequest& request, CqPair cqs);
  void FailLanes(TcpSession& session, CqPair cqs);
  void OnDialFailed(TcpWireConnection& connection);
  void EndSession(const DeviceAddress& address, const absl::Status& reason);
  TcpSession* FindSession(const DeviceAddress& address);

  Rnic& rnic_;
  TcpWireListener listener_;
  const bool dial_from_own_address_;
  UniqueFd epoll_;
  TimePoint now_{};
  TimePoint next_ = kNever;
  TimePoint accept_again_ = kNever;  // while there are no descriptors
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<TcpWireConnection>> connections_;
  std::deque<uint64_t> silent_;  // accepted, oldest first; may name some that have greeted
  std::map<DeviceAddress, std::unique_ptr<TcpSession>> sessions_;
  std::vector<std::unique_ptr<TcpWireConnection>> over_;  // until the end of the turn
  ThrottledLog refused_{{}};

  std::mutex requests_mutex_;
  std::vector<ConnectRequest> requests_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
