#include "verbena/rpc/stream/sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

// The payload of a message as its first frame tells of it.
uint32_t Told(const BorrowedPayload& payload) {
  return payload.present ? static_cast<uint32_t>(payload.bytes()) + 1 : 0;
}

// `to` is where the message ends.
void CopyPayload(const BorrowedPayload& payload, char* to) {
  if (payload.bytes() > 0) std::memcpy(to, payload.view.data(), payload.bytes());
}

}  // namespace

StreamSender::~StreamSender() { Clear(); }

void StreamSender::Begin(StreamLink& link, CallId id, const char* method) {
  VERBENA_CHECK(stream_link_ == nullptr && !closed_ && !end_wanted_)
      << "a stream of " << method << " begins where one of " << method_ << " has not been cleared";
  stream_link_ = &link;
  share_ = link.share();
  id_ = id;
  method_ = method;
  window_ = SendWindow(kStreamWindowBytes);
  max_message_bytes_ = link.max_message_bytes();
  max_payload_bytes_ = link.max_payload_bytes();
  link.Add(*this);
}

void StreamSender::Clear() {
  Close(CancelStatus(absl::StatusCode::kCancelled));
  IntrusiveNode<LinkedStream>::Unlink();
  stream_link_ = nullptr;
  end_wanted_ = end_sent_ = closed_ = cut_short_ = false;
  reason_ = absl::OkStatus();
  lost_ = absl::OkStatus();
}

void StreamSender::Close(absl::Status reason) {
  if (closed_) return;
  closed_ = true;
  reason_ = std::move(reason);
  cut_short_ = in_message();
  StopWaiting();
  writer_in_parts_ = false;
  DropParts();
  if (writer_ != nullptr) EndWriter(reason_);
}

void StreamSender::SetWait(Wait wait) {
  const Wait before = std::exchange(wait_, wait);
  if (before == wait || stream_link_ == nullptr) return;
  if (before == Wait::kNone) stream_link_->BeginWait();
  if (before == Wait::kRoom) stream_link_->EndRoomWait();
  if (wait == Wait::kNone) stream_link_->EndWait();
  if (wait == Wait::kRoom) stream_link_->BeginRoomWait();
}

void StreamSender::StopWaiting() {
  SendWaiter::Unlink();
  IntrusiveNode<LinkWindowWaiter>::Unlink();
  GiveBackReserved();
  SetWait(Wait::kNone);
  if (stream_link_ != nullptr) stream_link_->WakeSenders();
}

void StreamSender::GiveBackReserved() {
  const uint32_t reserved = std::exchange(reserved_, 0);
  if (stream_link_ == nullptr || reserved == 0) return;
  window_.GiveBack(reserved);
  if (reserved_in_ == kCountsInLink) stream_link_->GiveBack(reserved);
}

uint32_t StreamSender::max_part_bytes() const {
  return static_cast<uint32_t>(
      std::min<size_t>(stream_link_->link().max_body_bytes(), kMaxStreamPartBytes));
}

char* StreamSender::Reserve(FrameHeader frame, uint32_t bytes) {
  VERBENA_DCHECK(reserved_ == 0 && wait_ == Wait::kNone)
      << "a frame of " << reserved_ << " bytes waits already, as " << wait_;
  const uint32_t cost = StreamCost(bytes);
  if (window_.available() < cost) {
    cost_wanted = cost;
    SetWait(Wait::kWindow);
    return nullptr;
  }
  const bool is_own = BeginsInOwnWindow(window_.available());
  if (!is_own && !stream_link_->TryTake(cost)) {
    cost_wanted = cost;
    SetWait(Wait::kLinkWindow);
    stream_link_->Await(*this);
    return nullptr;
  }
  window_.Take(cost);
  frame.outcome = is_own ? kCountsInStreamAlone : kCountsInLink;
  char* body = stream_link_->link().Append(frame, bytes);
  if (body == nullptr) {
    reserved_ = cost;
    reserved_in_ = frame.outcome;
    body_bytes = bytes;
    SetWait(Wait::kRoom);
    stream_link_->link().AwaitWritable(*this);
  }
  return body;
}

void StreamSender::Advance() {
  SetWait(Wait::kNone);
  while (stream_link_ != nullptr && stream_link_->link().open() && !closed_) {
    if (in_message()) {
      if (!SendPart()) return;
    } else if (writer_ != nullptr) {
      if (!SendMessage()) return;
    } else if (end_wanted_ && !end_sent_) {
      if (stream_link_->link().Append(StreamEndFrame(id_), 0) == nullptr) {
        body_bytes = 0;
        SetWait(Wait::kRoom);
        stream_link_->link().AwaitWritable(*this);
        return;
      }
      end_sent_ = true;
    } else {
      return;
    }
  }
}

void StreamSender::Serialize(char* to) {
  const MessageLite& message = writer_->message_;
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(to));
  if (message_listener_ != nullptr) [[unlikely]]
    message_listener_->OnSent(message);
}

