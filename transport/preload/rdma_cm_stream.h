// CmStream: a TCP connection between two connection managers, one CmMessage after the other.
//
// Everything a peer sends is bounded: the stream holds one message at most, and a message that
// DecodeCmMessage refuses ends it. All methods run under CmLoop's lock.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_STREAM_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_STREAM_H_

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "verbena/transport/preload/rdma_cm_loop.h"
#include "verbena/transport/preload/rdma_cm_message.h"
#include "verbena/transport/soft/control_socket.h"

namespace verbena::internal::preload {

// Owns a stream, and may destroy it in each of these calls.
class CmStreamOwner {
 public:
  // The connection is there. Only for streams that connect.
  virtual void OnStreamConnected() = 0;
  virtual void OnStreamMessage(const CmMessage& message) = 0;
  // The stream is of no more use. `error` is an errno: ECONNRESET if the peer closed it, EPROTO if
  // the peer sent what is no message, ETIMEDOUT after its time limit.
  virtual void OnStreamLost(int error) = 0;

 protected:
  ~CmStreamOwner() = default;
};

// An attempt to connect: where to, and until when it is repeated.
struct CmAttempt {
  sockaddr_storage peer;
  CmLoop::Clock::time_point patient_until;
  CmLoop::Clock::time_point time_limit = CmLoop::Clock::time_point::max();
  // The errno of a connect() that failed at once, or 0.
  int error = 0;
  // Until the next connect().
  bool waits = false;
};

class CmStream final : private CmReadyListener {
 public:
  // How long a stream tries to connect while nobody listens (start). Two programs often agree, and
  // then one listens while the other connects. With hardware, resolving an address takes so long
  // that this works.
  static constexpr std::chrono::milliseconds kPatience = std::chrono::milliseconds(500);

  // Takes a socket that is connected and does not block.
  CmStream(soft::UniqueFd socket, CmStreamOwner& owner);
  // Connects a bound socket that does not block to `peer`.
  CmStream(soft::UniqueFd socket, const sockaddr& peer, CmStreamOwner& owner);
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
  // False if the connection is lost; then `*error` is set.
  bool Flush(int* error);
  void Read();
  void Connect();
  void ConnectAgainSoon();
  // A new socket, bound as the last one was. Returns whether that worked.
  bool ReplaceSocket();

  soft::UniqueFd socket_;
  CmStreamOwner* owner_;
  uint64_t watch_;
  // While it connects.
  std::optional<CmAttempt> attempt_;
  size_t received_ = 0;
  std::array<uint8_t, kCmMessageBytes> incoming_ = {};
  std::vector<uint8_t> outgoing_;  // at most kMostOutgoing messages
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_STREAM_H_
