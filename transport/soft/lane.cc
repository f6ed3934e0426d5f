#include "verbena/transport/soft/lane.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/soft/completions.h"

namespace verbena::internal::soft {
namespace {

// A peer can have it written as often as it likes.
void LogCorruptRing(const char* what) {
  static ThrottledLog& log = *new ThrottledLog(LogComponent::kDevice, {});
  VERBENA_LOG_THROTTLED(log, kError, Clock::Real().Now(),
                        std::string("soft device: a peer corrupted its ring; ") + what);
}

}  // namespace

OutLane::OutLane(Completions& send_cq, std::shared_ptr<Peer> peer, uint64_t remote_cq, uint64_t id,
                 std::shared_ptr<LaneMemory> memory, std::shared_ptr<LaneWire> wire)
    : send_cq_(send_cq),
      peer_(std::move(peer)),
      remote_cq_(remote_cq),
      id_(id),
      target_(&peer_->control(static_cast<uint32_t>(remote_cq % kMaxCompletionQueues))),
      memory_(std::move(memory)),
      wire_(std::move(wire)),
      requests_(memory_->requests(), memory_->geometry().request_lines),
      answers_(memory_->answers(), memory_->geometry().answer_lines),
      watched_(std::bit_ceil(memory_->geometry().request_lines) * 2) {
  if (wire_ != nullptr) wire_->set_out_lane(this);
}

OutLane::~OutLane() {
  if (wire_ != nullptr) wire_->set_out_lane(nullptr);
}

void OutLane::GrowWatched() {
  std::vector<Watched> larger(watched_.size() * 2);
  for (uint64_t i = watched_head_; i != watched_tail_; ++i) {
    larger[i & (larger.size() - 1)] = watched_[i & (watched_.size() - 1)];
  }
  watched_ = std::move(larger);
}

void OutLane::BecomeActive() {
  active_ = true;
  send_cq_.AddActive(*this);
}

bool OutLane::StaysActive(CompletionWriter& writer) {
  // Requests that nobody waits for are not looked after in every poll.
  if (!failed_ && header().consumed.load(std::memory_order_relaxed) != requests_.released()) {
    Harvest(writer);
  }
  active_ = !failed_ && (wants_consumed() || !ready_.empty() || has_outstanding());
  return active_;
}

void OutLane::AwaitRoom(LaneUser& user) {
  Activate();
  found_no_room_ |= served_ == &user;
  if (!user.linked()) room_waiters_.PushBack(user);
}

void OutLane::AwaitConsumed(LaneUser& user) {
  Activate();
  if (!user.linked()) consumed_waiters_.PushBack(user);
}

void OutLane::MarkReady(LaneUser& user) {
  Activate();
  if (ready_.empty() || ready_.back() != &user) ready_.push_back(&user);
  if (send_cq_.unpolled()) send_cq_.WakeEngine();
}

void OutLane::Harvest(CompletionWriter& writer) {
  if (failed_) return;
  // First: a target tells what it consumed before it closes.
  const bool closed = header().target_closed.load(std::memory_order_acquire) != 0;
  if (!TakeProgress(writer)) {
    LogCorruptRing("its queue pairs fail");
    Fail(writer);
  } else if (closed) {
    Fail(writer);
  } else if (has_waiters()) {
    RelaunchWaiting(writer);
  }
}

void OutLane::Lose(CompletionWriter& writer) {
  if (failed_) return;
  (void)TakeProgress(writer);
  Fail(writer);
}

bool OutLane::TakeProgress(CompletionWriter& writer) {
  // In this order: whatever was refused before `consumed` rose is in the answer ring by now.
  const uint64_t consumed = header().consumed.load(std::memory_order_acquire);
  if (!TakeAnswers(writer) ||
      consumed - requests_.released() > requests_.position() - requests_.released() ||
      PassedOverRead(consumed)) {
    return false;
  }
  while (watched_head_ != watched_tail_) {
    Watched& watched = watched_[watched_head_ & (watched_.size() - 1)];
    if (watched.end > consumed || writer.full()) break;
    ++watched_head_;
    if (watched.user != nullptr) watched.user->Complete(consumed, writer);
  }
  if (!ready_.empty()) {
    scratch_.swap(ready_);
    for (LaneUser* user : scratch_) user->Complete(consumed, writer);
    scratch_.clear();
  }
  // A refused inline WR finds its data in the ring: only now may it be written over.
  const bool released = requests_.Release(consumed);
  VERBENA_CHECK(released) << "line " << consumed << " of a request ring";
  return true;
}

bool OutLane::TakeAnswers(CompletionWriter& writer) {
  answers_seen_ = header().answered.load(std::memory_order_acquire);
  const uint64_t start = answers_.position();
  MessageHeader answer;
  while (true) {
    const RingReader::State state = answers_.Peek(answer);
    if (state == RingReader::State::kBroken) return false;
    if (state == RingReader::State::kEmpty) break;
    if (!TakeAnswer(answer, writer)) return false;
    answers_.Consume(answer);
  }
  if (answers_.position() != start) {
    header().answers_consumed.store(answers_.position(), std::memory_order_release);
    // The target may wait for room in the answer ring.
    if (wire_ != nullptr) {
      wire_->OnAnswersTaken();
    } else {
      Announce();
    }
  }
  return true;
}

bool OutLane::TakeAnswer(const MessageHeader& answer, CompletionWriter& writer) {
  LaneUser* user = FindUser(answer.destination);
  if (answer.opcode == Opcode::kRefused) {
    RefusedFragment refusal;
    if (answer.length != sizeof(refusal)) return false;
    std::memcpy(&refusal, answers_.payload(), sizeof(refusal));
    std::erase_if(forgotten_reads_, [&](const ForgottenRead& read) {
      return refusal.position >= read.start && refusal.position < read.end;
    });
    if (user != nullptr) user->Refused(refusal, writer);
    return true;
  }
  if (answer.opcode != Opcode::kData) return false;
  const PlacedBytes placed =
      wire_ != nullptr ? wire_->TakePlacedAnswer(answers_.position()) : PlacedBytes{};
  // Answers come in the order of the requests.
  if (auto forgotten = FindForgotten(answer.destination); forgotten != forgotten_reads_.end()) {
    if ((answer.flags & kLast) != 0) forgotten_reads_.erase(forgotten);
    return true;
  }
  if (user != nullptr) user->Answered(answer, answers_.payload(), placed, writer);
  return true;
}

LaneUser* OutLane::FindUser(uint32_t qpn) {
  auto found = users_.find(qpn);
  return found == users_.end() ? nullptr : found->second;
}

std::vector<OutLane::ForgottenRead>::iterator OutLane::FindForgotten(uint32_t qpn) {
  return std::find_if(forgotten_reads_.begin(), forgotten_reads_.end(),
                      [&](const ForgottenRead& read) { return read.qpn == qpn; });
}

bool OutLane::PassedOverRead(uint64_t consumed) const {
  // A target consumes a READ once it has begun to answer it, and later requests once all of its
  // answer is published. So the answer of one READ may be on its way.
  const auto unanswered = std::ranges::count_if(
      forgotten_reads_, [&](const ForgottenRead& read) { return read.end <= consumed; });
  return unanswered > 1;
}

LaneUser* OutLane::FindReader(uint32_t qpn) {
  return FindForgotten(qpn) == forgotten_reads_.end() ? FindUser(qpn) : nullptr;
}

void OutLane::RelaunchWaiting(CompletionWriter& writer) {
  if (!consumed_waiters_.empty()) {
    IntrusiveList<LaneUser> round;
    round.Append(consumed_waiters_);
    while (LaneUser* user = round.PopFront()) user->Resume(writer);
  }
  GiveRoom(writer);
}

// Lets waiting queue pairs launch in turn, until one finds too little room: to look at each of a
// thousand, each time the target has consumed something, would cost more than what they send. A
// queue pair that could send something waits behind all others for its next turn. One that could
// send nothing stays first, and the ring drains until its WR fits.
void OutLane::GiveRoom(CompletionWriter& writer) {
  while (LaneUser* user = room_waiters_.PopFront()) {
    const uint64_t before = requests_.position();
    served_ = user;
    found_no_room_ = false;
    user->Resume(writer);
    served_ = nullptr;
    if (!found_no_room_) continue;
    if (requests_.position() == before) {
      user->Unlink();
      IntrusiveList<LaneUser> others;
      others.Append(room_waiters_);
      room_waiters_.PushBack(*user);
      room_waiters_.Append(others);
    }
    return;
  }
}

void OutLane::AddUser(uint32_t qpn, LaneUser& user) {
  const bool added = users_.emplace(qpn, &user).second;
  VERBENA_CHECK(added) << "QP " << qpn << " sends through the lane already";
}

void OutLane::SetWakeLevel() {
  const WakeLevel level = wants_consumed()    ? kWakeOnConsumed
                          : has_outstanding() ? kWakeOnAnswer
                                              : kWakeNever;
  header().wake_level.store(level, std::memory_order_relaxed);
}

void OutLane::RemoveUser(uint32_t qpn) {
  LaneUser* const user = FindUser(qpn);
  if (user == nullptr) return;
  users_.erase(qpn);
  user->Unlink();
  std::erase(ready_, user);
  for (uint64_t i = watched_head_; i != watched_tail_; ++i) {
    Watched& watched = watched_[i & (watched_.size() - 1)];
    if (watched.user == user) watched.user = nullptr;
  }
}

void OutLane::Fail(CompletionWriter& writer) {
  if (failed_) return;
  failed_ = true;
  for (auto* waiters : {&room_waiters_, &consumed_waiters_}) {
    while (waiters->PopFront() != nullptr) {
    }
  }
  // A QP that fails does not leave the lane: the map stays as it is.
  for (auto& [_, user] : users_) user->LoseTarget(writer);
  if (wire_ != nullptr) wire_->Touch();
}

InLane::InLane(std::shared_ptr<Peer> peer, uint32_t send_cq_index, uint64_t id,
               std::shared_ptr<LaneMemory> memory, std::shared_ptr<LaneWire> wire)
    : peer_(std::move(peer)),
      id_(id),
      initiator_(&peer_->control(send_cq_index)),
      memory_(std::move(memory)),
      wire_(std::move(wire)),
      requests_(memory_->requests(), memory_->geometry().request_lines),
      answers_(memory_->answers(), memory_->geometry().answer_lines) {
  if (wire_ != nullptr) wire_->set_in_lane(this);
}

InLane::~InLane() {
  if (wire_ != nullptr) wire_->set_in_lane(nullptr);
}

bool InLane::HasRoomForAnswer(size_t bytes) {
  if (answers_.HasRoomFor(bytes)) return true;
  TakeAnswersConsumed();
  return !broken_ && answers_.HasRoomFor(bytes);
}

void InLane::TakeAnswersConsumed() {
  if (!answers_.Release(header().answers_consumed.load(std::memory_order_acquire))) Break();
}

void InLane::PublishAnswer(const MessageHeader& answer) {
  answers_.Publish(answer);
  ++answers_published_;
  answered_since_check_ = true;
}

void InLane::PublishProgress() {
  if (answers_announced_ != answers_published_) {
    answers_announced_ = answers_published_;
    header().answered.store(answers_published_, std::memory_order_release);
  }
  published_ = requests_.position();
  header().consumed.store(published_, std::memory_order_release);
  wake_check_due_ = true;
  if (wire_ != nullptr) wire_->Touch();
}

void InLane::WakeInitiator() {
  const uint32_t level = header().wake_level.load(std::memory_order_relaxed);
  if (level == kWakeNever || (level == kWakeOnAnswer && !answered_since_check_)) return;
  if (initiator_->mode.load(std::memory_order_relaxed) == CqControl::kPolled) return;
  peer_->Wake(*initiator_);
}

std::optional<CopyUnderWay> InLane::FindCopyUnderWay(uint32_t key) {
  const uint64_t sequence = header().copying.load(std::memory_order_acquire);
  if (sequence % 2 == 0) return std::nullopt;
  // A key that is read while the next copy begins already, which finds the permission withdrawn,
  // only makes us list a copy that is over.
  if (key != 0 && header().copying_key.load(std::memory_order_acquire) != key &&
      header().copying.load(std::memory_order_relaxed) == sequence) {
    return std::nullopt;
  }
  return CopyUnderWay{.peer = peer_, .copying = {memory_, &header().copying}, .sequence = sequence};
}

void InLane::CloseTarget() {
  if (progress_due()) PublishProgress();
  header().target_closed.store(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (initiator_->mode.load(std::memory_order_relaxed) != CqControl::kPolled) {
    peer_->Wake(*initiator_);
  }
}

void InLane::Break() {
  if (broken_) return;
  broken_ = true;
  pending_read_.active = false;
  if (wire_ != nullptr) wire_->Touch();
  LogCorruptRing("nothing more is read from it");
}

}  // namespace verbena::internal::soft