absl::Status StreamSender::TooLarge(size_t bytes, size_t payload_bytes) const {
  return absl::ResourceExhaustedError(fmt::format(
      "a message of {} bytes with a payload of {} on the stream of {}; at most {} "
      "(LinkLimits::max_message_bytes) and {} (LinkLimits::max_payload_bytes) travel: send it in "
      "several messages, or raise these on both sides",
      bytes, payload_bytes, method_, max_message_bytes_, max_payload_bytes_));
}

bool StreamSender::SendMessage() {
  const MessageLite& message = writer_->message_;
  const BorrowedPayload& payload = writer_->payload_;
  const size_t bytes = message.ByteSizeLong();
  if (bytes > max_message_bytes_ || payload.bytes() > max_payload_bytes_) [[unlikely]] {
    EndWriter(TooLarge(bytes, payload.bytes()));
    return true;
  }
  if (bytes + payload.bytes() <= max_part_bytes()) {
    char* body = Reserve(StreamMessageFrame(id_, Told(payload)),
                         static_cast<uint32_t>(bytes + payload.bytes()));
    if (body == nullptr) return false;
    Serialize(body);
    CopyPayload(payload, body + bytes);
    EndWriter(absl::OkStatus());
    return true;
  }
  if (!share_->TryReserve(bytes)) {
    EndWriter(share_->Exhausted(bytes));
    return true;
  }
  parts_counted_ = bytes;
  parts_.resize(bytes);
  Serialize(parts_.data());
  BeginParts(payload);
  writer_in_parts_ = true;
  return true;
}

void StreamSender::BeginParts(const BorrowedPayload& payload) {
  tail_ = payload.view;
  parts_base_ = 0;
  parts_total_ = static_cast<uint32_t>(parts_.size() + payload.bytes());
  parts_payload_ = Told(payload);
  parts_sent_ = 0;
}

uint32_t StreamSender::next_part_bytes() const {
  return std::min(parts_total_ - parts_sent_, max_part_bytes());
}

FrameHeader StreamSender::PartFrame(uint32_t bytes) const {
  FrameHeader frame = StreamMessageFrame(id_, parts_sent_ == 0 ? parts_payload_ : 0);
  if (parts_sent_ + bytes < parts_total_) {
    frame.flags = kFrameMessageApart;
    if (parts_sent_ == 0) frame.argument = parts_total_;
  }
  return frame;
}

bool StreamSender::SendPart() {
  const uint32_t bytes = next_part_bytes();
  char* body = Reserve(PartFrame(bytes), bytes);
  if (body == nullptr) return false;
  CopyPart(body, bytes);
  return true;
}

void StreamSender::CopyPart(char* body, uint32_t bytes) {
  VERBENA_DCHECK(bytes <= parts_total_ - parts_sent_)
      << bytes << " bytes behind " << parts_sent_ << " of " << parts_total_;
  const size_t from = parts_sent_ - parts_base_;
  const size_t own = from < parts_.size() ? parts_.copy(body, bytes, from) : 0;
  if (own < bytes) {
    std::memcpy(body + own, tail_.data() + (from + own - parts_.size()), bytes - own);
  }
  parts_sent_ += bytes;
  if (parts_sent_ == parts_total_) EndParts();
}

void StreamSender::DropParts() {
  EmptyAndKeepLittle(parts_);
  tail_ = {};
  parts_total_ = 0;
  if (parts_counted_ > 0) share_->EndReservation(std::exchange(parts_counted_, 0));
}

void StreamSender::KeepUnsent() {
  if (parts_sent_ == 0) {
    DropParts();
    return;
  }
  const size_t unsent = parts_total_ - parts_sent_;
  const size_t more = unsent - std::min(unsent, parts_counted_);
  if (more > 0 && !share_->TryReserve(more)) {
    Close(share_->Exhausted(more));
    return;
  }
  if (unsent < parts_counted_) share_->EndReservation(parts_counted_ - unsent);
  parts_counted_ = unsent;
  const size_t left = std::min<size_t>(parts_sent_, parts_.size());
  const size_t tail_left = parts_sent_ - left;
  std::string rest;
  rest.reserve(unsent);
  rest.append(parts_, left);
  rest.append(tail_.data() + tail_left, tail_.size() - tail_left);
  parts_ = std::move(rest);
  parts_base_ = parts_sent_;
  tail_ = {};
}

void StreamSender::EndParts() {
  DropParts();
  if (std::exchange(writer_in_parts_, false)) EndWriter(absl::OkStatus());
}

