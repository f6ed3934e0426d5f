// The control side of the TCP wire of one device: TcpWire, its sockets and sessions with peers.
//
// The SoftFabric owns it, on the engine's thread. TcpShares and TcpSilent bound what peers take.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
#define VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/questions.h"
#include "verbena/transport/soft/shared_memory.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/tcp_format.h"
#include "verbena/transport/soft/tcp_lane.h"
#include "verbena/transport/soft/tcp_shares.h"
#include "verbena/transport/soft/wire.h"

namespace verbena::internal::soft {

// Memory for the rings of all connections to a device, if nobody says how much: a quarter of the
// machine's, since who has more of it has more clients, and 4 GiB at least: it is address space,
// and resident only where something was written. (start)
constexpr uint64_t LaneBytesOf(uint64_t machine_bytes) {
  return std::max(machine_bytes / 4, uint64_t{4} << 30);
}

// A listening socket, and the address by which others reach it.
struct TcpWireListener {
  UniqueFd socket{};
  DeviceAddress address{};
  bool everywhere = false;  // it listens on every address
};

// `address`: numeric, IPv4 or IPv6. Empty, 0.0.0.0 or ::: listens on every address, and announces
// that of the first interface that is up and not loopback, or loopback if there is none. `port` 0:
// any.
// INVALID_ARGUMENT for an address that is none, is link-local, or is not of this host;
// FAILED_PRECONDITION for a port in use; PERMISSION_DENIED for one that needs privileges; otherwise
// the errors of socket(2) and bind(2). Each message names the address and the port.
absl::StatusOr<TcpWireListener> ListenTcp(const std::string& address, uint16_t port);

// A CQ of ours, and one of the peer's.
struct CqPair {
  uint64_t ours = 0;
  uint64_t theirs = 0;

  friend auto operator<=>(const CqPair&, const CqPair&) = default;
};

// A socket that is not, or not yet, a LanePair's.
struct TcpWireConnection {
  enum class Phase {
    kDialing,   // until the socket is connected
    kGreeting,  // until the other side's greeting is there
    kControl,
  };

  uint64_t id = 0;
  UniqueFd socket;
  Phase phase = Phase::kGreeting;
  TcpGreeting::Kind kind = TcpGreeting::Kind::kControl;
  bool dialed = false;
  bool probe = false;   // looks whether another device has the session's name
  uint64_t secret = 0;  // of a dialed one: the session that it greets with
  bool over = false;
  TcpSource source;        // of an accepted one
  TcpShares::Share share;  // of a dialed one's socket, unless the session has it
  // The session that it belongs to: of dialed ones from the start, of others since their greeting.
  DeviceAddress address;
  CqPair cqs;                   // of a dialed lane connection
  TimePoint deadline = kNever;  // of its greeting
  std::array<std::byte, TcpGreeting::kBytes> incoming;
  size_t incoming_bytes = 0;
  std::vector<std::byte> outgoing;  // what the socket did not take yet
  bool watches_writable = false;
};

// TcpSession: what one device has agreed with one peer over the TCP wire.
//
// A session begins when somebody wants to reach the peer, or the peer comes. It is up while a
// control connection stands, and ends with it: all connections between CQs end then, too. Part of
// TcpWire, and used on the engine's thread.
struct TcpSession {
  // The connection between two CQs, or the wish for one.
  struct Lanes {
    std::weak_ptr<LanePair> pair;
    bool pending = false;         // dialed, or asked for
    bool asked_by_peer = false;   // which is told if it fails
    TimePoint deadline = kNever;  // of one that was asked for
    std::vector<ConnectRequest> waiting;

    bool up() const {
      const std::shared_ptr<LanePair> there = pair.lock();
      return there != nullptr && !there->closed();
    }
  };

  // Forgets lanes that are over, and that nobody asked for again.
  void PruneLanes() {
    std::erase_if(lanes,
                  [](const auto& entry) { return !entry.second.pending && !entry.second.up(); });
  }

