#include "verbena/rpc/internal/stream_receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/internal/call_step.h"
#include "verbena/rpc/internal/frames.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {

using google::protobuf::MessageLite;

StreamReceiver::~StreamReceiver() { Clear(); }

void StreamReceiver::Begin(StreamLink& link, CallId id) {
  link_ = &link;
  share_ = link.share();
  id_ = id;
  window_ = ReceiveWindow(kStreamWindowBytes);
  max_message_bytes_ = link.link().endpoint().limits().max_payload_bytes;
  link.Add(*this);
}

void StreamReceiver::Clear() {
  if (reader_ != nullptr) {
    StreamRead& read = *std::exchange(reader_, nullptr);
    read.receiver_ = nullptr;
    if (read.state_ == StreamRead::State::kWaiting) {
      read.status_ = CancelStatus(absl::StatusCode::kCancelled);
      read.End(StreamRead::State::kFailed);
    }
  }
  DropKept();
  if (counted_ > 0) share_->EndReservation(std::exchange(counted_, 0));
  counts_until_clear_ = false;
  SendWaiter::Unlink();
  IntrusiveNode<LinkedStream>::Unlink();
  link_ = nullptr;
  part_left_ = 0;
  ended_ = discards_ = has_returned_ = false;
  returned_ = std::string();
  failure_ = absl::OkStatus();
}