void StreamSender::OnWritable(Link& link) {
  VERBENA_DCHECK(wait_ == Wait::kRoom) << "wait " << wait_;
  const auto bytes = static_cast<uint32_t>(body_bytes);
  if (reserved_ == 0) {
    VERBENA_DCHECK(end_wanted_ && !end_sent_) << "nothing waited for room";
    link.Append(StreamEndFrame(id_), 0);
    end_sent_ = true;
  } else if (in_message()) {
    FrameHeader frame = PartFrame(bytes);
    frame.outcome = reserved_in_;
    reserved_ = 0;
    CopyPart(link.Append(frame, bytes), bytes);
  } else if (writer_->message_.ByteSizeLong() + writer_->payload_.bytes() != bytes) {
    // Whoever writes may still reach the message while it waits.
    StopWaiting();
    EndWriter(absl::FailedPreconditionError(
        fmt::format("a message on the stream of {} had {} bytes when its Write began, and has {} "
                    "now: it must not change before the Write has ended",
                    method_, bytes - writer_->payload_.bytes(), writer_->message_.ByteSizeLong())));
  } else {
    const BorrowedPayload& payload = writer_->payload_;
    FrameHeader frame = StreamMessageFrame(id_, Told(payload));
    frame.outcome = reserved_in_;
    reserved_ = 0;
    char* body = link.Append(frame, bytes);
    Serialize(body);
    CopyPayload(payload, body + (bytes - payload.bytes()));
    EndWriter(absl::OkStatus());
  }
  Advance();
}

void StreamSender::OnLinkWindow() {
  VERBENA_DCHECK(wait_ == Wait::kLinkWindow) << "wait " << wait_;
  Advance();
}

absl::Status StreamSender::OnWindow(const FrameHeader& frame) {
  if (frame.body_bytes != 0) return absl::InvalidArgumentError("a window frame has a body");
  VERBENA_RETURN_IF_ERROR(window_.Open(frame.argument));
  // A window that opens by a byte at a time costs no look at the message.
  if (wait_ == Wait::kWindow && window_.available() >= cost_wanted) Advance();
  // The stream's own window may have opened while that of the link is used up.
  if (wait_ == Wait::kLinkWindow && BeginsInOwnWindow(window_.available())) {
    StopWaiting();
    Advance();
  }
  return absl::OkStatus();
}

void StreamSender::OnStreamLinkLost() {
  SendWaiter::Unlink();
  IntrusiveNode<LinkWindowWaiter>::Unlink();
  reserved_ = 0;
  wait_ = Wait::kNone;
  stream_link_ = nullptr;
  Close(absl::UnavailableError("the link was lost"));
}

void StreamSender::SendSerialized(std::string message) {
  VERBENA_CHECK(!in_message() && writer_ == nullptr && !end_wanted_) << method_;
  parts_ = std::move(message);
  BeginParts({});
  Advance();
}

void StreamSender::SendEnd() {
  lost_ = absl::OkStatus();
  if (std::exchange(end_wanted_, true)) return;
  if (wait_ == Wait::kNone) Advance();
}

void StreamSender::NoteLost(const absl::Status& status) {
  if (closed_ || !lost_.ok()) return;
  lost_ = status;
}

void StreamSender::EndWriter(absl::Status status) {
  VERBENA_DCHECK(writer_ != nullptr) << "a Write of " << method_ << " ends twice";
  if (!status.ok()) NoteLost(status);
  std::exchange(writer_, nullptr)->End(std::move(status));
}

bool StreamSender::Start(StreamWrite& write) {
  VERBENA_CHECK(writer_ == nullptr) << "two Writes of one stream of " << method_ << " at once";
  if (closed_ || end_wanted_) {
    write.status_ = closed_ ? reason_
                            : absl::FailedPreconditionError(fmt::format(
                                  "a Write on the stream of {} after WritesDone()", method_));
    NoteLost(write.status_);
    return false;
  }
  writer_ = &write;
  if (wait_ == Wait::kNone) Advance();
  return writer_ != nullptr;
}

void StreamSender::Leave(StreamWrite& write) {
  if (writer_ != &write) return;
  writer_ = nullptr;
  NoteLost(write.status_.ok() ? CancelStatus(absl::StatusCode::kCancelled) : write.status_);
  if (std::exchange(writer_in_parts_, false)) KeepUnsent();
  if (!in_message()) StopWaiting();
  // WritesDone() may have been called meanwhile.
  if (wait_ == Wait::kNone) Advance();
}

StreamWrite::~StreamWrite() {
  // The sender may be gone if this was never awaited.
  if (suspended_) sender_->Leave(*this);
}

bool StreamWrite::Await(PromiseBase& caller) {
  if (Cancelled(caller)) {
    status_ = cancel_status();
    std::exchange(sender_, nullptr)->NoteLost(status_);
    return false;
  }
  if (!sender_->Start(*this)) {
    sender_ = nullptr;
    return false;
  }
  Suspend(caller);
  suspended_ = true;
  return true;
}

void StreamWrite::End(absl::Status status) {
  status_ = std::move(status);
  if (!std::exchange(suspended_, false)) return;
  sender_ = nullptr;
  Resume();
}

void StreamWrite::Detach() {
  status_ = cancel_status();
  suspended_ = false;
  std::exchange(sender_, nullptr)->Leave(*this);
}

}  // namespace verbena::internal
