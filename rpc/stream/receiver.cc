#include "verbena/rpc/stream/receiver.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

namespace {

// Waits until the Read has the memory that it wants, or its stream has failed: then OK, too.
Task<absl::Status> AwaitMemory(StreamReceiver& receiver, ReceivedPayload& payload) {
  const TaskContext context = co_await CurrentContext();
  StreamMemoryWait wait(receiver, context.cancel);
  absl::StatusOr<Buffer> memory =
      co_await receiver.buffers()->Allocate(payload.wanted).In(&wait.scope());
  // The receiver may be another stream's by now.
  if (wait.receiver() == nullptr) {
    const bool requested = context.cancel != nullptr && context.cancel->requested();
    co_return requested ? context.cancel->status() : CancelStatus(absl::StatusCode::kCancelled);
  }
  if (memory.ok()) {
    payload.buffer = *std::move(memory);
  } else if (context.cancel != nullptr && context.cancel->requested()) {
    co_return context.cancel->status();
  } else if (!wait.scope().requested()) {
    receiver.FailForMemory(memory.status());
  }
  co_return absl::OkStatus();
}

}  // namespace

// One Read of a stream: how it begins, waits, takes a message, and leaves if its coroutine does.

void StreamReceiver::BeginMemoryWait(StreamMemoryWait& wait) {
  VERBENA_CHECK(memory_wait_ == nullptr) << "two Reads of one stream at once";
  memory_wait_ = &wait;
  // The message may be gone since its Read was told of it.
  if (!failure_.ok() || discards_) wait.EndEarly();
}

void StreamReceiver::DropCancelledRead() {
  if (memory_wait_ != nullptr && memory_wait_->scope().requested()) {
    std::exchange(memory_wait_, nullptr)->Forget();
  }
  if (reader_ == nullptr || reader_waits()) return;
  StreamRead& read = *reader_;
  if (read.scope_ == nullptr || !read.scope_->requested()) return;
  Leave(read);
  read.receiver_ = nullptr;
  if (read.state_ == StreamRead::State::kEnd || read.state_ == StreamRead::State::kFailed) return;
  read.status_ = read.scope_->status();
  read.state_ = StreamRead::State::kFailed;
}

bool StreamReceiver::Start(StreamRead& read) {
  if (reader_ != nullptr || memory_wait_ != nullptr) [[unlikely]]
    DropCancelledRead();
  VERBENA_CHECK(reader_ == nullptr && memory_wait_ == nullptr) << "two Reads of one stream at once";
  if (read.payload_ != nullptr) read.payload_->wanted = 0;
  if (returned_ != nullptr) {
    // This message was parsed once already.
    (void)read.into_.ParseFromString(returned_->message);
    if (read.payload_ != nullptr && returned_->has_payload) {
      read.payload_->buffer = std::move(returned_->payload);
      read.payload_->present = true;
    }
    returned_.reset();
    read.state_ = StreamRead::State::kMessage;
    return false;
  }
  EndCounted();
  reader_ = &read;
  const Taken taken = failure_.ok() ? TakeKept(read) : Taken::kFailed;
  if (taken == Taken::kPart && !ended_) {
    read.state_ = StreamRead::State::kWaiting;
    SetPeerOwes(true);
    return true;
  }
  reader_ = nullptr;
  if (taken == Taken::kMessage) {
    read.state_ = StreamRead::State::kMessage;
  } else if (taken == Taken::kNeedsMemory) {
    read.state_ = StreamRead::State::kNeedsMemory;
  } else if (taken == Taken::kPart) {
    EndAssembly();
    read.state_ = StreamRead::State::kEnd;
    // A loop that asks only whether a Read failed would never end.
    if (std::exchange(end_told_, true)) [[unlikely]] {
      read.status_ = absl::FailedPreconditionError(
          "a Read of a stream whose messages have ended: the last Read said so by giving none");
      read.state_ = StreamRead::State::kFailed;
    }
  } else {
    read.status_ = failure_;
    read.state_ = StreamRead::State::kFailed;
  }
  return false;
}

// The message that had come for it is the next Read's.
void StreamReceiver::Leave(StreamRead& read) {
  VERBENA_DCHECK(reader_ == &read) << "a Read leaves a stream that it does not wait for";
  reader_ = nullptr;
  SetPeerOwes(false);
  if (read.state_ != StreamRead::State::kMessage) return;
  returned_ = std::make_unique<Returned>();
  returned_->message = PartialBytesOf(read.into_);
  if (read.payload_ == nullptr) return;
  returned_->has_payload = std::exchange(read.payload_->present, false);
  if (returned_->has_payload) returned_->payload = std::move(read.payload_->buffer);
}

