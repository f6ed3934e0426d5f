#include "verbena/transport/link/sender.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/send_queue.h"

namespace verbena::internal {

LinkSender::LinkSender(Owner& owner, LinkHost& host, ibv_qp* qp, LinkKey key, PeerSource& source)
    : owner_(owner),
      host_(host),
      queue_(qp, key,
             {.buffers = host.supplies().buffers(),
              .chain = host.supplies().chain(),
              .max_inline_bytes = host.supplies().max_inline_bytes(),
              .max_unsignalled_bytes = host.device().capabilities().max_unsignalled_bytes,
              .depth = host.limits().send_queue_depth},
             source),
      issued_(host.credit_issuer().pool(), source.credits, host.limits().initial_credits,
              host.limits().max_credits),
      transfers_(host.supplies().transfers(),
                 {.send_queue_slots = queue_.slots().count(),
                  .slice_bytes = host.limits().bulk.slice_bytes,
                  .bytes_ahead = host.limits().bulk.bytes_ahead,
                  .max_reads = 0,
                  .words = host.supplies().atomic_scratch().Of(key.slot)}),
      leases_(host.device(), host.pd(), host.limits().leases) {}

void LinkSender::Open(const Terms& terms, FirstSend first_send) {
  credits_ = SendCredits(terms.initial_credits);
  queue_.set_send_bytes(terms.send_bytes);
  padded_pings_ = terms.padded_pings;
  state_ = State::kFree;
  if (first_send == FirstSend::kAfterReady) state_ = State::kUntilReady;
  if (first_send == FirstSend::kPeers) state_ = State::kUntilHeard;
}

void LinkSender::AllowSends() {
  VERBENA_CHECK(state_ == State::kUntilReady) << "SENDs are not held back";
  state_ = State::kFree;
  ScheduleFlush();
  WakeWriters();
  // The frames that still wait now wait for credits or room, and count as such.
  WaiterQueue<SendWaiter> waiting;
  writers_.MoveTo(waiting);
  while (!waiting.empty()) {
    waiting.ServeFirst([this](SendWaiter& first) { AwaitWritable(first); });
  }
}

void LinkSender::Close(const absl::Status& reason) {
  state_ = State::kClosed;
  RoomWaiter::Unlink();
  writers_.Clear();
  queue_.DropPending();
  issued_.LeavePool();
  while (!lease_waiters_.empty()) {
    lease_waiters_.ServeFirst([](LeaseWaiter& first) { first.OnLinkLost(); });
  }
  while (PongWaiter* waiter = pong_waiters_.PopFront()) waiter->OnLinkLost(reason);
  leases_.Lose();
}

void LinkSender::Release() {
  transfers_.Fail(absl::UnavailableError("the link was lost"));
  queue_.ReleaseAll();
}

// --- frames

char* LinkSender::Append(const FrameHeader& header, size_t body_bytes, uint32_t invalidated) {
  VERBENA_CHECK(open()) << "a frame for " << owner_.peer() << ", state " << owner_.state();
  VERBENA_CHECK(body_bytes <= max_body_bytes())
      << "a body of " << body_bytes << " bytes, at most " << max_body_bytes();
  // The frame of a waiter that is served passes those who still wait.
  if (!writers_.empty() && !writers_.serving()) return nullptr;
  const bool ahead = queue_.is_group() && PostWritten();
  if (!ahead && !queue_.Fits(body_bytes, invalidated)) {
    if (!OpenSend()) return nullptr;
  }
  return Place(header, body_bytes, invalidated);
}

[[gnu::always_inline]] inline char* LinkSender::Place(const FrameHeader& header, size_t body_bytes,
                                                      uint32_t invalidated) {
  ++stats_.frames_sent;
  return queue_.Place(header, body_bytes, invalidated);
}

bool LinkSender::OpenSend(SendUse use) {
  // A client that never says Ready must not keep the buffers of all others.
  if (state_ == State::kUntilReady) [[unlikely]]
    return false;
  const uint32_t buffer = queue_.TakeBuffer(use, leases_.bindings_due());
  if (buffer == SendBuffers::kNone) {
    LackRoom();
    return false;
  }
  if (use == SendUse::kCredits ? !credits_.TrySpendReserve() : !credits_.TrySpend()) {
    queue_.GiveBack(buffer);
    return false;
  }
  queue_.Add(buffer, use);
  ScheduleFlush();
  return true;
}

void LinkSender::AwaitWritable(SendWaiter& waiter) {
  VERBENA_CHECK(open()) << "a frame for " << owner_.peer() << " waits, state " << owner_.state();
  VERBENA_CHECK(!waiter.linked()) << "a frame for " << owner_.peer() << " waits already";
  VERBENA_CHECK(waiter.body_bytes <= max_body_bytes())
      << "a body of " << waiter.body_bytes << " bytes, at most " << max_body_bytes();
  if (state_ == State::kUntilReady) {
    // AllowSends() wakes it.
  } else if (writers_.empty()) {
    if (credits_.available() == 0) {
      ++stats_.credit_waits;
    } else {
      ++stats_.slot_waits;
      LackRoom();
    }
  } else {
    ++stats_.credit_waits;
  }
  writers_.Add(waiter);
  ScheduleFlush();
}

void LinkSender::WakeWriters() {
  // Frames that wait may go on taking each credit that comes.
  if (control_.any_due() && !writers_.empty() && !writers_.serving() && open()) {
    AppendDue();
  }
  while (!writers_.empty() && may_send()) {
    const SendWaiter& waiter = *writers_.first();
    if (!queue_.Fits(waiter.body_bytes, waiter.invalidated) && !OpenSend()) {
      return;
    }
    writers_.ServeFirst([this](SendWaiter& first) { first.OnWritable(owner_.link()); });
  }
}

// A link that holds slots or buffers is woken by a completion of its own, and then sees what its
// share is. A link that holds no buffer has no completion to wait for.
void LinkSender::LackRoom() {
  lacks_room_ = true;
  if (queue_.held() == 0 && SlotsLeft()) host_.supplies().room().Await(*this, queue_.source());
}

// Its control frames and the credits that it returns leave with a flush.
void LinkSender::OnRoom() {
  if (lacks_room_) ScheduleFlush();
  WakeWriters();
}

// --- arrivals

void LinkSender::StopHolding() {
  state_ = State::kFree;
  ScheduleFlush();
}

void LinkSender::SettleRecall() {
  issued_.SettleRecall();
  if (!issued_.recalled()) NoteRecallAnswered();
}

void LinkSender::NoteRecallAnswered() {
  // The credits are back though the RECALL has not left: the peer is to return no others.
  control_.recall = false;
  // A link that is lost is in no list of the issuer.
  if (open()) host_.credit_issuer().NoteRecallAnswered(owner_);
}

void LinkSender::GrowPeersWindow() {
  if (!open()) return;
  const bool is_shared = host_.supplies().is_shared(queue_.source());
  if (host_.credit_issuer().Grow(owner_, is_shared)) host_.OnCreditsBorrowed();
}

absl::Status LinkSender::OnControlFrame(const FrameHeader& frame) {
  const uint32_t limit = frame.kind == FrameKind::kRecall ? 0 : padding_limit();
  if (frame.body_bytes > limit) {
    return absl::InvalidArgumentError(
        fmt::format("the peer sent a control frame of kind {} with {} bytes, at most {}",
                    static_cast<int>(frame.kind), frame.body_bytes, limit));
  }
  ++control_.count;
  if (frame.kind == FrameKind::kPing) {
    control_.pong = true;
    control_.short_pong |= frame.body_bytes == 0;
    control_.pong_padding = std::max(control_.pong_padding, frame.body_bytes);
  }
  if (PongWaiter* waiter = pong_waiters_.Front();
      frame.kind == FrameKind::kPong && waiter != nullptr) {
    waiter->OnPong(frame.body_bytes);
  }
  // An answer must travel now, since the credits count as free only when it has.
  if (frame.kind == FrameKind::kRecall && credits_.GiveBackWithin(frame.argument) != 0) {
    control_.answer = true;
  }
  if (frame.kind != FrameKind::kPong) ScheduleFlush();
  return absl::OkStatus();
}

void LinkSender::OnCompletion(const ibv_wc& completion, uint16_t position) {
  uint32_t released = 0;
  const bool is_posted = queue_.Complete(position, released);
  if (released != 0) host_.supplies().room().Note(queue_.source());
  if (!is_posted) {
    CompletedUnposted(position);
    return;
  }
  if (!open()) [[unlikely]] {
    OnLateCompletion(completion);
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) return EndLink(completion);
  transfers_.Completed(queue_.slots().completed());
  leases_.Completed(queue_.slots().completed());
  if (!open()) return;
  WakeWriters();
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
  if (transfers_.CanGo() || leases_.work_due() || lacks_room_) ScheduleFlush();
}

void LinkSender::OnFailedReceive(const ibv_wc& completion) {
  if (open()) EndLink(completion);
}

void LinkSender::EndLink(const ibv_wc& completion) {
  LogFailure(completion);
  const absl::Status reason = EndOfConnection(completion, owner_.peer());
  // So ends a peer that closes its queue pair, too.
  if (IsOrdinaryEnd(completion.status, host_.device().kind())) return owner_.Close(reason);
  owner_.Break(reason);
}

void LinkSender::LogFailure(const ibv_wc& completion) {
  const auto text = [&] { return std::string(WcStatus(completion, owner_.peer()).message()); };
  if (IsOrdinaryEnd(completion.status, host_.device().kind())) {
    return VERBENA_LOG_LINE(kLink, kInfo, "a link ends: " + text(),
                            {{"peer", owner_.peer()}, {"link", completion.qp_num}});
  }
  // A peer can cause these as often as it connects.
  static thread_local ThrottledLog log(LogComponent::kLink,
                                       {.lines = 4, .interval = std::chrono::seconds(10)});
  VERBENA_LOG_THROTTLED(log, kWarning, host_.executor().now(), "a link fails: " + text(),
                        {{"peer", owner_.peer()}, {"link", completion.qp_num}});
}

void LinkSender::OnLateCompletion(const ibv_wc& completion) {
  const SendSlots& slots = queue_.slots();
  if (owner_.state() == LinkState::kDraining) {
    if (slots.in_flight() == 0) owner_.OnSendsDrained();
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) return;
  transfers_.Completed(slots.completed());
  leases_.Completed(slots.completed());
}

void LinkSender::CompletedUnposted(uint16_t position) {
  owner_.Close(absl::InternalError(fmt::format(
      "a completion for send {} of {}, which is not posted", position, queue_.slots().posted())));
}

// --- control frames

void LinkSender::Recall(uint32_t count) {
  VERBENA_DCHECK(open()) << "a lost link is asked for credits";
  issued_.Recall(count);
  if (!issued_.recalled()) return NoteRecallAnswered();
  control_.recall = true;
  ScheduleFlush();
}

absl::Status LinkSender::CheckRecall() {
  if (!issued_.recalled()) return absl::OkStatus();
  if (control_.recall && OthersHoldBuffers()) return absl::OkStatus();
  return issued_.CheckRecall(control_.recall);
}

// Control frames pass frames that wait, and those that find no room stay due: they come before
// frames that wait when there is room, and the next turn in which something arrives tries again.
void LinkSender::AppendDue() {
  if (control_.pong) AppendPongs();
  if (control_.ping) AppendControl(PingFrame(), control_.ping_padding);
  if (control_.recall) AppendControl(RecallFrame(issued_.recall_limit()), /*padding=*/0);
}

// A long PONG needs an ordinary buffer, for which it may wait long.
void LinkSender::AppendPongs() {
  if (control_.pong_padding != 0) AppendControl(PongFrame(), control_.pong_padding);
  if (control_.short_pong) AppendControl(PongFrame(), /*padding=*/0);
}

void LinkSender::AppendControl(const FrameHeader& header, uint32_t padding) {
  // A SEND of control frames alone may be in a spare buffer, which must leave inline.
  const bool is_short = padding == 0;
  const bool joins = !queue_.empty() && ((is_short && queue_.FitsControl()) ||
                                         queue_.Fits(padding, /*invalidated=*/0));
  // A link without a credit does not lack room, so no other link is to blame that the frame waits.
  if (!joins && credits_.available() == 0) return;
  if (!joins && !OpenSend() && !(is_short && OpenSend(SendUse::kControl))) return;
  std::memset(Place(header, padding, /*invalidated=*/0), 0, padding);
  ++control_.count;
  if (header.kind == FrameKind::kPong) {
    control_.short_pong = false;
    if (!is_short) control_.pong_padding = 0;
    control_.pong = control_.pong_padding != 0;
  }
  if (header.kind == FrameKind::kPing) {
    control_.ping = false;
    control_.ping_padding = 0;
  }
  if (header.kind == FrameKind::kRecall) {
    control_.recall = false;
    ++stats_.recalls;
  }
}

// --- a flush

void LinkSender::StartFlush() {
  flush_scheduled_ = true;
  WatchedLink& watched = owner_;
  if (!watched.linked()) host_.WatchLiveness(watched);
  host_.executor().FlushLater(*this, Executor::FlushPriority::kSends);
}

void LinkSender::Flush() {
  if (state_ != State::kFree || refusal_ != 0) [[unlikely]] {
    flush_scheduled_ = false;
    if (refusal_ != 0) PostFailed(refusal_);
    return;
  }
  WrChain ready = queue_.NewChain();
  flushing_ = true;
  lacks_room_ = false;
  bool bulk_refused = false;
  const bool moves = this->moves();
  if (moves) PrepareLeases(ready);
  if (open()) {
    AppendDue();
    const bool owes = issued_.ShouldAdvertise() || control_.answer;
    if (queue_.empty() && owes && OpenSend(SendUse::kCredits)) ++stats_.credit_sends;
  }
  if (moves && open()) bulk_refused = PrepareTransfers(ready);
  // From here on what is opened or started leaves with another flush: posting gives room back, and
  // a writer that waited for it appends.
  flush_scheduled_ = false;
  if (open()) {
    if (queue_.empty()) {
      Ring(ready);
    } else if (const int error = PostPending(ready); error != 0) {
      // Slots were reserved before the WRs were made: the queue pair is broken.
      PostFailed(error);
    }
  }
  flushing_ = false;
  if (moves && open()) FinishMoves(bulk_refused);
}

void LinkSender::PrepareLeases(WrChain& ready) {
  LeaseTable& table = leases_;
  SendSlots& slots = queue_.slots();
  while (table.work_due()) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!Ring(ready)) return;
    const uint32_t count = table.Prepare(SlotsForTransfers());
    if (count == 0) return;
    ibv_send_wr* const chain = table.chain();
    queue_.Name(chain, count);
    // Bindings alone would fill the send queue and never say that they have left it.
    const bool signal = slots.IsSignalDue(count) || !lease_waiters_.empty();
    if (signal) chain[count - 1].send_flags = IBV_SEND_SIGNALED;
    slots.Advance(count);
    if (table.Placed(slots.posted() - 1) || signal) {
      slots.MarkSignalled();
    } else {
      slots.CountUnsignalled(count);
    }
    ready.Add(chain, chain + count - 1);
    if (!table.more_due()) return;
  }
}

