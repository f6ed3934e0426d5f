// TcpWire: the control side of the TCP wire of one device.
//
// The wire listens on the device's port. With each peer device it keeps one control connection, on
// which both resolve QP numbers to CQs, and one connection for each pair of CQs that exchange
// messages (lane_pair.h). Whoever dialed the control connection dials these, too: so a firewall may
// forbid the other direction. When a control connection ends, all lanes of that peer end with it.
//
// Strangers harm nobody: sockets that have not greeted are few and closed in time, what they say is
// checked (tcp_format.h), and no host gets more than its share of peers, connections and memory
// (tcp_shares.h). Runs on the engine's thread; Connect may be called from any.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
#define VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/soft/connect_request.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/device_address.h"
#include "verbena/transport/soft/tcp_format.h"
#include "verbena/transport/soft/tcp_session.h"
#include "verbena/transport/soft/tcp_shares.h"
#include "verbena/transport/soft/tcp_silent.h"
#include "verbena/transport/soft/tcp_socket.h"

namespace verbena::internal::soft {

class Rnic;

class TcpWire {
 public:
  // Sockets that were accepted and have not greeted; at most an eighth of RLIMIT_NOFILE. For one
  // more, the oldest makes way of the source that has most of them.
  static constexpr size_t kMaxSilent = 256;
  // Queue pair numbers that a peer was asked for, and did not find in time.
  static constexpr size_t kMaxUnanswered = 1024;
  static constexpr size_t kMaxSessions = 4096;
  // From a session's beginning, or from the last look for another owner of its name, to the next
  // one. Two devices that dial each other at once are one of them. (start)
  static constexpr Duration kProbePause = std::chrono::seconds(1);

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
  // Any thread. The queue pair of `request` is no more. If nobody else waits for its peer, and
  // nothing was said to it yet, the peer is dialed no longer: otherwise who claims one address
  // after the other would have as many dials under way.
  void Forget(const ConnectRequest& request);
  // One turn. True when something happened.
  bool Serve(TimePoint now);

 private:
  using Phase = TcpWireConnection::Phase;
  // A flood of one sort hides no line of another.
  struct Logs {
    ThrottledLog ended{{}};
    ThrottledLog refused{{}};  // for wanting more than a share, or another's name
    ThrottledLog lost{{}};
  };

  // Sockets and greetings (tcp_wire.cc).
  void TakeRequests();
  void AcceptSome();
  void MakeRoomForSilent(const ibv_gid& newcomer);
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
  void ForgetRequest(const ConnectRequest& request);
  TcpSession& AddSession(const DeviceAddress& address, TcpShares::Share share);
  void Dial(TcpSession& session, TcpGreeting::Kind kind, CqPair cqs);
  absl::Status AcceptControl(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status AcceptLanes(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status OpenSession(TcpSession& session, TcpWireConnection& connection,
                           uint64_t their_secret);
  absl::Status OpenLanes(TcpSession& session, CqPair cqs, UniqueFd socket,
                         const LaneGeometry& theirs, const TcpShares::Share& share);
  absl::Status OpenDialedLanes(TcpSession& session, TcpWireConnection& connection,
                               const LaneGeometry& theirs);
  absl::Status Handle(TcpWireConnection& connection, const TcpControl& message);
  absl::Status Say(TcpSession& session, const TcpControl& message);
  absl::Status Resolve(TcpSession& session, const ConnectRequest& request);
  absl::Status HandleResolved(TcpSession& session, const TcpControl& message);
  // The peer did not answer in time.
  void FailResolve(const DeviceAddress& address, uint64_t request);
  absl::Status HandleDial(TcpSession& session, const TcpControl& message);
  absl::Status WantLanes(TcpSession& session, const ConnectRequest& request, CqPair cqs);
  void FailLanes(TcpSession& session, CqPair cqs);
  void OnDialFailed(TcpWireConnection& connection);
  void EndSession(const DeviceAddress& address, const absl::Status& reason);
  TcpSession* FindSession(const DeviceAddress& address);

  // Names and shares (tcp_wire_claims.cc).
  // RESOURCE_EXHAUSTED, and in the log, if the source may have no more.
  absl::StatusOr<TcpShares::Share> TakeShare(const ibv_gid& source,
                                             std::initializer_list<TcpShares::Wanted> wanted);
  absl::StatusOr<TcpShares::Share> TakePeer(const ibv_gid& source);
  absl::StatusOr<TcpShares::Share> TakeSocket(const ibv_gid& source);
  absl::StatusOr<TcpShares::Share> TakeLanes(const ibv_gid& source, uint64_t cq,
                                             const LaneGeometry& theirs);
  bool MayHaveThatName(const TcpWireConnection& connection, const TcpGreeting& greeting);
  // Dials the name of a session that somebody else claims.
  void Probe(TcpSession& session);
  absl::Status OnProbed(TcpSession& session, TcpWireConnection& connection,
                        const TcpGreeting& greeting);
  static uint64_t NewTcpSecret();

  Rnic& rnic_;
  TcpWireListener listener_;
  const bool dial_from_own_address_;
  UniqueFd epoll_;
  TimePoint now_{};
  TimePoint next_ = kNever;
  TimePoint accept_again_ = kNever;  // while there are no descriptors
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<TcpWireConnection>> connections_;
  TcpSilent silent_;  // may name sockets that have greeted
  std::map<DeviceAddress, std::unique_ptr<TcpSession>> sessions_;
  std::vector<std::unique_ptr<TcpWireConnection>> over_;  // until the end of the turn
  TcpShares shares_;
  TimePoint sweep_again_{};  // when lanes that are over may be looked for again
  Logs logs_;

  std::mutex requests_mutex_;
  std::vector<ConnectRequest> requests_;
  std::vector<ConnectRequest> forgotten_;  // after requests_
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