void StreamRead::Leave() { receiver_->Leave(*this); }

bool StreamRead::Await(PromiseBase& caller) {
  StreamReceiver* const receiver = std::exchange(receiver_, nullptr);
  if (Cancelled(caller)) {
    status_ = cancel_status();
    state_ = State::kFailed;
    return false;
  }
  scope_ = caller.cancel;
  if (!receiver->Start(*this)) return false;
  receiver_ = receiver;
  Suspend(caller);
  return true;
}

void StreamRead::End(State state) {
  state_ = state;
  Resume();
}

// The receiver knows it until its coroutine resumes, or another Read begins before.
void StreamRead::Detach() {
  if (receiver_ != nullptr) receiver_->SetPeerOwes(false);
  status_ = cancel_status();
  state_ = State::kFailed;
}

absl::StatusOr<bool> StreamRead::await_resume() {
  if (StreamReceiver* receiver = std::exchange(receiver_, nullptr)) {
    receiver->reader_ = nullptr;
    if (state_ == State::kEnd) receiver->end_told_ = true;
  }
  const State state = std::exchange(state_, State::kTaken);
  if (state == State::kNeedsMemory) return false;
  if (payload_ != nullptr) payload_->wanted = 0;
  if (state == State::kMessage) return true;
  if (state == State::kEnd) return false;
  return std::move(status_);
}

StreamMemoryWait::StreamMemoryWait(StreamReceiver& receiver, CancelScope* parent)
    : receiver_(&receiver), scope_(parent) {
  receiver.BeginMemoryWait(*this);
}

StreamMemoryWait::~StreamMemoryWait() {
  if (receiver_ != nullptr) receiver_->EndMemoryWait();
}

Task<absl::StatusOr<bool>> ReadWithPayload(StreamReceiver& receiver, MessageLite& into,
                                           PayloadSink sink) {
  ReceivedPayload payload{.buffer = std::move(*sink.payload)};
  *sink.has_payload = false;
  for (;;) {
    absl::StatusOr<bool> read = co_await StreamRead(receiver, into, &payload);
    if (payload.wanted == 0) {
      if (payload.buffer && !payload.present) payload.buffer.set_size(0);
      sink.Set(std::move(payload.buffer), payload.present);
      co_return read;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitMemory(receiver, payload));
  }
}

StreamReceiver::~StreamReceiver() { Clear(); }

void StreamReceiver::Begin(StreamLink& link, CallId id, StreamBuffers* buffers) {
  VERBENA_CHECK(stream_link_ == nullptr && reader_ == nullptr && first_ == nullptr && !ended_)
      << "a stream begins where an earlier one has not been cleared";
  stream_link_ = &link;
  share_ = link.share();
  buffers_ = buffers;
  id_ = id;
  window_ = ReceiveWindow(kStreamWindowBytes);
  max_message_bytes_ = link.max_message_bytes();
  max_payload_bytes_ = link.max_payload_bytes();
  link.Add(*this);
}

void StreamReceiver::Clear() {
  SetPeerOwes(false);
  if (reader_ != nullptr) {
    StreamRead& read = *std::exchange(reader_, nullptr);
    read.receiver_ = nullptr;
    const StreamRead::State state = read.state_;
    if (state == StreamRead::State::kWaiting || state == StreamRead::State::kNeedsMemory) {
      read.status_ = CancelStatus(absl::StatusCode::kCancelled);
      read.state_ = StreamRead::State::kFailed;
    }
    if (state == StreamRead::State::kWaiting) read.Resume();
  }
  if (memory_wait_ != nullptr) std::exchange(memory_wait_, nullptr)->Forget();
  DropKept();
  EndCounted();
  StopWatch();
  SendWaiter::Unlink();
  IntrusiveNode<LinkedStream>::Unlink();
  IntrusiveNode<UntoldStream>::Unlink();
  stream_link_ = nullptr;
  buffers_ = nullptr;
  part_left_ = 0;
  ended_ = end_told_ = discards_ = false;
  returned_.reset();
  failure_ = absl::OkStatus();
}