bool LinkSender::PrepareTransfers(WrChain& ready) {
  if (!transfers_.CanGo()) return false;
  if (!MayPostBulk()) return true;
  // The SENDs that are there already do not wait for a slice.
  if (!queue_.empty() && !PostAhead(ready)) return false;
  for (bool first = true; transfers_.CanGo() && MayPostBulk(); first = false) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!first && !Ring(ready)) return false;
    const uint32_t count = transfers_.Prepare(SlotsForTransfers());
    if (count == 0) return false;
    ibv_send_wr* const chain = transfers_.chain();
    queue_.Name(chain, count);
    SendSlots& slots = queue_.slots();
    slots.MarkSignalled();
    slots.Advance(count);
    ready.Add(chain, chain + count - 1);
    host_.supplies().NoteBulk(host_.executor().stats().turns, transfers_.prepared_bytes());
    transfers_.Posted(slots.posted() - 1);
  }
  return false;
}

// After a flush that had leases or transfers to see to.
void LinkSender::FinishMoves(bool bulk_refused) {
  // A chain's worth of bindings is free again for leases.
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
  // A link that had its slice goes on when the slice has ended, behind the links that were refused
  // one.
  const bool bulk_due = bulk_refused || (transfers_.CanGo() && MayPostBulk());
  if ((bulk_due || leases_.work_due()) && SlotsForTransfers() > 0) ScheduleFlush();
}