  DeviceAddress address;
  TcpShares::Share share;  // of the peer, and of the socket of its control connection
  uint64_t dialing = 0;    // the connection that we dial, or 0
  uint64_t control = 0;    // the control connection, or 0 until the session is up
  bool dialed = false;     // the control connection is one that we dialed
  uint64_t our_secret = 0;
  uint64_t their_secret = 0;
  std::shared_ptr<Peer> peer;           // null until the session is up
  bool had_lanes = false;               // CQs may know the peer
  TimePoint deadline = kNever;          // until which the peer's own dial is waited for
  TimePoint probe_again{};              // no sooner is somebody else looked for under its name
  std::vector<ConnectRequest> waiting;  // until it is up
  Questions questions;
  std::map<CqPair, Lanes> lanes;
};

// TcpWire: the control side of the TCP wire of one device.
//
// The wire listens on the device's port. With each peer device it keeps one control connection, on
// which both resolve QP numbers to CQs, and one connection for each pair of CQs that exchange
// messages (tcp_lane.h). Whoever dialed the control connection dials these, too: so a firewall may
// forbid the other direction. When a control connection ends, all lanes of that peer end with it.
//
// Strangers harm nobody: sockets that have not greeted are few and closed in time, what they say is
// checked (tcp_format.h), and no host gets more than its share of peers, connections and memory
// (TcpShares). Runs on the engine's thread; Connect may be called from any.
class TcpWire final : public Engine::Wire {
 public:
  // Sockets that were accepted and have not greeted; at most an eighth of RLIMIT_NOFILE. For one
  // more, the oldest makes way of the source that has most of them.
  static constexpr size_t kMaxSilent = 256;
  // Dials that have greeted, and that no queue pair waits for any more: the peer may still take the
  // session for its own. They hold a share of the address that was dialed, which a client chose. So
  // for one more, one makes way, by the same rule. (start)
  static constexpr size_t kMaxUnwanted = 32;
  static constexpr size_t kMaxSessions = 4096;
  // From a session's beginning, or from the last look for another owner of its name, to the next
  // one. Two devices that dial each other at once are one of them. (start)
  static constexpr Duration kProbePause = std::chrono::seconds(1);

  // `state` and `host` outlive it. Precondition: the options have a TCP wire.
  TcpWire(SoftState& state, WireHost& host, TcpWireListener listener);
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;
  ~TcpWire();

  absl::Status Start();
  const DeviceAddress& address() const { return listener_.address; }
  // Readable when Serve has something to do. CQs that nobody polls add their own epoll to it.
  int fd() const override { return epoll_.get(); }
  // When Serve has something to do although fd() may not be readable.
  TimePoint next() const override { return next_; }

  // Any thread. WireHost::FinishConnect hears the outcome.
  void Connect(const ConnectRequest& request);
  // Any thread. The queue pair of `request` is no more. If nobody else waits for its peer, and
  // nothing was said to it yet, the device stops dialing the peer. Otherwise a client that claims
  // many addresses would cause as many dials at once.
  void Forget(const ConnectRequest& request);
  // One turn. True when something happened.
  bool Serve(TimePoint now) override;

 private:
  using Phase = TcpWireConnection::Phase;
  // A flood of one sort hides no line of another.
  struct Logs {
    ThrottledLog ended{LogComponent::kDevice, {}};
    ThrottledLog refused{LogComponent::kDevice,
                         {}};  // for wanting more than a share, or another's name
    ThrottledLog lost{LogComponent::kDevice, {}};
  };

