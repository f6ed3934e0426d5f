// SharedWire: the control side of the shared-memory wire of one device.
//
// The wire listens under the device's address, and keeps a connection to each process that one of
// our QPs, or one of theirs, leads to. Over a connection the two agree on lanes: which receive CQ a
// QP number stands for, and the memory of the rings between two CQs. When a connection ends, or its
// process does, all lanes of that peer end with it, and so does its other connection, if it has
// one.
//
// Whoever gives a peer up fails its own lanes first, then says so by the end of the connection, and
// waits for the peer's. Until that comes the peer, which may be stopped, may go on with a copy that
// it has begun, or begin one.
//
// A process that connects to us claims an address. It never gets the address of a device of our own
// process. If another process, or another device, already has the address with us, the claim counts
// only if the kernel confirms it (MayFollow). Otherwise we refuse the claiming process, and no lane
// ends. One limit: the kernel does not tell apart processes that our PID namespace does not show.
// If we have dialed such a process, and it has not dialed us, another one of these may pass for it
// by showing its memory (IsSameDevice).
//
// Nobody proves the name that he listens under, and any process may choose which name we are to
// reach. So the wire never waits for a peer that does not accept: it tries a few times more, while
// the engine does its other work. A peer that accepts and then says nothing, as a process that was
// stopped, has kGreetingPatience to greet, and Questions::kPatience for each answer.
//
// Runs on the engine's thread; Connect, Forget and CloseLane may be called from any.

#ifndef VERBENA_TRANSPORT_SOFT_SHARED_WIRE_H_
#define VERBENA_TRANSPORT_SOFT_SHARED_WIRE_H_

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/questions.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/wire.h"

namespace verbena::internal::soft {

class SharedWire final : public Engine::Wire {
 public:
  // Peers whose backlog is full, and to which we try to connect again. (start)
  static constexpr size_t kMaxBusyPeers = 64;
  // Between a connection and its HELLO. Who connects waits no longer for the peer. (start)
  static constexpr Duration kGreetingPatience = std::chrono::seconds(5);

  // Both outlive it.
  SharedWire(SoftState& state, WireHost& host) : state_(state), host_(host) {}
  SharedWire(const SharedWire&) = delete;
  SharedWire& operator=(const SharedWire&) = delete;
  ~SharedWire();

  // Before all others, once.
  absl::Status Start();
  // Readable when Serve has something to do.
  int fd() const override { return epoll_.get(); }

  // Any thread. WireHost::FinishConnect hears the outcome.
  void Connect(const ConnectRequest& request);
  // Any thread. The queue pair of `request` is no more: nobody waits for its peer.
  void Forget(const ConnectRequest& request);
  // Any thread: the lane's initiator, we, will write nothing more into it.
  void CloseLane(const DeviceAddress& address, uint64_t lane);

  // Any thread: tells all peers, later ones included, that an arena is there, or is gone.
  void AnnounceArena(std::shared_ptr<const SharedArena> arena);
  void WithdrawArena(uint32_t id);

  // When Serve has something to do although fd() may not be readable; kNever: when fd() is
  // readable. No later than the next deadline.
  TimePoint next() const override;

  // One turn. True when something happened.
  bool Serve(TimePoint now) override;

 private:
  struct Connection {
    std::unique_ptr<ControlSocket> socket;
    std::shared_ptr<Peer> peer;  // null until its HELLO
    DeviceAddress address{};     // of outbound ones from the start
    bool outbound = false;
    bool over = false;    // nothing more is said on it
    bool closed = false;  // and the other side has ended it, too
    bool told_of_arenas = false;
    TimePoint deadline = kNever;         // of its HELLO
    ino_t controls_inode = 0;            // of its HELLO: tells devices of one process apart
    std::vector<ConnectRequest> unsent;  // wait for its HELLO
    Questions questions;                 // wait for kResolved
  };
  // A peer whose backlog is full.
  struct BusyPeer {
    DeviceAddress address;
    TimePoint next;   // when to connect again
    TimePoint until;  // the last attempt is at this time or later
    std::vector<ConnectRequest> requests;
  };
  struct Closing {
    DeviceAddress address;
    uint64_t lane;
  };

