// LanePair: the two lanes between one CQ of ours and one of a peer's, over a TCP connection.
//
// Each side has memory of its own for both lanes. The connection keeps the two copies of a ring
// equal: whoever writes into a ring sends its lines as they stand, and the other side puts them at
// the same place. What each side has consumed travels in the header of each chunk. So everything
// above the rings is as over shared memory, and all queue pairs of the two CQs share one
// connection.
//
// Owned by its CQ, and kept alive by its lanes; used under the CQ's lock. Neither call blocks. What
// arrives is checked before it changes anything: nonsense breaks this connection, and no other one.

#ifndef VERBENA_TRANSPORT_SOFT_LANE_PAIR_H_
#define VERBENA_TRANSPORT_SOFT_LANE_PAIR_H_

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring_intake.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {

class LanePairs;

class LanePair {
 public:
  // `socket` is connected, non-blocking, and past its greetings. `out` is zero memory for the lane
  // that we send requests into, `in` for the peer's.
  LanePair(UniqueFd socket, std::shared_ptr<Peer> peer, uint64_t remote_cq,
           std::shared_ptr<LaneMemory> out, std::shared_ptr<LaneMemory> in);
  LanePair(const LanePair&) = delete;
  LanePair& operator=(const LanePair&) = delete;

  const std::shared_ptr<Peer>& peer() const { return peer_; }
  uint64_t remote_cq() const { return remote_cq_; }
  const std::shared_ptr<LaneMemory>& out_memory() const { return out_; }
  const std::shared_ptr<LaneMemory>& in_memory() const { return in_; }
  int fd() const { return socket_.get(); }
  // Any thread: true once the connection is no more, and nothing can be sent over it.
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // The lanes say when they begin and end. The requests of the in-lane arrive from the start. The
  // connection ends with the first lane that does: another one would begin at the start of rings
  // that have moved on.
  void set_out_lane(OutLane* lane);
  void set_in_lane(InLane* lane);
  OutLane* out_lane() const { return out_lane_; }
  InLane* in_lane() const { return in_lane_; }

  // Sends what was published, and our progress with it, as far as the socket takes it.
  void Send();
  // Has the CQ call Send, or close a broken connection, at the end of its turn.
  void Touch();
  // Our out-lane has taken answers. Says so at once only if the peer may soon lack room for more.
  void OnAnswersTaken();
  // True while the socket takes no more.
  bool blocked() const { return blocked_; }
  void Unblock() { blocked_ = false; }

  // Takes what has arrived, by one system call. `staging` is scratch memory. False once the
  // connection is over. `some` tells whether anything has arrived.
  bool Receive(std::span<std::byte> staging, bool& some);
  // True when the connection is to be closed.
  bool broken() const {
    return over_ || (in_lane_ != nullptr && in_lane_->broken()) ||
           (out_lane_ != nullptr && out_lane_->failed());
  }
  const char* reason() const { return reason_; }

 private:
  friend class LanePairs;

  // A chunk that is being sent.
  struct Outgoing {
    std::array<std::byte, TcpChunk::kBytes> header;
    iovec parts[3];
    size_t left = 0;  // bytes; 0: there is none
  };

  bool BeginChunk();
  void Took(size_t bytes);
  bool Parse(std::span<const std::byte> bytes);
  bool BeginArrival();
  bool EndArrival();
  bool ShowArrived();
  void End(const char* reason);

  UniqueFd socket_;
  const std::shared_ptr<Peer> peer_;
  const uint64_t remote_cq_;
  const std::shared_ptr<LaneMemory> out_;
  const std::shared_ptr<LaneMemory> in_;
  OutLane* out_lane_ = nullptr;
  InLane* in_lane_ = nullptr;
  LanePairs* owner_ = nullptr;  // null once closed

  Outgoing outgoing_;
  // Positions up to which lines were handed to a chunk, and the progress that the last one told.
  uint64_t requests_sent_ = 0;
  uint64_t answers_sent_ = 0;
  uint64_t told_consumed_ = 0;  // what the next chunk may tell
  uint64_t sent_consumed_ = 0;
  uint64_t told_answers_consumed_ = 0;
  bool blocked_ = false;
  bool watches_writable_ = false;  // of LanePairs
  bool touched_ = false;

  RingIntake requests_;
  RingIntake answers_;
  TcpChunk arriving_;
  std::array<std::byte, TcpChunk::kBytes> header_;
  size_t header_bytes_ = 0;  // all of them: its lines are arriving

  bool over_ = false;
  const char* reason_ = "it was closed";
  std::atomic<bool> closed_{false};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LANE_PAIR_H_