  // Sockets and greetings.
  void TakeRequests();
  void AcceptSome();
  void MakeRoomForSilent(const IpAddress& newcomer);
  TcpWireConnection& Add(UniqueFd socket);
  TcpWireConnection* Find(uint64_t id);
  void OnReady(TcpWireConnection& connection);
  absl::Status Dialed(TcpWireConnection& connection);
  absl::Status Read(TcpWireConnection& connection);
  absl::Status Send(TcpWireConnection& connection, std::span<const std::byte> bytes);
  absl::Status Flush(TcpWireConnection& connection);
  // RESOURCE_EXHAUSTED if the kernel watches no more descriptors.
  absl::Status BeginWatching(TcpWireConnection& connection, uint32_t events);
  void Watch(TcpWireConnection& connection, bool writable);
  // Changes which events of a descriptor that is watched concern connection `id`; 0: the listener.
  void ChangeWatch(int fd, uint32_t events, uint64_t id);
  absl::Status OnGreeting(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status OnAnswer(TcpWireConnection& connection, const TcpGreeting& greeting);
  absl::Status Refuse(TcpWireConnection& connection, TcpGreeting::Kind kind,
                      TcpGreeting::Verdict verdict);
  void End(TcpWireConnection& connection, const absl::Status& reason);
  // Forgets the socket, which is a LanePair's from here on.
  UniqueFd Release(TcpWireConnection& connection);
  void Expire();
  void Until(TimePoint deadline);

  // Agreements with peers.
  void StartRequest(const ConnectRequest& request);
  void ForgetRequest(const ConnectRequest& request);
  // Keeps a dial that has greeted, and that nobody waits for any more.
  void KeepUnwanted(const TcpWireConnection& dial);
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
  // The peer did not answer some of its questions in time.
  void FailOverdue(const DeviceAddress& address);
  absl::Status HandleDial(TcpSession& session, const TcpControl& message);
  absl::Status WantLanes(TcpSession& session, const ConnectRequest& request, CqPair cqs);
  void FailLanes(TcpSession& session, CqPair cqs);
  void OnDialFailed(TcpWireConnection& connection);
  void EndSession(const DeviceAddress& address, const absl::Status& reason);
  TcpSession* FindSession(const DeviceAddress& address);

  // Names and shares.
  // RESOURCE_EXHAUSTED, and in the log, if the source may have no more.
  absl::StatusOr<TcpShares::Share> TakeShare(const IpAddress& source,
                                             std::initializer_list<TcpShares::Wanted> wanted);
  absl::StatusOr<TcpShares::Share> TakePeer(const IpAddress& source);
  absl::StatusOr<TcpShares::Share> TakeSocket(const IpAddress& source);
  absl::StatusOr<TcpShares::Share> TakeLanes(const IpAddress& source, uint64_t cq,
                                             const LaneGeometry& theirs);
  bool MayHaveThatName(const TcpWireConnection& connection, const TcpGreeting& greeting);
  // Dials the name of a session that somebody else claims.
  void Probe(TcpSession& session);
  absl::Status OnProbed(TcpSession& session, TcpWireConnection& connection,
                        const TcpGreeting& greeting);
  static uint64_t NewTcpSecret();

  SoftState& state_;
  WireHost& host_;
  TcpWireListener listener_;
  const bool dial_from_own_address_;
  UniqueFd epoll_;
  TimePoint now_{};
  TimePoint next_ = kNever;
  TimePoint accept_again_ = kNever;  // while there are no descriptors
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<TcpWireConnection>> connections_;
  TcpSilent silent_;    // may name sockets that have greeted
  TcpSilent unwanted_;  // likewise, and dials that somebody waits for again
  std::map<DeviceAddress, std::unique_ptr<TcpSession>> sessions_;
  std::vector<std::unique_ptr<TcpWireConnection>> over_;  // until the end of the turn
  TcpShares shares_;
  // The CQ controls of all peers. They say for ever that the peer polls, so nobody wakes it.
  std::shared_ptr<SharedRegion> controls_;
  TimePoint sweep_again_{};  // when lanes that are over may be looked for again
  Logs logs_;

  std::mutex requests_mutex_;
  std::vector<ConnectRequest> requests_;
  std::vector<ConnectRequest> forgotten_;  // after requests_
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_WIRE_H_