  void TakeRequests();
  void TellOfArenas();
  absl::Status SendArena(Connection& connection, const std::shared_ptr<const SharedArena>& arena);
  // Connects if there is no connection yet. Until `until` it tries again if the peer is busy.
  void StartRequest(const ConnectRequest& request, TimePoint until);
  void ForgetRequest(const ConnectRequest& request);
  void TryBusyPeers();
  void EndOverdue();
  void Until(TimePoint deadline) { next_deadline_ = std::min(next_deadline_, deadline); }
  Connection* Outbound(const DeviceAddress& address);
  // Connects to the device at `request`'s address and greets it, or has `request` served otherwise
  // and returns null. `until`: as of StartRequest.
  Connection* Dial(const ConnectRequest& request, TimePoint until);
  // RESOURCE_EXHAUSTED if the kernel watches no more descriptors.
  absl::StatusOr<Connection*> Add(std::unique_ptr<ControlSocket> socket);
  // Changes which events of a descriptor that is watched concern `connection`; null: the listener.
  void Change(int fd, uint32_t events, Connection* connection);
  void Watch(Connection& connection);
  void Unwatch(const Connection& connection);
  void AcceptSome(TimePoint now);
  void Read(Connection& connection);
  absl::Status Handle(Connection& connection, ControlSocket::Received received);
  absl::Status HandleHello(Connection& connection, ControlSocket::Received received);
  // A process that was restarted may have the address of the one before, whose end was not read
  // yet. `connection` has just named its address, and `controls` is the memory of its CQs'
  // controls. PERMISSION_DENIED if the address is another device's, which may well be there.
  absl::Status EndPredecessor(Connection& connection, int controls);
  // Whether the kernel says that one process is at the other end of both. It does not say so of a
  // process that our PID namespace does not show: the process id of each of these is 0.
  static bool IsSameProcess(const Connection& connection, const Connection& other);
  // Whether both are of one device: one process shows the same memory over both. If our PID
  // namespace does not show the process, one of them must be our dial, which proves who has the
  // address, and the other one the peer's.
  static bool IsSameDevice(const Connection& connection, const Connection& other);
  // Whether the kernel says that `other`, of another device under the same address, is out of date:
  // we have connected to the one that listens under the address, `other` has ended, or both are of
  // one process, which lets go of a device before it makes another one under its address.
  static bool MayFollow(const Connection& connection, const Connection& other);
  absl::Status HandleLane(Connection& connection, ControlSocket::Received received);
  absl::Status SendHello(Connection& connection);
  absl::Status SendResolve(Connection& connection, const ConnectRequest& request);
  absl::Status HandleResolved(Connection& connection, const ControlMessage& message);
  // Gives up the peer of the connection, and all its connections.
  void End(Connection& connection, const absl::Status& reason);
  void EndSending(Connection& connection, const absl::Status& reason);
  void AwaitEnd(Connection& connection);
  void Sweep();

  SoftState& state_;
  WireHost& host_;
  UniqueFd epoll_;
  std::unique_ptr<ControlListener> listener_;
  TimePoint now_{};
  ThrottledLog log_{LogComponent::kDevice, {}};  // of peers that come, go and fail
  uint64_t next_request_ = 1;
  TimePoint next_deadline_ = kNever;  // no deadline of a connection is earlier
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<BusyPeer> busy_;  // at most kMaxBusyPeers, each address once

  std::mutex requests_mutex_;
  std::vector<ConnectRequest> requests_;
  std::vector<ConnectRequest> forgotten_;  // after requests_
  std::vector<Closing> closings_;
  // In order: an announcement, or, with a null arena, a withdrawal.
  struct ArenaNews {
    uint32_t id = 0;
    std::shared_ptr<const SharedArena> arena;
  };
  std::vector<ArenaNews> arena_news_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_SHARED_WIRE_H_
