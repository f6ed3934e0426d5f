// A lane: everything that flows between one send CQ and one receive CQ of a peer.
//
// A request ring carries the operations of all QPs that send through this pair, and an answer ring
// of its own carries back refusals and the data of READs and atomics, so that a peer that crashes
// or freezes can hold up nobody but itself. LaneMemory is the part that both sides map; OutLane is
// the initiator's private half and belongs to its send CQ, InLane is the target's and belongs to
// its receive CQ. Each half is used under its CQ's lock.
//
// A request is acknowledged by being consumed: the target raises `consumed`, after it has published
// a refusal in the answer ring for whatever it did not execute.

#ifndef VERBENA_TRANSPORT_SOFT_LANE_H_
#define VERBENA_TRANSPORT_SOFT_LANE_H_

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {

class CompletionWriter;
class Completions;
class InLane;
class OutLane;

// How much of the target's progress the initiator wants to be woken for while nobody polls its CQ.
enum WakeLevel : uint32_t { kWakeNever = 0, kWakeOnAnswer = 1, kWakeOnConsumed = 2 };

// Any answer but the data of a READ.
inline constexpr size_t kShortAnswerBytes = kLineBytes - kHeaderBytes;

// Words that different sides write, or that are written at different rates, are 128 bytes apart:
// the adjacent-line prefetcher moves lines in pairs.
struct LaneHeader {
  alignas(128) std::atomic<uint64_t> consumed;  // target: request lines it is done with
  alignas(128) std::atomic<uint64_t> answered;  // target: answers ever published; rises after them
  std::atomic<uint32_t> target_closed;          // target: its CQ is gone, nothing will be consumed
  std::atomic<uint32_t> target_open;            // target: it knows the lane, and sees copies in it
  // target: 0 while it looks here by itself, else which bit to set (plus 1) after publishing.
  alignas(128) std::atomic<uint32_t> activity_slot;
  alignas(128) std::atomic<uint64_t> answers_consumed;  // initiator: answer lines it is done with
  alignas(128) std::atomic<uint32_t> wake_level;        // initiator: a WakeLevel
  alignas(128) std::atomic<uint64_t> copying;  // initiator: odd while it copies (memory_table.h),
  std::atomic<uint32_t> copying_key;           // and by which rkey
};

// The bytes of a lane's memory.
inline size_t BytesOf(const LaneGeometry& geometry) {
  return sizeof(LaneHeader) + (size_t{geometry.request_lines} + geometry.answer_lines) * kLineBytes;
}

// Shared by both halves of a lane in one process; each process has its own over one memfd.
class LaneMemory {
 public:
  // `share` is what it counts in (tcp_wire.h), or null.
  LaneMemory(SharedRegion region, LaneGeometry geometry,
             std::shared_ptr<const void> share = nullptr)
      : region_(std::move(region)), geometry_(geometry), share_(std::move(share)) {}

  LaneHeader& header() const { return *reinterpret_cast<LaneHeader*>(region_.data()); }
  RingLine* requests() const {
    return reinterpret_cast<RingLine*>(region_.data() + sizeof(LaneHeader));
  }
  RingLine* answers() const { return requests() + geometry_.request_lines; }
  const LaneGeometry& geometry() const { return geometry_; }
  int fd() const { return region_.fd(); }

 private:
  SharedRegion region_;
  LaneGeometry geometry_;
  std::shared_ptr<const void> share_;
};

// LaneWire: the TCP connection that a lane runs over, as the lane and its queue pairs see it.
//
// Both lanes between two CQs share it. A lane over shared memory has none. LanePair implements it;
// used under the CQ's lock.
class LaneWire {
 public:
  // The lanes say when they begin and, with null, when they end.
  virtual void set_out_lane(OutLane* lane) = 0;
  virtual void set_in_lane(InLane* lane) = 0;

  // Sends what was published, and our progress with it, as far as the socket takes it. Ends all
  // loans.
  virtual void Send() = 0;
  // Has the CQ call Send, or close a broken connection, at the end of its turn.
  virtual void Touch() = 0;
  // The out-lane has taken answers. Says so at once only if the peer may soon lack room for more.
  virtual void OnAnswersTaken() = 0;

  // False when a payload that is lent could not be sent at once.
  virtual bool CanLend() const = 0;
  // Whoever lends calls Send before the CQ's lock is released.
  virtual LentPayloads& lent_requests() = 0;
  virtual LentPayloads& lent_answers() = 0;
  // The bytes of the request or answer at `position` that are in place. Forgets earlier ones.
  virtual PlacedBytes TakePlacedRequest(uint64_t position) = 0;
  virtual PlacedBytes TakePlacedAnswer(uint64_t position) = 0;

 protected:
  ~LaneWire() = default;
};

// LaneUser: a queue pair that sends through a lane, as the lane sees it, and its place among those
// that wait for the target's progress.
//
// SendQueue implements it; used under the send CQ's lock.
class LaneUser : public IntrusiveNode<LaneUser> {
 public:
  // The target has consumed lines before `consumed`: every WR that is finished is reported.
  virtual void Complete(uint64_t consumed, CompletionWriter& writer) = 0;
  // The target's answers. The bytes of `payload` that are `placed` are where they belong already.
  virtual void Refused(const RefusedFragment& refusal, CompletionWriter& writer) = 0;
  virtual void Answered(const MessageHeader& answer, const std::byte* payload, PlacedBytes placed,
                        CompletionWriter& writer) = 0;
  // Launches the WRs that wait, if they may go now. Fails or flushes those that never will.
  virtual void Resume(CompletionWriter& writer) = 0;
  // Nothing can be sent any more, and everything that was sent is lost.
  virtual void LoseTarget(CompletionWriter& writer) = 0;

  // Bytes of the oldest READ that the answers brought that were taken.
  virtual uint32_t answer_offset() const = 0;
  // Checks `answer`, data of a READ that arrive, as Answered will when `offset` bytes of the READ
  // were taken. Fills in where bytes [from, from + bytes) of its payload belong, or the first of
  // them. Returns how many parts there are; 0: they are not to be placed.
  virtual size_t FindPlace(const MessageHeader& answer, uint32_t offset, uint32_t from,
                           uint32_t bytes, std::span<iovec> parts) = 0;

 protected:
  ~LaneUser() = default;
};

// The initiator's half: where its QPs write requests, and how it learns what became of them.
class OutLane {
 public:
  // `id` names the lane between its two devices. `wire`: the TCP connection that it runs over, or
  // null.
  OutLane(Completions& send_cq, std::shared_ptr<Peer> peer, uint64_t remote_cq, uint64_t id,
          std::shared_ptr<LaneMemory> memory, std::shared_ptr<LaneWire> wire = nullptr);
  OutLane(const OutLane&) = delete;
  OutLane& operator=(const OutLane&) = delete;
  ~OutLane();

  Peer& peer() { return *peer_; }
  Completions& send_cq() { return send_cq_; }
  uint64_t id() const { return id_; }
  // Names the receive CQ of the peer for as long as the peer lives.
  uint64_t remote_cq() const { return remote_cq_; }
  RingWriter& requests() { return requests_; }
  uint64_t answers_position() const { return answers_.position(); }
  LaneWire* wire() const { return wire_.get(); }
  LaneHeader& header() { return memory_->header(); }

  // The position up to which the target has consumed requests and refused none. Refusals are known
  // only from answers. While answers wait to be taken, this is the position that was known before.
  uint64_t AcceptedByNow() {
    const uint64_t known = requests_.released();
    const uint64_t consumed = header().consumed.load(std::memory_order_acquire);
    const bool possible = consumed - known <= requests_.position() - known;
    return possible && answers_.Empty() ? consumed : known;
  }

  // A signalled message that ends at `end` was published for `user`.
  void Watch(LaneUser& user, uint64_t end) {
    if (watched_tail_ - watched_head_ == watched_.size()) [[unlikely]]
      GrowWatched();
    watched_[watched_tail_++ & (watched_.size() - 1)] = {end, &user};
  }
  // `user` has a request that did not fit the ring, or others have and it is not its turn.
  void AwaitRoom(LaneUser& user);
  // Queue pairs that wait for room get it in turn: true for the one whose turn it is, and for any
  // if none waits.
  bool IsTurnOf(const LaneUser& user) const { return room_waiters_.empty() || served_ == &user; }
  // Holds back the next WR of `user` until the target has consumed an earlier request of it. Holds
  // up no other queue pair.
  void AwaitConsumed(LaneUser& user);

  // Lets the target know that requests were published, if it does not look by itself.
  void Announce() {
    Activate();
    if (wire_ != nullptr) {
      wire_->Send();
      return;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t slot = header().activity_slot.load(std::memory_order_relaxed);
    if (slot != 0) target_->SetActive(slot - 1);
    if (target_->mode.load(std::memory_order_relaxed) != CqControl::kPolled) peer_->Wake(*target_);
  }

  // Brackets one chunk of a copy into or out of the target's memory. A reader that sees the
  // sequence also sees its key. A reader that sees the key of the next copy sees that this one is
  // over.
  void BeginCopy(uint32_t rkey) {
    VERBENA_DCHECK(copying_ % 2 == 0) << "a copy begins within another";
    header().copying_key.store(rkey, std::memory_order_release);
    header().copying.store(++copying_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void EndCopy() {
    VERBENA_DCHECK(copying_ % 2 != 0) << "a copy ends that has not begun";
    header().copying.store(++copying_, std::memory_order_release);
  }
  // False until the target has the lane: it would not notice a copy. If this is true after
  // BeginCopy, the target does, for as long as it permits any.
  bool target_sees_copies() const {
    return memory_->header().target_open.load(std::memory_order_acquire) != 0;
  }
  // `user` has executed WRs by itself that are to be reported.
  void MarkReady(LaneUser& user);

  // Adds the lane to those that its CQ's polls look at; it leaves them when nothing is under way.
  void Activate() {
    if (!active_) BecomeActive();
  }
  // Returns whether something is still under way in the lane. If not, the lane is no longer active.
  bool StaysActive(CompletionWriter& writer);

  // True when Harvest would find something to do.
  bool HasNews() const {
    const LaneHeader& header = memory_->header();
    if (failed_) return false;
    return header.answered.load(std::memory_order_relaxed) != answers_seen_ ||
           header.target_closed.load(std::memory_order_relaxed) != 0 || !ready_.empty() ||
           (wants_consumed() &&
            (header.consumed.load(std::memory_order_relaxed) != requests_.released() ||
             HasUnreported()));
  }
  bool wants_consumed() const { return watched_head_ != watched_tail_ || has_waiters(); }
  bool has_outstanding() const {
    return unanswered_ != 0 || requests_.released() != requests_.position();
  }
  // Counts READs and atomics that were launched and are not over.
  void CountUnanswered(int change) {
    unanswered_ += change;
    VERBENA_DCHECK(unanswered_ >= 0) << unanswered_;
  }
  // QP `qpn` gives up the READ or atomic in lines [start, end) of the ring, before it was answered
  // in full. Its answer concerns no later operation of the QP, whose PSNs may begin anew. A target
  // that goes on without answering it fails the lane.
  void ForgetRead(uint32_t qpn, uint64_t start, uint64_t end) {
    forgotten_reads_.push_back({.qpn = qpn, .start = start, .end = end});
  }

  // Takes note of the target's progress: answers first, then completions, then WRs that waited for
  // room. Completions go to the send CQ's writer.
  void Harvest(CompletionWriter& writer);

  // Says how much of the target's progress is worth a wake-up; called before the CQ goes unpolled.
  void SetWakeLevel();

  // QP `qpn` sends through the lane.
  void AddUser(uint32_t qpn, LaneUser& user);
  void RemoveUser(uint32_t qpn);
  // Null when no QP of that number does.
  LaneUser* FindUser(uint32_t qpn);
  // The same, and null while the next data for the QP answer what it gave up.
  LaneUser* FindReader(uint32_t qpn);
  // The target is gone: every QP of this lane fails, but what the target has consumed succeeds.
  void Lose(CompletionWriter& writer);
  bool failed() const { return failed_; }
  // True once no QP is on the lane, and none will be. A lane in which nothing was under way has not
  // failed when its target's CQ ended: nobody looked.
  bool over() const {
    return users_.empty() &&
           (failed_ || memory_->header().target_closed.load(std::memory_order_relaxed) != 0);
  }

 private:
  void BecomeActive();

  struct Watched {
    uint64_t end = 0;
    LaneUser* user = nullptr;
  };
  struct ForgottenRead {
    uint32_t qpn = 0;
    uint64_t start = 0;
    uint64_t end = 0;
  };

  // Completions that did not fit the caller's array last time.
  bool HasUnreported() const {
    return watched_head_ != watched_tail_ &&
           watched_[watched_head_ & (watched_.size() - 1)].end <= requests_.released();
  }
  void GrowWatched();
  // Every QP of this lane fails.
  void Fail(CompletionWriter& writer);
  // Takes answers and completes what was consumed. False: the target's counters make no sense, or
  // it withholds answers.
  bool TakeProgress(CompletionWriter& writer);
  bool TakeAnswers(CompletionWriter& writer);
  bool TakeAnswer(const MessageHeader& header, CompletionWriter& writer);
  std::vector<ForgottenRead>::iterator FindForgotten(uint32_t qpn);
  // Whether the target has consumed requests behind a READ that was given up, and has not answered
  // it. All answers that came before `consumed` are taken.
  bool PassedOverRead(uint64_t consumed) const;
  bool has_waiters() const { return !room_waiters_.empty() || !consumed_waiters_.empty(); }
  void RelaunchWaiting(CompletionWriter& writer);
  void GiveRoom(CompletionWriter& writer);

  Completions& send_cq_;
  std::shared_ptr<Peer> peer_;
  uint64_t remote_cq_;
  uint64_t id_;
  CqControl* target_;
  std::shared_ptr<LaneMemory> memory_;
  const std::shared_ptr<LaneWire> wire_;
  RingWriter requests_;
  RingReader answers_;
  uint64_t answers_seen_ = 0;
  int unanswered_ = 0;
  // The READs of one QP are in the order of the ring. Each waits for its answer. The target has
  // consumed one of all at most (PassedOverRead), so the lines of the request ring bound them.
  std::vector<ForgottenRead> forgotten_reads_;
  // A ring of the messages that are looked after, in the order in which that began. It holds those
  // whose completion nobody has polled yet, too, whose lines of the request ring others have taken
  // meanwhile: it grows, and the send queues of the lane's QPs bound it.
  std::vector<Watched> watched_;
  uint64_t watched_head_ = 0;
  uint64_t watched_tail_ = 0;
  IntrusiveList<LaneUser> room_waiters_;
  IntrusiveList<LaneUser> consumed_waiters_;
  const LaneUser* served_ = nullptr;  // launches what waited for room
  bool found_no_room_ = false;        // the one that is served
  std::vector<LaneUser*> ready_;
  std::vector<LaneUser*> scratch_;  // keeps its memory, as ready_ does
  uint64_t copying_ = 0;
  absl::btree_map<uint32_t, LaneUser*> users_;  // by number
  bool failed_ = false;
  bool active_ = false;
};

// The target's half: where requests arrive.
class InLane {
 public:
  // `wire`: the TCP connection that it runs over, or null.
  InLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t id,
         std::shared_ptr<LaneMemory> memory, std::shared_ptr<LaneWire> wire = nullptr);
  InLane(const InLane&) = delete;
  InLane& operator=(const InLane&) = delete;
  ~InLane();

  Peer& peer() { return *peer_; }
  uint64_t id() const { return id_; }
  LaneWire* wire() const { return wire_.get(); }
  RingReader& requests() { return requests_; }
  RingWriter& answers() { return answers_; }
  LaneHeader& header() { return memory_->header(); }

  // A READ whose data did not fit the answer ring yet. Later requests of the lane wait behind it.
  struct PendingRead {
    bool active = false;
    MessageHeader request;
    uint64_t position = 0;  // of the request
    uint64_t address = 0;
    uint64_t remaining = 0;
    uint32_t rkey = 0;
    uint32_t pd = 0;
    uint32_t connection = 0;  // of its QP (responder.h)

    uint64_t NextBytes() const { return std::min<uint64_t>(remaining, kMaxFragmentBytes); }
  };
  PendingRead& pending_read() { return pending_read_; }

  // Room for an answer, after taking note of what the initiator has read.
  bool HasRoomForAnswer(size_t bytes);
  // True when serving this lane would get somewhere.
  bool CanServe() {
    if (broken_) return false;
    if (pending_read_.active) return HasRoomForAnswer(pending_read_.NextBytes());
    return !requests_.Empty() && HasRoomForAnswer(kShortAnswerBytes);
  }
  // Returns the place for an answer. Precondition: there is room for it.
  std::byte* ReserveAnswer(size_t bytes) { return answers_.Reserve(bytes); }
  void PublishAnswer(const MessageHeader& header);

  // One turn takes and answers a bounded part of what is here: a peer chooses how large its rings
  // are, and may fill them before it lets them go on. Other lanes have their turns meanwhile.
  void BeginTurn() { turn_end_ = lines() + kLinesPerTurn; }
  bool turn_over() const { return lines() >= turn_end_; }

  // Cheap, and true at least whenever CanServe is.
  bool MayHaveWork() const { return pending_read_.active || !requests_.Empty(); }

  // For InLanes.
  uint32_t slot() const { return slot_; }
  void set_slot(uint32_t slot) { slot_ = slot; }
  bool hot() const { return hot_; }
  void set_hot(bool hot) { hot_ = hot; }
  bool referenced() const { return referenced_; }
  void set_referenced(bool referenced) { referenced_ = referenced; }

  // In the CQ's list of lanes whose progress is to be published, or their initiator woken.
  bool listed() const { return listed_; }
  void set_listed(bool listed) { listed_ = listed; }

  bool progress_due() const {
    return requests_.position() != published_ || answers_published_ != answers_announced_;
  }
  // `watched`: the initiator waits to see the requests before the reader's position consumed. Over
  // TCP it waits for one more poll, since by then the answer of the application may carry it.
  bool ShouldPublishAtOnce(bool watched) const {
    return (watched && wire_ == nullptr) || answers_published_ != answers_announced_ ||
           requests_.position() - published_ > requests_.count() / 4;
  }
  void PublishProgress();
  // Wakes the initiator if it sleeps and wants to know. Only a caller that has passed a full fence
  // since PublishProgress is sure to notice that the initiator sleeps. Such a caller uses
  // CheckWake, which is due after each PublishProgress.
  void WakeInitiator();
  bool wake_check_due() const { return wake_check_due_; }
  void CheckWake() {
    wake_check_due_ = false;
    WakeInitiator();
    answered_since_check_ = false;
  }

  // The copy into our memory that the initiator is in the middle of: by any key, or, if `key` is
  // not 0, by that one. The caller has passed a full fence since it withdrew the permission.
  std::optional<CopyUnderWay> FindCopyUnderWay(uint32_t key);

  // Our CQ is going away: the initiator's QPs are to fail.
  void CloseTarget();
  // The initiator is no more, or was given up. Its earlier messages are still served, as far as
  // their answers find room: it takes none any more.
  void Orphan() { orphan_ = true; }
  // The initiator itself has ended the lane: it copies nothing through it any more.
  void Close() { closed_ = true; }
  // True once the lane has nothing more to give. While its initiator may copy, the lane stays: it
  // tells what is under way.
  bool finished() { return (broken_ || (orphan_ && !CanServe())) && !MayCopy(); }
  // The initiator broke the protocol: nothing more is read from it.
  void Break();
  bool broken() const { return broken_; }

 private:
  // As many as the default rings over TCP have. (start)
  static constexpr uint64_t kLinesPerTurn = (512u << 10) / kLineBytes;

  // Lines of both rings that were served so far.
  uint64_t lines() const { return requests_.position() + answers_.position(); }
  bool MayCopy() const { return peer_->shares_memory() && !closed_ && !peer_->gone(); }
  void TakeAnswersConsumed();

  std::shared_ptr<Peer> peer_;
  uint64_t id_;
  CqControl* initiator_;
  std::shared_ptr<LaneMemory> memory_;
  const std::shared_ptr<LaneWire> wire_;
  RingReader requests_;
  RingWriter answers_;
  PendingRead pending_read_;
  uint64_t turn_end_ = 0;
  uint64_t published_ = 0;
  uint64_t answers_published_ = 0;
  uint64_t answers_announced_ = 0;
  bool wake_check_due_ = false;
  bool answered_since_check_ = false;
  uint32_t slot_ = 0;
  bool hot_ = false;
  bool referenced_ = false;
  bool listed_ = false;
  bool broken_ = false;
  bool orphan_ = false;
  bool closed_ = false;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LANE_H_
