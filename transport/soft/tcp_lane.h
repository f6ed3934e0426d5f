// Lanes over TCP: LanePair, the connection between two CQs, and LanePairs, all those of one CQ.
//
// Owned by the CQ, and used under its lock. No call blocks. The rings of a lane bound what it
// holds.

#ifndef VERBENA_TRANSPORT_SOFT_TCP_LANE_H_
#define VERBENA_TRANSPORT_SOFT_TCP_LANE_H_

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/responder.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {

class LanePairs;

// Marks the id of a CQ among what the TCP wire's epoll watches.
inline constexpr uint64_t kCqTag = uint64_t{1} << 63;

// LanePair: the two lanes between one CQ of ours and one of a peer's, over a TCP connection.
//
// Each side has memory of its own for both lanes. The connection keeps the two copies of a ring
// equal: whoever writes into a ring sends its lines as they stand, and the other side puts them at
// the same place. What each side has consumed travels in the header of each chunk. So everything
// above the rings is as over shared memory, and all queue pairs of the two CQs share one
// connection.
//
// Large payloads of WRITEs and READs take part in the stream, but not in the rings: a payload that
// was lent (LentPayloads) is sent from its memory, and one that has a place (Places) is received
// there. In the ring its lines keep what they had, and nobody reads them.
//
// Owned by its CQ, and kept alive by its lanes; used under the CQ's lock. Neither call blocks. What
// arrives is checked before it changes anything: nonsense breaks this connection, and no other one.
class LanePair final : public LaneWire {
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

  // LaneWire. The requests of the in-lane arrive from the start. The connection ends with the first
  // lane that does: another one would begin at the start of rings that have moved on.
  void set_out_lane(OutLane* lane) override;
  void set_in_lane(InLane* lane) override;
  void Send() override;
  void Touch() override;
  void OnAnswersTaken() override;
  bool CanLend() const override { return !blocked_ && !over_; }
  LentPayloads& lent_requests() override { return lent_requests_; }
  LentPayloads& lent_answers() override { return lent_answers_; }
  PlacedBytes TakePlacedRequest(uint64_t position) override {
    return placed_requests_.Take(position);
  }
  PlacedBytes TakePlacedAnswer(uint64_t position) override {
    return placed_answers_.Take(position);
  }

  OutLane* out_lane() const { return out_lane_; }
  InLane* in_lane() const { return in_lane_; }

  // True while the socket takes no more.
  bool blocked() const { return blocked_; }
  void Unblock() { blocked_ = false; }

  // Takes what has arrived: by one system call, or a few in the middle of large messages. `staging`
  // is scratch memory. False once the connection is over. `some` tells whether anything has
  // arrived.
  bool Receive(std::span<std::byte> staging, bool& some);
  // True when the connection is to be closed.
  bool broken() const {
    return over_ || (in_lane_ != nullptr && in_lane_->broken()) ||
           (out_lane_ != nullptr && out_lane_->failed());
  }
  const char* reason() const { return reason_; }

 private:
  friend class LanePairs;

  // Bytes of a ring, counted from its creation.
  struct Range {
    uint64_t from = 0;
    uint64_t to = 0;

    uint64_t bytes() const { return to - from; }
    // Drops the first ones, `bytes` of them or all, and subtracts those from `bytes`.
    void Drop(size_t& bytes);
  };
  // The rest of the chunk that is being sent.
  struct Outgoing {
    std::array<std::byte, TcpChunk::kBytes> header;
    size_t header_sent = TcpChunk::kBytes;
    Range requests;
    Range answers;

    bool empty() const {
      return header_sent == header.size() && requests.bytes() == 0 && answers.bytes() == 0;
    }
  };
  // The bytes that one recvmsg asks for: `ring_bytes` for the ring whose turn it is, of which the
  // first `placed` have another place, then `answer_bytes` for the answer ring, and then staging.
  struct Incoming {
    std::array<iovec, Place::kMaxParts + 3> parts;
    size_t count = 0;
    size_t bytes = 0;
    size_t placed = 0;
    size_t ring_bytes = 0;
    size_t answer_bytes = 0;
    uint64_t position = 0;  // of the message that has a place
    uint32_t arrived = 0;   // bytes of its payload that were here before

    void Add(std::span<std::byte> part) {
      parts[count++] = {.iov_base = part.data(), .iov_len = part.size()};
      bytes += part.size();
    }
  };

  void SendChunks();
  bool BeginChunk();
  void Took(size_t bytes);
  void SettleLoans();

  RingIntake& arriving_ring() { return requests_.Rest().empty() ? answers_ : requests_; }
  bool Announced() { return !requests_.Rest().empty() || !answers_.Rest().empty(); }
  // False when the next bytes are to wait until what is here is consumed. `first`: they may not.
  bool PlanReceive(std::span<std::byte> staging, bool first, Incoming& incoming);
  bool PlanLines(bool first, Incoming& incoming);
  bool PlanLargeMessage(RingIntake& ring, const RingIntake::Incomplete& message, bool first,
                        Incoming& incoming);
  bool TakeReceived(std::span<const std::byte> staging, const Incoming& incoming, size_t bytes);
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
  bool watches_writable_ = false;  // of LanePairs, as the next two
  int epoll_fd_ = -1;              // the epoll that it is in
  IpAddress source_{};             // the range of addresses that it counts for
  bool touched_ = false;
  LentPayloads lent_requests_;
  LentPayloads lent_answers_;

  RingIntake requests_;
  RingIntake answers_;
  TcpChunk arriving_;
  std::array<std::byte, TcpChunk::kBytes> header_;
  size_t header_bytes_ = 0;  // all of them: its lines are arriving
  // Not 0 while large messages are likely to come: chunks until it is taken for unlikely.
  uint32_t expects_large_ = 0;
  Places places_;
  PlacedFragments placed_requests_;
  PlacedFragments placed_answers_;

  bool over_ = false;
  const char* reason_ = "it was closed";
  std::atomic<bool> closed_{false};
};

class Completions;
class CompletionWriter;

// LanePairs: the TCP connections of one CQ, and which of them to look at.
//
// While the CQ is polled, each poll reads its connections itself: each of them while they are few,
// otherwise those that an epoll of the CQ's own names, so that a thousand idle connections cost one
// system call. While nobody polls, the engine watches that epoll, and sleeps until something comes.
//
// A source (tcp_wire.h) with many connections does not delay others: those beyond its first few are
// in an epoll of their own, which is one entry of the CQ's.
//
// Owned by a Completions, under its lock. A CQ without TCP connections has none.
class LanePairs {
 public:
  // `control` is that of `cq`, which owns them; `tag` names the CQ in the events of `engine_epoll`,
  // which outlives it.
  LanePairs(Completions& cq, CqControl& control, int engine_epoll, uint64_t tag);
  LanePairs(const LanePairs&) = delete;
  LanePairs& operator=(const LanePairs&) = delete;
  ~LanePairs();

  // Precondition: the pair's in-lane was added to the CQ.
  absl::Status Add(std::shared_ptr<LanePair> pair);
  // Null when there is none, or it is broken.
  std::shared_ptr<LanePair> Find(const Peer& peer, uint64_t remote_cq) const;

  // Takes what has arrived. Closes connections that are over: the queue pairs that send over them
  // fail.
  void Receive(CompletionWriter& writer);
  // Sends what is due at the end of a turn.
  void Flush(CompletionWriter& writer) {
    if (!touched_.empty()) FlushTouched(writer);
  }
  // Closes the connections of `peer`; null: of all.
  void Close(const Peer* peer, CompletionWriter& writer);

  // Whether the engine is to watch. Harmless when it does so already. False if it is to, and the
  // kernel watches no more descriptors.
  bool LetEngineWatch(bool watch);

  // For LanePair.
  Completions& cq() { return cq_; }
  void AddTouched(LanePair& pair) { touched_.push_back(&pair); }
  void WatchWritable(LanePair& pair, bool writable);

 private:
  struct Source {
    size_t pairs = 0;
    UniqueFd crowd;  // the epoll of those beyond the first kUncrowded; none until there are some
  };

  // The epoll for one more connection of `source`. -1 if there is none to be had; errno says why.
  int EpollFor(Source& source);
  // Those that a turn is to look at. Returns how many.
  size_t FindReady(std::span<LanePair*> ready);
  void FlushTouched(CompletionWriter& writer);
  void Look(LanePair& pair, CompletionWriter& writer);
  void CloseOne(LanePair& pair, CompletionWriter& writer);

  Completions& cq_;
  CqControl& control_;
  const int engine_epoll_;
  const uint64_t tag_;
  UniqueFd epoll_;
  bool engine_watches_ = false;
  std::vector<std::shared_ptr<LanePair>> pairs_;
  std::map<IpAddress, Source> sources_;  // those with connections
  std::vector<LanePair*> touched_;
  std::unique_ptr<std::byte[]> staging_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_TCP_LANE_H_