absl::Status StreamReceiver::CheckPart(const FrameHeader& frame, Part& part) {
  const bool more = (frame.flags & kFrameMessageApart) != 0;
  part = {frame.body_bytes, 0, StreamPayloadOf(frame), frame.outcome == kCountsInStreamAlone};
  if (part_left_ > 0) {
    part.total = StreamPart::kRest;
    if (frame.argument != 0 || part.payload != 0 || frame.body_bytes == 0 ||
        frame.body_bytes > part_left_ || more != (frame.body_bytes < part_left_)) {
      return absl::InvalidArgumentError(
          fmt::format("a part of {} bytes, the last one: {}, of a message of which {} are missing",
                      frame.body_bytes, !more, part_left_));
    }
    part_left_ -= frame.body_bytes;
    return absl::OkStatus();
  }
  return CheckFirstPart(frame, part);
}

absl::Status StreamReceiver::CheckFirstPart(const FrameHeader& frame, Part& part) {
  const bool more = (frame.flags & kFrameMessageApart) != 0;
  if (!more && frame.argument != 0) {
    return absl::InvalidArgumentError("a message in one part tells of further parts");
  }
  if (more && (frame.body_bytes == 0 || frame.argument <= frame.body_bytes)) {
    return absl::InvalidArgumentError(fmt::format(
        "a message of {} bytes in parts, the first of {} bytes", frame.argument, frame.body_bytes));
  }
  const uint32_t total = more ? frame.argument : frame.body_bytes;
  const uint32_t payload = part.payload_bytes();
  if (payload > total) {
    return absl::InvalidArgumentError(fmt::format(
        "a payload of {} bytes with a message of {}, which include it", payload, total));
  }
  const bool is_beyond = payload > kMaxBufferBytes || total > kMaxBufferBytes + payload;
  if (is_beyond) {
    return absl::InvalidArgumentError(
        fmt::format("a stream's message of {} bytes, its payload of {} included; of each at most "
                    "{} travel",
                    total, payload, kMaxBufferBytes));
  }
  if (!more) return absl::OkStatus();
  part.total = total;
  part_left_ = total - frame.body_bytes;
  return absl::OkStatus();
}

absl::Status StreamReceiver::OnMessage(const FrameHeader& frame, const char* body) {
  if (ended_) return absl::InvalidArgumentError("a message on a stream that its sender has ended");
  if (frame.outcome == kCountsInStreamAlone && !BeginsInOwnWindow(window_.left())) {
    return absl::InvalidArgumentError(
        fmt::format("a message beyond the {} bytes of its stream's window that do not count in "
                    "that of the link: {} bytes are left",
                    kOwnWindowBytes, window_.left()));
  }
  if (!window_.Receive(StreamCost(frame.body_bytes))) {
    return absl::InvalidArgumentError(
        fmt::format("a stream's messages are beyond their window: {} bytes are unread",
                    window_.unread() + StreamCost(frame.body_bytes)));
  }
  Part part;
  VERBENA_RETURN_IF_ERROR(CheckPart(frame, part));
  if (IsRefused(part)) [[unlikely]] {
    if (!discards_ && failure_.ok()) FailHere(Refusal(part));
  }
  if (discards_ || !failure_.ok()) {
    Consume(part);
  } else if (first_ == nullptr && reader_waits() && HasMemoryFor(part, *reader_)) {
    Take(part, body, *reader_);
  } else {
    Keep(part, body);
    if (reader_waits()) EndReader(StreamRead::State::kNeedsMemory);
  }
  return absl::OkStatus();
}

// The peer goes by its own limit and its own .proto, which it need not tell.
bool StreamReceiver::IsRefused(const Part& part) const {
  if (!part.is_first()) return false;
  if (part.payload != 0 && buffers_ == nullptr) return true;
  const uint32_t all = part.total == 0 ? part.bytes : part.total;
  return part.payload_bytes() > max_payload_bytes_ ||
         all > max_message_bytes_ + part.payload_bytes();
}

absl::Status StreamReceiver::Refusal(const Part& part) const {
  if (part.payload != 0 && buffers_ == nullptr) {
    return absl::UnimplementedError(
        fmt::format("the messages of this stream have payloads where they are sent and none where "
                    "they are read; {}",
                    kFitProtos));
  }
  const uint32_t all = part.total == 0 ? part.bytes : part.total;
  return absl::ResourceExhaustedError(fmt::format(
      "a stream's message of {} bytes with a payload of {}; its reader takes at most {} (its "
      "LinkLimits::max_message_bytes) and {} (its LinkLimits::max_payload_bytes): send it in "
      "several messages, or raise these",
      all - part.payload_bytes(), part.payload_bytes(), max_message_bytes_, max_payload_bytes_));
}