bool LinkSender::PostAhead(WrChain& ready) {
  const int error = PostPending(ready);
  if (error != 0) PostFailed(error);
  return error == 0;
}

int LinkSender::PostPending(WrChain& ready, size_t kept) {
  issued_.Refill();
  issued_.MarkAdvertised();
  control_.answer = false;
  SendHeader header;
  header.credits_issued = issued_.total();
  header.credits_returned = credits_.returned();
  header.reserve_seen = issued_.reserve_seen();
  // The SEND that spends the last credit says so too: without another credit, nothing could be said
  // later.
  if (!writers_.empty() || credits_.available() == 0) header.flags |= kSendStarved;
  const int error = queue_.Post(ready,
                                {.header = header,
                                 .fence = transfers_.fence(),
                                 .signal = !writers_.empty() || lacks_room_,
                                 .kept = kept},
                                stats_);
  leases_.Posted();
  host_.supplies().room().Note(queue_.source());
  return error;
}

bool LinkSender::Ring(WrChain& ready) {
  if (ready.empty()) return true;
  const int error = queue_.PostReady(ready);
  ++stats_.doorbells;
  leases_.Posted();
  if (error != 0) PostFailed(error);
  return error == 0;
}

void LinkSender::PostFailed(int error) {
  owner_.Break(ErrnoStatus(error, fmt::format("ibv_post_send to {}", owner_.peer())));
}

