// The sockets of the connection manager: CmLoop, the thread that watches them; CmStream, one
// connection; and CmAcceptor, a listening socket.
//
// CmLoop lasts as long as the process, ids own the others, and its lock guards all of them. A
// stream holds one message at most, and an acceptor a bounded number of connections.

#ifndef VERBENA_TRANSPORT_PRELOAD_CM_LOOP_H_
#define VERBENA_TRANSPORT_PRELOAD_CM_LOOP_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/preload/cm_message.h"
#include "verbena/transport/soft/tcp_shares.h"

namespace verbena::internal::preload {

// Hears of one descriptor. Called on the loop's thread, under CmLoop::mutex(). It may Forget and
// destroy itself as its last step.
class CmReadyListener {
 public:
  // `events` are those of epoll.
  virtual void OnReady(uint32_t events) = 0;
  virtual void OnDeadline() = 0;

 protected:
  ~CmReadyListener() = default;
};

// CmLoop: the thread that watches the connection manager's sockets, and the lock of all its state.
//
// Programs expect progress while they sleep in poll() or compute, so sockets are watched by a
// thread of the library. It starts with the first Watch and lasts as long as the process. It calls
// no verbs: queue pairs change their state in the program's own threads.
class CmLoop {
 public:
  using Clock = std::chrono::steady_clock;

  // Never destroyed: a program may leave main() while the thread runs.
  static CmLoop& Instance();

  // Guards everything of the connection manager: ids, channels, sockets. Held for moments only:
  // nobody waits for a peer or calls verbs while holding it.
  std::mutex& mutex() { return mutex_; }

  // The other methods require the lock.

  // Starts the thread, unless it runs. 0, or an errno if the process has no descriptor or thread
  // left. Ids are made only after it has succeeded.
  int Start();

  // Watches `fd` for `events` until Forget; -1 stands for none, for deadlines alone. Returns the
  // watch; 0, with errno set, if the kernel watches no more descriptors (ENOSPC, ENOMEM), which is
  // never so for -1. Precondition: started.
  uint64_t Watch(int fd, uint32_t events, CmReadyListener& listener);
  void Change(uint64_t watch, uint32_t events);
  // Calls OnDeadline once, `after` from now. Replaces an earlier deadline.
  void SetDeadline(uint64_t watch, Clock::duration after);
  void ClearDeadline(uint64_t watch);
  // Call it before the descriptor is closed.
  void Forget(uint64_t watch);

 private:
  struct Watched {
    int fd;
    CmReadyListener* listener;
    Clock::time_point deadline;
  };

  CmLoop() = default;
  // Precondition: not forgotten.
  Watched& Of(uint64_t watch);
  void Run();
  // Milliseconds until the next deadline, rounded up; -1 if there is none.
  int TimeLeft();
  void CallLate();
  void Wake();

  std::mutex mutex_;
  // -1 until it has started.
  int epoll_ = -1;
  int wake_ = -1;
  uint64_t last_watch_ = 0;
  std::map<uint64_t, Watched> watched_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
};

// Owns a stream, and may destroy it in each of these calls.
class CmStreamOwner {
 public:
  // The connection is there. Only for streams that connect.
  virtual void OnStreamConnected() = 0;
  virtual void OnStreamMessage(const CmMessage& message) = 0;
  // The stream is of no more use. `error` is an errno: ECONNRESET if the peer closed it, EPROTO if
  // the peer sent bytes that are no message, ETIMEDOUT after the stream's time limit, ENOSPC or
  // ENOMEM if the kernel does not watch its socket.
  virtual void OnStreamLost(int error) = 0;

 protected:
  ~CmStreamOwner() = default;
};

// An attempt to connect: where to, and until when it is repeated.
struct CmAttempt {
  SocketAddress peer;
  CmLoop::Clock::time_point patient_until;
  CmLoop::Clock::time_point time_limit = CmLoop::Clock::time_point::max();
  // The errno of a connect() that failed at once, or 0.
  int error = 0;
  // Until the next connect().
  bool waits = false;
};

// CmStream: a TCP connection between two connection managers, one CmMessage after the other.
//
// Everything a peer sends is bounded: the stream holds one message at most, and a message that
// DecodeCmMessage refuses ends it. All methods run under CmLoop's lock.
class CmStream final : private CmReadyListener {
 public:
  // How long a stream tries to connect while nobody listens (start). Two programs often agree, and
  // then one listens while the other connects. With hardware, resolving an address takes so long
  // that this works.
  static constexpr std::chrono::milliseconds kPatience = std::chrono::milliseconds(500);

