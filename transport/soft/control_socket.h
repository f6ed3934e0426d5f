// Unix sockets between the engines of two processes: ControlSocket, ControlListener, and the
// messages on them.
//
// Each object is used by one thread, its engine's. Queues of unsent messages, and what one turn
// accepts, are bounded.

#ifndef VERBENA_TRANSPORT_SOFT_CONTROL_SOCKET_H_
#define VERBENA_TRANSPORT_SOFT_CONTROL_SOCKET_H_

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"

namespace verbena::internal::soft {

struct ControlMessage {
  enum Kind : uint32_t {
    kHello = 1,    // gid, lid; descriptors: CQ controls, memory table, doorbell
    kResolve,      // request, qpn: which CQ does this QP receive through?
    kResolved,     // request, found, receive_cq
    kLane,         // lane, receive_cq, send_cq_index, lines; descriptor: the lane's memory
    kLaneRefused,  // lane
    kCloseLane,    // lane
    kArena,        // arena, arena_bytes; descriptor: its memory
    kArenaGone,    // arena
  };
  // The revision of all that two processes share: these messages, and the layout of lanes, tables,
  // CQ controls and arenas. A change of any takes the next number, and
  // tests/repository/wire_test.py notices.
  static constexpr uint8_t kRevision = 55;
  static constexpr uint32_t kMagic = 0x56736f00;  // "Vso", and the revision in the low byte

  uint32_t magic = kMagic | kRevision;  // the first field in every revision
  uint32_t kind = 0;
  ibv_gid gid{};
  uint64_t request = 0;
  uint64_t receive_cq = 0;
  uint64_t lane = 0;
  uint32_t qpn = 0;
  uint32_t found = 0;
  uint32_t send_cq_index = 0;
  uint32_t request_lines = 0;
  uint32_t answer_lines = 0;
  uint32_t arena = 0;
  uint64_t arena_bytes = 0;
  uint32_t lid = 0;
  uint32_t reserved = 0;

  DeviceAddress address() const { return {.gid = gid, .lid = static_cast<uint16_t>(lid)}; }
};

// ControlSocket: one Unix connection between the engines of two processes, and what they say on it.
//
// Messages are fixed structs, one per packet, each with at most a few descriptors. Non-blocking;
// what does not fit the socket's buffer waits in a bounded queue. Both ends run as the same user,
// which is checked before anything is read. Used by one thread, its engine's.
class ControlSocket {
 public:
  static constexpr size_t kMaxDescriptors = 3;
  struct Received {
    ControlMessage message;
    std::vector<UniqueFd> descriptors;
  };

  // Listens under a name made of `address`.
  static absl::StatusOr<UniqueFd> Listen(const DeviceAddress& address);
  // Never waits. UNAVAILABLE when nobody listens under `address`, ABORTED while the backlog there
  // is full, PERMISSION_DENIED when another user's process listens.
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Connect(const DeviceAddress& address);
  // The next connection of a listening socket; UNAVAILABLE when there is none, RESOURCE_EXHAUSTED
  // when there are no descriptors, CANCELLED when it has ended, PERMISSION_DENIED when it is
  // another user's.
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Accept(int listener);

  int fd() const { return fd_.get(); }
  // Readable once the peer's process has ended; -1 where the kernel has no pidfds, or pid() is 0.
  int pid_fd() const { return pid_fd_.get(); }
  // 0 for a process that our PID namespace does not show. It is never our own process.
  pid_t pid() const { return pid_; }

  // `descriptors` are sent, and stay the caller's: `keep_alive` sees to that while they wait.
  absl::Status Send(const ControlMessage& message, std::vector<int> descriptors = {},
                    std::shared_ptr<const void> keep_alive = nullptr);
  // Sends what waits. True while something still does.
  absl::StatusOr<bool> Flush();
  bool has_waiting() const { return !waiting_.empty(); }

  // UNAVAILABLE when nothing waits. Any other error means that the connection is over:
  // FAILED_PRECONDITION when the peer is of another revision, RESOURCE_EXHAUSTED when this process
  // has no descriptors left for those that came, INVALID_ARGUMENT when the peer breaks the
  // protocol.
  absl::StatusOr<Received> Receive();

  // Nothing more is sent: the peer reads what was, and then that we have ended.
  void EndSending();
  // Drops what the peer still says, at most `messages` of it. True once it has ended, too, or its
  // process has.
  bool PeerHasEnded(size_t messages);
  // True once the peer or its process has ended, as the kernel says. What it said before may be
  // unread.
  bool PeerIsGone() const;

 private:
  struct Outgoing {
    ControlMessage message;
    std::vector<int> descriptors;
    std::shared_ptr<const void> keep_alive;
  };

  ControlSocket(UniqueFd fd, UniqueFd pid_fd, pid_t pid);
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Adopt(UniqueFd fd);
  // 0, or errno.
  int SendNow(const Outgoing& outgoing);
  // Of a message of `bytes` that begins with `magic`.
  absl::Status CheckRevision(uint32_t magic, size_t bytes) const;

  UniqueFd fd_;
  UniqueFd pid_fd_;
  pid_t pid_;
  std::deque<Outgoing> waiting_;
};

// ControlListener: where the engines of other processes connect to a device.
//
// A turn takes a bounded number of connections and logs few lines, however many come: every process
// of the host can connect, whoever its user is. While this process has no descriptors left, those
// who connect wait in the listener's backlog, and fd() stays readable. So retry() then says when to
// call Accept() again. Used by one thread, its engine's.
//
//   for (auto& socket : listener.Accept(room, now)) …
//   // then watches listener.fd() if listener.retry() == kNever, else calls again by that time
class ControlListener {
 public:
  // Connections of one Accept(), with those that are refused. (start)
  static constexpr size_t kAcceptsAtOnce = 32;

  // Listens under `address`, for the device of that name.
  static absl::StatusOr<std::unique_ptr<ControlListener>> Create(std::string device,
                                                                 const DeviceAddress& address);
  ControlListener(const ControlListener&) = delete;
  ControlListener& operator=(const ControlListener&) = delete;
  ~ControlListener() = default;

  int fd() const { return fd_.get(); }
  // The next connections, at most `room` of them. Refuses connections beyond `room`, and those of
  // other users.
  std::vector<std::unique_ptr<ControlSocket>> Accept(size_t room, TimePoint now);
  // When to call Accept() again, while nobody can be accepted; kNever: whenever fd() is readable.
  TimePoint retry() const { return retry_; }

 private:
  ControlListener(std::string device, UniqueFd fd)
      : device_(std::move(device)), fd_(std::move(fd)) {}
  void Refuse(const absl::Status& why, TimePoint now);
  void OnStarved(const absl::Status& why, TimePoint now);

  const std::string device_;
  const UniqueFd fd_;
  TimePoint retry_ = kNever;
  ThrottledLog refused_{LogComponent::kDevice, {}};
  ThrottledLog starved_{LogComponent::kDevice, {}};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_CONTROL_SOCKET_H_
