// TcpSession: what one device has agreed with one peer over the TCP wire.
//
// A session begins when somebody wants to reach the peer, or the peer comes. It is up while a
// control connection stands, and ends with it: all connections between CQs end then, too. Part of
// TcpWire (tcp_wire.h), and used on the engine's thread.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_SESSION_H_
#define VERBENA_TRANSPORT_SOFT_TCP_SESSION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/soft/connect_request.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/device_address.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/tcp_format.h"
#include "verbena/transport/soft/tcp_shares.h"
#include "verbena/transport/soft/tcp_source.h"

namespace verbena::internal::soft {

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

  struct Resolving {
    std::optional<ConnectRequest> request;
    TimePoint deadline = kNever;
  };

  DeviceAddress address;
  TcpShares::Share share;  // of the peer, and of the socket of its control connection
  uint64_t dialing = 0;    // the connection that we dial, or 0
  uint64_t control = 0;    // the control connection, or 0 until the session is up
  bool dialed = false;     // the control connection is one that we dialed
  uint64_t our_secret = 0;
  uint64_t their_secret = 0;
  std::shared_ptr<Peer> peer;
  TimePoint deadline = kNever;          // until which the peer's own dial is waited for
  TimePoint probe_again{};              // no sooner is somebody else looked for under its name
  std::vector<ConnectRequest> waiting;  // until it is up
  // Until kResolved. Those that it does not answer in time are empty, and as many as
  // kMaxUnanswered.
  std::unordered_map<uint64_t, Resolving> resolving;
  size_t unanswered = 0;
  std::map<CqPair, Lanes> lanes;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_SESSION_H_