void LinkSender::WakeLeaseWaiters() {
  // Each waiter takes its leases a moment after it is told, so the promised ones are counted here.
  uint32_t promised = 0;
  while (LeaseWaiter* waiter = lease_waiters_.first()) {
    promised += waiter->leases_wanted;
    if (free_leases() < promised) {
      owner_.RefillWindows(promised);
      return;
    }
    lease_waiters_.ServeFirst([](LeaseWaiter& first) { first.OnLeasesFree(); });
  }
}

// --- sending while the turn goes on

// How many frames are worth a SEND of their own while the turn goes on: half of the calls in
// flight, so that each side works on one half, but kMaxEarlyFrames at most. The side that answers
// keeps groups as large as they come, to that bound.
uint32_t LinkSender::EarlyFrames() const {
  const uint32_t calls = owner_.listener().calls_in_flight();
  if (calls == 0) return kMaxEarlyFrames;
  return std::clamp(calls / 2, kMinEarlyFrames, kMaxEarlyFrames);
}

bool LinkSender::IsGroup() {
  queue_.set_group(EarlyFrames());
  return queue_.is_group();
}

// Nothing else of this link is due before its SENDs, nobody waits for what they take, and the
// receives are posted whose credits they return. Not inside a flush: what it has prepared holds
// earlier positions of the send queue, and a completion of a later one would prove its end.
bool LinkSender::MayPostEarly() {
  if (flushing_) return false;
  return state_ == State::kFree && refusal_ == 0 && !moves() && host_.PrepareEarlySend();
}

// Makes an empty SEND the last one and posts those before it, whose frames are all written by now.
// False when that must wait.
bool LinkSender::PostWritten() {
  if (!IsGroup() || !MayPostEarly()) return false;
  const PendingSend& last = queue_.last();
  const bool is_empty = last.frames == 0 && last.use == SendUse::kFrames;
  if (!is_empty && !OpenSend()) return false;
  WrChain ready = queue_.NewChain();
  refusal_ = PostPending(ready, /*kept=*/1);
  return true;
}

// Posts what is pending, between two completions of one poll.
void LinkSender::PostEarly() {
  if (!host_.handles_more_completions() || !IsGroup() || !MayPostEarly()) return;
  WrChain ready = queue_.NewChain();
  refusal_ = PostPending(ready);
}

void LinkSender::SendNow() {
  const bool one_frame = queue_.pending() == 1 && queue_.last().frames == 1;
  if (!one_frame || state_ != State::kFree || control_.any_due() || moves() ||
      !host_.MaySendNow()) {
    return;
  }
  FlushHook::Unlink();
  flush_scheduled_ = false;
  WrChain ready = queue_.NewChain();
  refusal_ = PostPending(ready);
  if (refusal_ != 0) ScheduleFlush();
}

}  // namespace verbena::internal