absl::Status StreamReceiver::CheckPart(const FrameHeader& frame, Part& part) {
  const bool more = (frame.flags & kFrameMessageApart) != 0;
  part = {frame.body_bytes, 0, frame.outcome == kCountsInStreamAlone};
  if (part_left_ > 0) {
    part.total = kRest;
    if (frame.argument != 0 || frame.body_bytes == 0 || frame.body_bytes > part_left_ ||
        more != (frame.body_bytes < part_left_)) {
      return absl::InvalidArgumentError(
          fmt::format("a part of {} bytes, the last one: {}, of a message of which {} are missing",
                      frame.body_bytes, !more, part_left_));
    }
    part_left_ -= frame.body_bytes;
    return absl::OkStatus();
  }
  if (!more) {
    if (frame.argument == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("a message in one part tells of further parts");
  }
  if (frame.body_bytes == 0 || frame.argument <= frame.body_bytes ||
      (frame.argument > max_message_bytes_ && !VERBENA_MUTANT(kMessageSizeUnchecked))) {
    return absl::InvalidArgumentError(fmt::format(
        "a message of {} bytes, at most {} (LinkLimits::max_payload_bytes), in parts, the first of "
        "{} bytes",
        frame.argument, max_message_bytes_, frame.body_bytes));
  }
  part.total = frame.argument;
  part_left_ = frame.argument - frame.body_bytes;
  return absl::OkStatus();
}

absl::Status StreamReceiver::OnMessage(const FrameHeader& frame, const char* body) {
  AtStep(CallStep::kMessageArrived, &link_->link());
  if (ended_ && !VERBENA_MUTANT(kMessageAfterEndTaken)) {
    return absl::InvalidArgumentError("a message on a stream that its sender has ended");
  }
  if (frame.outcome == kCountsInStreamAlone && !BeginsInOwnWindow(window_.left()) &&
      !VERBENA_MUTANT(kOwnWindowUnchecked)) {
    return absl::InvalidArgumentError(
        fmt::format("a message beyond the {} bytes of its stream's window that do not count in "
                    "that of the link: {} bytes are left",
                    kOwnWindowBytes, window_.left()));
  }
  if (!window_.Receive(StreamCost(frame.body_bytes)) && !VERBENA_MUTANT(kStreamWindowUnchecked)) {
    return absl::InvalidArgumentError(
        fmt::format("a stream's messages are beyond their window: {} bytes are unread",
                    window_.unread() + StreamCost(frame.body_bytes)));
  }
  Part part;
  VERBENA_RETURN_IF_ERROR(CheckPart(frame, part));
  if (discards_ || !failure_.ok()) {
    Consume(part);
  } else if (first_ == nullptr && reader_waits()) {
    Take(part, body, *reader_);
  } else {
    Keep(part, body);
  }
  return absl::OkStatus();
}

bool StreamReceiver::reader_waits() const {
  return reader_ != nullptr && reader_->state_ == StreamRead::State::kWaiting;
}

void StreamReceiver::EndReader(StreamRead::State state) {
  if (reader_waits()) reader_->End(state);
}

void StreamReceiver::Take(const Part& part, const char* bytes, StreamRead& read) {
  if (TakeInto(part, bytes, read.into_) == Taken::kMessage) {
    EndReader(StreamRead::State::kMessage);
  }
}

StreamReceiver::Taken StreamReceiver::TakeInto(const Part& part, const char* bytes,
                                               MessageLite& into) {
  if (part.total == 0) {
    const bool parsed = Parse(bytes, part.bytes, into);
    Consume(part);
    return parsed ? Taken::kMessage : Taken::kFailed;
  }
  if (part.total != kRest) {
    assembly_total_ = part.total;
    assembly_.clear();
  }
  // Bytes that have come count, not those that their sender claims.
  if (!share_->TryReserve(VERBENA_MUTANT(kClaimedMessagesReserved) ? assembly_total_
                                                                   : part.bytes)) {
    Consume(part);
    FailHere(share_->Exhausted(part.bytes));
    return Taken::kFailed;
  }
  assembly_.append(bytes, part.bytes);
  Consume(part);
  if (assembly_.size() < assembly_total_) return Taken::kPart;
  const bool parsed = Parse(assembly_.data(), assembly_.size(), into);
  EndAssembly();
  return parsed ? Taken::kMessage : Taken::kFailed;
}

bool StreamReceiver::Parse(const char* bytes, size_t size, MessageLite& into) {
  if (into.ParseFromArray(bytes, static_cast<int>(size))) return true;
  FailHere(absl::InvalidArgumentError(fmt::format(
      "a stream's message of {} bytes does not parse as {}", size, into.GetTypeName())));
  return false;
}

void StreamReceiver::EndAssembly() {
  if (assembly_total_ == 0) return;
  assembly_total_ = 0;
  if (counts_until_clear_ && !VERBENA_MUTANT(kLargeRequestUncounted)) {
    counted_ += assembly_.size();
  } else if (!VERBENA_MUTANT(kAssemblyStaysReserved)) {
    share_->EndReservation(assembly_.size());
  }
  EmptyAndKeepLittle(assembly_);
}

void StreamReceiver::Keep(const Part& part, const char* bytes) {
  const uint32_t needed = sizeof(part) + part.bytes;
  if (last_ == nullptr || last_->capacity - last_->end < needed) {
    StreamChunk* chunk = share_->Allocate(needed);
    if (chunk == nullptr) {
      Consume(part);
      FailHere(share_->Exhausted(needed));
      return;
    }
    (last_ == nullptr ? first_ : last_->next) = chunk;
    last_ = chunk;
  }
  char* to = last_->data() + last_->end;
  std::memcpy(to, &part, sizeof(part));
  std::memcpy(to + sizeof(part), bytes, part.bytes);
  last_->end += needed;
}

StreamReceiver::Taken StreamReceiver::TakeKept(MessageLite& into) {
  while (first_ != nullptr) {
    StreamChunk* const chunk = first_;
    Part part;
    const char* from = chunk->data() + chunk->begin;
    std::memcpy(&part, from, sizeof(part));
    chunk->begin += sizeof(part) + part.bytes;
    // Consuming may fail the stream, which drops all chunks but this one.
    const bool is_used_up = chunk->begin == chunk->end;
    if (is_used_up) {
      first_ = chunk->next;
      if (first_ == nullptr) last_ = nullptr;
    }
    const Taken taken = TakeInto(part, from + sizeof(part), into);
    if (is_used_up) share_->Free(chunk);
    if (taken != Taken::kPart) return taken;
  }
  return Taken::kPart;
}

void StreamReceiver::DropKept() {
  while (first_ != nullptr) {
    StreamChunk* const chunk = first_;
    while (chunk->begin < chunk->end) {
      Part part;
      std::memcpy(&part, chunk->data() + chunk->begin, sizeof(part));
      chunk->begin += sizeof(part) + part.bytes;
      Consume(part);
    }
    first_ = chunk->next;
    share_->Free(chunk);
  }
  last_ = nullptr;
  EndAssembly();
}

void StreamReceiver::Consume(const Part& part) {
  if (link_ == nullptr) return;
  window_.Consume(StreamCost(part.bytes));
  if (!part.own) link_->Consume(StreamCost(part.bytes));
  TellIfDue();
}

// While the link's window is used up, the peer goes on as far as the stream's own window reaches.
bool StreamReceiver::MustTell() const {
  if (window_.due()) return true;
  return link_->is_tight() && window_.untold() >= kOwnWindowBytes / 2 &&
         !VERBENA_MUTANT(kOwnWindowsToldLate);
}

void StreamReceiver::TellIfDue() {
  if (MustTell() && !ended_ && link_->link().open() && !SendWaiter::linked()) SendLimit();
}

void StreamReceiver::SendLimit() {
  Link& link = link_->link();
  if (link.Append(StreamWindowFrame(id_, window_.next_limit()), 0) == nullptr) {
    link.AwaitWritable(*this);
  } else {
    window_.Move();
    AtStep(CallStep::kWindowAppended, &link);
  }
}

void StreamReceiver::OnWritable(Link&) { SendLimit(); }

bool StreamReceiver::End() {
  ended_ = true;
  SendWaiter::Unlink();
  if (first_ == nullptr) {
    EndAssembly();
    EndReader(StreamRead::State::kEnd);
  }
  return part_left_ == 0;
}

void StreamReceiver::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  DropKept();
  if (reader_waits()) {
    reader_->status_ = failure_;
    reader_->End(StreamRead::State::kFailed);
  }
}