bool StreamReceiver::reader_waits() const {
  return reader_ != nullptr && reader_->state_ == StreamRead::State::kWaiting;
}

void StreamReceiver::EndReader(StreamRead::State state) {
  if (!reader_waits()) return;
  SetPeerOwes(false);
  reader_->End(state);
}

void StreamReceiver::SetPeerOwes(bool owes) {
  if (std::exchange(peer_owes_, owes) == owes || stream_link_ == nullptr) return;
  owes ? stream_link_->BeginWait() : stream_link_->EndWait();
}

bool StreamReceiver::HasMemoryFor(const Part& part, StreamRead& read) {
  if (part.payload_bytes() == 0 || !part.is_first()) return true;
  VERBENA_CHECK(read.payload_ != nullptr) << "a Read that takes no payloads";
  ReceivedPayload& payload = *read.payload_;
  if (payload.buffer.capacity() >= part.payload_bytes()) return true;
  payload.buffer.Reset();
  absl::StatusOr<Buffer> memory = buffers_->TryAllocate(part.payload_bytes());
  if (memory.ok()) {
    payload.buffer = *std::move(memory);
    return true;
  }
  payload.wanted = part.payload_bytes();
  return false;
}

void StreamReceiver::Take(const Part& part, const char* bytes, StreamRead& read) {
  if (TakeInto(part, bytes, read) == Taken::kMessage) {
    EndReader(StreamRead::State::kMessage);
  }
}

StreamReceiver::Taken StreamReceiver::TakeInto(const Part& part, const char* bytes,
                                               StreamRead& read) {
  if (part.total == 0) return TakeWhole(part, bytes, read);
  if (part.is_first()) {
    assembly_.Begin(part, part.payload_bytes() > 0 ? std::move(read.payload_->buffer) : Buffer());
  }
  // Bytes that have come count, not those that their sender claims. A payload has its own memory.
  const size_t more = assembly_.MoreRoomFor(part.bytes);
  if (!share_->TryReserve(more)) {
    Consume(part);
    FailHere(share_->Exhausted(more));
    return Taken::kFailed;
  }
  assembly_.Add(bytes, part.bytes);
  Consume(part);
  if (assembly_.complete()) return TakeAssembled(read);
  WatchAssembly();
  return Taken::kPart;
}

StreamReceiver::Taken StreamReceiver::TakeWhole(const Part& part, const char* bytes,
                                                StreamRead& read) {
  const uint32_t own = part.bytes - part.payload_bytes();
  if (part.payload != 0) {
    ReceivedPayload& payload = *read.payload_;
    if (payload.buffer) payload.buffer.set_size(part.payload_bytes());
    if (part.payload_bytes() > 0) {
      std::memcpy(payload.buffer.data(), bytes + own, part.payload_bytes());
    }
    payload.present = true;
  }
  const bool parsed = Parse(bytes, own, read.into_);
  Consume(part);
  return parsed ? Taken::kMessage : Taken::kFailed;
}

StreamReceiver::Taken StreamReceiver::TakeAssembled(StreamRead& read) {
  const bool parsed = Parse(assembly_.message().data(), assembly_.message().size(), read.into_);
  if (parsed && assembly_.has_payload()) {
    read.payload_->buffer = assembly_.TakePayload();
    read.payload_->present = true;
  }
  // Not so if the parse has failed the stream.
  if (assembly_.begun()) {
    VERBENA_DCHECK(counted_ == 0) << counted_ << " bytes of the message before count still";
    counted_ = assembly_.room();
    assembly_.End();
  }
  EndAssembly();
  return parsed ? Taken::kMessage : Taken::kFailed;
}

bool StreamReceiver::Parse(const char* bytes, size_t size, MessageLite& into) {
  if (into.ParseFromArray(bytes, static_cast<int>(size))) {
    if (message_listener_ != nullptr) [[unlikely]]
      message_listener_->OnReceived(into);
    return true;
  }
  FailHere(absl::InvalidArgumentError(
      fmt::format("a stream's message of {} bytes does not parse as {}", size, TypeNameOf(into))));
  return false;
}