  // Takes a socket that is connected and does not block.
  CmStream(UniqueFd socket, CmStreamOwner& owner);
  // Connects a bound socket that does not block to `peer`.
  CmStream(UniqueFd socket, const SocketAddress& peer, CmStreamOwner& owner);
  ~CmStream();
  CmStream(const CmStream&) = delete;
  CmStream& operator=(const CmStream&) = delete;

  // Hands the stream to another owner.
  void SetOwner(CmStreamOwner& owner) { owner_ = &owner; }
  // Ends the stream with ETIMEDOUT `after` from now; no time limit after ClearTimeLimit.
  void SetTimeLimit(std::chrono::milliseconds after);
  void ClearTimeLimit();

  // Sends it, now or as soon as the socket takes it. A lost connection is reported later. Returns
  // false, and sends nothing, if the peer has not taken what was sent before.
  bool Send(const CmMessage& message);

  int fd() const { return socket_.get(); }

 private:
  void OnReady(uint32_t events) override;
  void OnDeadline() override;
  // Watches the socket. If the kernel does not, the owner is told soon: now it may be in the middle
  // of its own call.
  void Watch(uint32_t events);
  // False if the connection is lost; then `*error` is set.
  bool Flush(int* error);
  void Read();
  void Connect();
  void ConnectAgainSoon();
  // A new socket, bound as the last one was. Returns whether that worked.
  bool ReplaceSocket();

  UniqueFd socket_;
  CmStreamOwner* owner_;
  uint64_t watch_;
  int unwatched_ = 0;  // why the kernel does not watch the socket
  // While it connects.
  std::optional<CmAttempt> attempt_;
  size_t received_ = 0;
  std::array<uint8_t, kCmMessageBytes> incoming_ = {};
  std::vector<uint8_t> outgoing_;  // at most kMostOutgoing messages
};

// Hears the requests of an acceptor's connections, under CmLoop's lock. Outlives the acceptor.
class CmRequestListener {
 public:
  // A connection's request. It takes `stream`, or leaves it to be closed; returns whether it did.
  virtual bool OnRequest(std::unique_ptr<CmStream>& stream, const CmMessage& message) = 0;

 protected:
  ~CmRequestListener() = default;
};

// CmAcceptor: the listening socket of an id, and the connections whose request is not there yet.
//
// Strangers may connect. So each connection has a time limit for its request, and their number is
// bounded: for one more, the oldest of the source that has most of them makes way (TcpSilent). So
// whoever opens many pushes out its own. All methods run under CmLoop's lock.
class CmAcceptor final : private CmReadyListener {
 public:
  // Connections without a request yet (start).
  static constexpr size_t kMostSilent = 128;
  static constexpr std::chrono::milliseconds kRequestTime = std::chrono::seconds(10);

  // Takes a socket that listens and does not block.
  CmAcceptor(UniqueFd socket, CmRequestListener& listener,
             std::chrono::milliseconds request_time = kRequestTime);
  ~CmAcceptor();
  CmAcceptor(const CmAcceptor&) = delete;
  CmAcceptor& operator=(const CmAcceptor&) = delete;

  // False if the kernel does not watch the socket: then the acceptor is of no use. errno says why
  // right after it was made.
  bool watched() const { return watch_ != 0; }
  // The socket again, of an acceptor that is not watched.
  UniqueFd TakeSocket() { return std::move(socket_); }

 private:
  // A connection that has not sent its request.
  class Silent final : public CmStreamOwner {
   public:
    Silent(CmAcceptor& acceptor, uint64_t id, UniqueFd socket);

   private:
    void OnStreamConnected() override {}
    void OnStreamMessage(const CmMessage& message) override;
    void OnStreamLost(int error) override;

    CmAcceptor& acceptor_;
    const uint64_t id_;
    std::unique_ptr<CmStream> stream_;
  };

  void OnReady(uint32_t events) override;
  void OnDeadline() override;
  void MakeRoomFor(const IpAddress& newcomer);

  UniqueFd socket_;
  CmRequestListener& listener_;
  const std::chrono::milliseconds request_time_;
  uint64_t watch_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Silent> silent_;  // by id
  // The sources of silent_, and of some connections that have gone since.
  soft::TcpSilent sources_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CM_LOOP_H_