void StreamReceiver::FailHere(const absl::Status& status) {
  Fail(status);
  owner_.OnReceiveFailed(status);
}

void StreamReceiver::Discard() {
  discards_ = true;
  DropKept();
}

void StreamReceiver::OnStreamLinkLost() {
  link_ = nullptr;
  SendWaiter::Unlink();
  // A Read that no cancellation reaches would wait for ever.
  if (!ended_ && !VERBENA_MUTANT(kLostStreamStillRead)) {
    Fail(absl::UnavailableError("the link was lost"));
  }
}

bool StreamReceiver::Start(StreamRead& read) {
  VERBENA_CHECK(reader_ == nullptr) << "two Reads of one stream at once";
  if (has_returned_) {
    has_returned_ = false;
    // This message was parsed once already.
    (void)read.into_.ParseFromString(returned_);
    read.state_ = StreamRead::State::kMessage;
    return false;
  }
  reader_ = &read;
  const Taken taken = failure_.ok() ? TakeKept(read.into_) : Taken::kFailed;
  if (taken == Taken::kPart && !ended_) {
    read.state_ = StreamRead::State::kWaiting;
    return true;
  }
  reader_ = nullptr;
  if (taken == Taken::kMessage) {
    read.state_ = StreamRead::State::kMessage;
  } else if (taken == Taken::kPart) {
    EndAssembly();
    read.state_ = StreamRead::State::kEnd;
  } else {
    read.status_ = failure_;
    read.state_ = StreamRead::State::kFailed;
  }
  return false;
}

// The message that had come for it is the next Read's.
void StreamReceiver::Leave(StreamRead& read) {
  reader_ = nullptr;
  if (read.state_ != StreamRead::State::kMessage || VERBENA_MUTANT(kDestroyedReadTakesItem)) return;
  read.into_.SerializeToString(&returned_);
  has_returned_ = true;
}

StreamRead::~StreamRead() {
  if (receiver_ != nullptr && receiver_->reader_ == this) receiver_->Leave(*this);
}

bool StreamRead::Await(PromiseBase& caller) {
  if (Cancelled(caller)) {
    status_ = cancel_status();
    state_ = State::kFailed;
    return false;
  }
  if (receiver_ == nullptr || !receiver_->Start(*this)) return false;
  Suspend(caller);
  return true;
}

void StreamRead::End(State state) {
  state_ = state;
  Resume();
}

void StreamRead::Detach() {
  // Another Read may begin before this one's coroutine resumes.
  const bool is_reader = receiver_ != nullptr && receiver_->reader_ == this;
  if (is_reader && !VERBENA_MUTANT(kCancelledReadStays)) receiver_->reader_ = nullptr;
  status_ = cancel_status();
  state_ = State::kFailed;
}

absl::StatusOr<bool> StreamRead::await_resume() {
  if (receiver_ != nullptr && receiver_->reader_ == this) receiver_->reader_ = nullptr;
  const State state = std::exchange(state_, State::kTaken);
  if (state == State::kMessage) return true;
  if (state == State::kEnd) return false;
  return std::move(status_);
}

}  // namespace verbena::internal