void StreamReceiver::EndAssembly() {
  if (!assembly_.begun()) return;
  share_->EndReservation(assembly_.room());
  assembly_.End();
}

void StreamReceiver::EndCounted() {
  if (counted_ > 0) share_->EndReservation(std::exchange(counted_, 0));
}

// The timer runs on when the message is whole, so that few messages start it.
void StreamReceiver::WatchAssembly() {
  if (watch_ != nullptr || ended_ || stream_link_ == nullptr) return;
  watch_ = &stream_link_->scheduler();
  assembly_.MarkProgress();
  watch_->StartTimer(*this, SaturatingAdd(watch_->now(), kMaxLandingWait));
}

void StreamReceiver::StopWatch() {
  if (watch_ != nullptr) std::exchange(watch_, nullptr)->StopTimer(*this);
}

void StreamReceiver::OnTimer() {
  watch_ = nullptr;
  if (!assembly_.begun()) return;
  // Parts that were kept wait for their reader, and so the sender may wait.
  if (first_ == nullptr && !assembly_.HasProgressed(kLeastBytesInTime)) {
    FailHere(absl::DeadlineExceededError(
        fmt::format("a stream's message of {} bytes comes too slowly, or no more: {} bytes have "
                    "come, and within {} s less than {}",
                    assembly_.total(), assembly_.come(),
                    std::chrono::duration_cast<std::chrono::seconds>(kMaxLandingWait).count(),
                    kLeastBytesInTime)));
    return;
  }
  WatchAssembly();
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

StreamReceiver::Taken StreamReceiver::TakeKept(StreamRead& read) {
  while (first_ != nullptr) {
    StreamChunk* const chunk = first_;
    Part part;
    VERBENA_DCHECK(chunk->begin + sizeof(part) <= chunk->end)
        << chunk->begin << " to " << chunk->end << " of " << chunk->capacity;
    const char* from = chunk->data() + chunk->begin;
    std::memcpy(&part, from, sizeof(part));
    if (!HasMemoryFor(part, read)) return Taken::kNeedsMemory;
    chunk->begin += sizeof(part) + part.bytes;
    // Consuming may fail the stream, which drops all chunks but this one.
    const bool is_used_up = chunk->begin == chunk->end;
    if (is_used_up) {
      first_ = chunk->next;
      if (first_ == nullptr) last_ = nullptr;
    }
    const Taken taken = TakeInto(part, from + sizeof(part), read);
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
  if (stream_link_ == nullptr) return;
  window_.Consume(StreamCost(part.bytes));
  if (!part.own) stream_link_->Consume(StreamCost(part.bytes));
  TellIfDue();
}

// While the link's window is used up, the peer goes on as far as the stream's own window reaches.
bool StreamReceiver::MustTell() const {
  if (window_.due()) return true;
  return stream_link_->is_tight() && has_untold();
}

void StreamReceiver::TellIfDue() {
  if (ended_ || SendWaiter::linked() || !stream_link_->link().open()) return;
  if (MustTell()) {
    SendLimit();
  } else if (has_untold() && !IntrusiveNode<UntoldStream>::linked()) {
    stream_link_->AddUntold(*this);
  }
}

void StreamReceiver::SendLimit() {
  Link& link = stream_link_->link();
  if (link.Append(StreamWindowFrame(id_, window_.next_limit()), 0) == nullptr) {
    link.AwaitWritable(*this);
  } else {
    window_.Move();
    IntrusiveNode<UntoldStream>::Unlink();
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
  if (memory_wait_ != nullptr) memory_wait_->EndEarly();
  DropKept();
  if (reader_waits()) reader_->status_ = failure_;
  EndReader(StreamRead::State::kFailed);
}

void StreamReceiver::FailHere(const absl::Status& status) {
  Fail(status);
  listener_.OnReceiveFailed(status);
}

void StreamReceiver::Discard() {
  discards_ = true;
  if (memory_wait_ != nullptr) memory_wait_->EndEarly();
  returned_.reset();
  EndCounted();
  DropKept();
}

void StreamReceiver::OnStreamLinkLost() {
  StopWatch();
  stream_link_ = nullptr;
  SendWaiter::Unlink();
  IntrusiveNode<UntoldStream>::Unlink();
  // A Read that no cancellation reaches would wait for ever.
  if (!ended_) {
    Fail(absl::UnavailableError("the link was lost"));
  }
}

}  // namespace verbena::internal
