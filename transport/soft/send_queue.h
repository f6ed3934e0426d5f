// SendQueue: the initiator's half of a QP.
//
// A posted WR is launched, as soon as order and room allow, by writing it into the lane's request
// ring. It completes, in posting order, when the target has consumed it (and, for READs and
// atomics, answered). A target may refuse a WR for want of a receive: then the WR and all later
// ones are taken back, and launched again after the RNR timer. It may also refuse one for good:
// then the QP fails.
//
// BIND_MW and LOCAL_INV are executed here, in their turn: a binding stands before any later WR is
// launched, and an invalidation begins once every earlier WR is over.
//
// SQ slots are counted as hardware's libraries do: a slot is free once a signalled completion at or
// after it has been polled. Inline data is copied to the ring only; when a WR cannot be launched at
// once, or is refused, its data moves to a slot of its own.
//
// Everything runs under the send CQ's lock.

#ifndef VERBENA_TRANSPORT_SOFT_SEND_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_SEND_QUEUE_H_

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {

class CompletionWriter;
class DirectCopy;
class QueuePair;

class SendQueue final : public LaneUser {
 public:
  // `inline_data`: InlineBytes(cap) of memory, untouched until a WR needs it.
  SendQueue(QueuePair& qp, const ibv_qp_cap& cap, bool signal_all, SharedRegion inline_data);

  static size_t InlineBytes(const ibv_qp_cap& cap) {
    return size_t{SlotsOf(cap)} * cap.max_inline_data;
  }

  // Takes the lock itself, as ibv_post_send does.
  int Post(ibv_send_wr* wr, ibv_send_wr** bad_wr);

  // Connects to the lane of the peer. WRs posted before are launched by Resume.
  void Attach(OutLane* lane) { lane_ = lane; }
  OutLane* lane() const { return lane_; }

  // LaneUser.
  void Complete(uint64_t consumed, CompletionWriter& writer) override;
  void Refused(const RefusedFragment& refusal, CompletionWriter& writer) override;
  void Answered(const MessageHeader& answer, const std::byte* payload, PlacedBytes placed,
                CompletionWriter& writer) override;
  void Resume(CompletionWriter& writer) override;
  void LoseTarget(CompletionWriter& writer) override;
  uint32_t answer_offset() const override { return answer_offset_; }
  size_t FindPlace(const MessageHeader& answer, uint32_t offset, uint32_t from, uint32_t bytes,
                   std::span<iovec> parts) override;

  // The timer `token` ran out. If it is the one that the queue waits for, WRs may go again.
  void EndBackoff(uint32_t token);
  // Whether it is the timer that was started last. Any thread.
  bool Awaits(uint32_t token) const {
    return token == backoff_token_.load(std::memory_order_relaxed);
  }

  // The QP goes to SQD: the WRs that have begun are finished, and no other one begins. Raises
  // IBV_EVENT_SQ_DRAINED once none is under way, if `notify`. Under the lock of the send CQ, as the
  // next two.
  void Drain(bool notify);
  // The QP leaves SQD.
  void EndDrain() { draining_ = false; }
  bool draining() const { return draining_; }

  // Ends every WR with IBV_WC_WR_FLUSH_ERR.
  void Flush(CompletionWriter& writer);
  void Reset();
  void SetFirstPsn(uint32_t psn) { next_psn_ = static_cast<uint16_t>(psn); }

 private:
  // A WR whose end is watched for because the queue drains until then, beside ibv_send_flags.
  static constexpr uint8_t kLastToDrain = 1 << 7;
  static constexpr uint8_t kReported = IBV_SEND_SIGNALED | kLastToDrain;

  // kTakenBack: it had been launched, at least in part, and waits to be launched again. Those that
  // were taken back come before those that were not launched yet.
  enum class State : uint8_t { kPosted, kTakenBack, kLaunched, kAnswered };
  enum class Wire : uint8_t { kUndecided, kRing };
  enum class Direct { kDone, kWait, kUseRing };

  struct alignas(64) Wqe {
    // A SEND needs no more than this line.
    uint64_t wr_id;
    uint64_t start;  // position of its first fragment in the ring
    uint64_t end;    // position after its last one
    uint32_t length;
    uint32_t immediate;
    ibv_sge first_sge;
    uint16_t first_psn;
    uint8_t flags;  // ibv_send_flags, and kLastToDrain
    uint8_t num_sge;
    State state;
    bool inline_stored;
    bool placed;  // a WRITE with immediate whose data is at the target already
    Wire route;
    ibv_wr_opcode opcode;
    // One-sided operations, those on windows, and failures go on here.
    uint64_t remote_address;  // BIND_MW: where the window begins,
    uint64_t compare_add;     // how long it is,
    uint64_t swap;            // and what it allows
    uint32_t rkey;            // of the remote memory, or of the window
    uint32_t region;          // BIND_MW: lkey
    uint32_t window;          // BIND_MW: index
    bool window_done;         // bound, or no longer bound
    ibv_wc_status failure;
  };
  static_assert(offsetof(Wqe, remote_address) <= 64 + 8);

  static uint32_t SlotsOf(const ibv_qp_cap& cap);
  Wqe& At(uint32_t index) { return wqes_[index & mask_]; }
  // A WR of one SGE keeps it in its WQE.
  ibv_sge* SgesOf(Wqe& wqe, uint32_t index) {
    return wqe.num_sge <= 1 ? &wqe.first_sge : &sges_[size_t{index & mask_} * max_sge_];
  }
  static bool NeedsAnswer(const Wqe& wqe) {
    return wqe.opcode == IBV_WR_RDMA_READ || wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  }

  // Posting.
  int CheckPost(const ibv_send_wr& wr, uint64_t& length) const;
  int Enqueue(const ibv_send_wr& wr);
  // Keeps the data of an inline WR, which are the caller's again when Post() returns. False if they
  // cannot be read.
  bool StoreInline(uint32_t index, const std::byte* from_ring);

  // Launching. LaunchOne is false when the WR has to wait, or failed.
  void LaunchPending();
  // The WRs before it may be launched in the QP's state.
  uint32_t LaunchEnd() const;
  // Whether the WR at launched_ has had an effect.
  bool HasBegun();
  bool LaunchOne(uint32_t index);
  bool LocalMemoryAllowed(Wqe& wqe, uint32_t index);
  // False when the ring has no room, or the WR failed.
  bool WriteFragments(Wqe& wqe, uint32_t index);
  static size_t PrefixBytes(const Wqe& wqe);
  static void WritePrefix(const Wqe& wqe, std::byte* to);
  // Both, and Lend, are false when the memory of the WR cannot be read or written.
  bool Gather(std::byte* to, Wqe& wqe, uint32_t index, uint32_t offset, uint32_t bytes);
  bool Scatter(Wqe& wqe, uint32_t index, uint32_t offset, const std::byte* from, uint32_t bytes);
  void Announce();
  // Gives up the READs and atomics from done_ on, up to `end`, that are not answered.
  void ForgetReads(uint32_t end);
  // The WQE whose answer is due: launched_ if there is none.
  uint32_t AwaitedAnswer();

  // Payloads that are sent without a copy into the ring.
  bool CanLend(const Wqe& wqe) const;
  bool Lend(std::byte* to, Wqe& wqe, uint32_t index, uint32_t bytes);

  // Executing a one-sided WR here. CopyDirectly and AtomicDirectly return false when the target has
  // to be asked after all.
  Direct TryDirect(uint32_t index);
  RemoteAccess AccessOf(const Wqe& wqe, uint64_t offset, uint64_t bytes) const;
  bool CopyDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index);
  bool AtomicDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index);

  // Binding and invalidating memory windows.
  static bool IsWindowOperation(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
  }
  bool IsSoundWindowWr(const ibv_send_wr& wr) const;
  static void StoreWindowWr(const ibv_send_wr& wr, Wqe& wqe);
  // As LaunchOne.
  bool LaunchWindowWr(uint32_t index);
  bool Bind(uint32_t index);
  bool InvalidateLocally(uint32_t index);
  // False while a peer's copy through the window may still be under way.
  bool CopiesAreOver(uint32_t rkey);
  void LookAgain();
  // Before a flush: the LOCAL_INV at launched_, if there is one, may be over.
  void EndInvalidation(CompletionWriter& writer);
  void ReportInTurn(uint32_t index);

  // Sending again what was refused.
  bool Contains(uint32_t index, uint64_t position);
  void BackOff(uint32_t index, const RefusedFragment& refusal, CompletionWriter& writer);
  void BackOffUntil(TimePoint when);
  void TakeBack(uint32_t first);

  // Ending.
  void Drained();
  bool FailLocally(uint32_t index, ibv_wc_status status);
  void ReportFailure(uint32_t index, ibv_wc_status status, CompletionWriter& writer);
  void AddCompletion(uint32_t index, ibv_wc_status status, CompletionWriter& writer);
  void CountReads(int change);

  QueuePair& qp_;
  OutLane* lane_ = nullptr;
  const uint32_t max_wr_;
  const uint32_t max_sge_;
  const uint32_t max_inline_;
  const bool signal_all_;
  const uint32_t opcodes_;  // that may be posted, a bit for each
  const uint32_t mask_;
  std::unique_ptr<Wqe[]> wqes_;
  std::unique_ptr<ibv_sge[]> sges_;
  SharedRegion inline_data_;  // max_inline_ bytes for each WQE

  // WQE indices, which wrap: released <= done <= launched <= tail. The CQ raises released_ when a
  // completion is polled: the slots before it are free.
  uint32_t released_ = 0;
  uint32_t done_ = 0;
  uint32_t launched_ = 0;
  uint32_t tail_ = 0;
  uint32_t launch_offset_ = 0;  // bytes of the WQE at launched_ that are in the ring already
  uint32_t direct_offset_ = 0;  // bytes of it that were copied directly
  uint32_t drain_end_ = 0;      // in SQD: the WQEs before it had begun
  uint16_t next_psn_ = 0;
  bool draining_ = false;      // in SQD, while one of them is under way,
  bool tell_drained_ = false;  // whose end raises an event
  bool published_ = false;     // something, since the last Announce
  bool backing_off_ = false;   // until a timer has run out
  bool failed_ = false;        // the WQE at launched_ failed locally, and nothing follows it
  bool target_lost_ = false;
  int outstanding_reads_ = 0;
  uint32_t answer_offset_ = 0;  // bytes of the oldest READ's data that have arrived
  // State of the WR at done_: how often it was refused for want of a receive, and since when its
  // target has not been ready.
  uint32_t rnr_retries_ = 0;
  TimePoint not_ready_since_{};
  std::atomic<uint32_t> backoff_token_{0};  // of the timer that was started last
  // State of the LOCAL_INV at launched_: the copies that it waits for, if they are known, and how
  // often the queue has looked.
  std::vector<CopyUnderWay> invalidated_copies_;
  uint32_t invalidation_looks_ = 0;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_SEND_QUEUE_H_
