#include "verbena/transport/soft/lane_pair.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "verbena/transport/log/mutant.h"
#include "verbena/transport/soft/lane_pairs.h"

namespace verbena::internal::soft {
namespace {

iovec LinesAt(RingLine* lines, uint32_t count, uint64_t from, uint64_t to) {
  return {.iov_base = lines + (from & (count - 1)), .iov_len = (to - from) * kLineBytes};
}

// `now` may have risen since `before`, but not beyond `bound`.
bool IsProgress(uint64_t before, uint64_t now, uint64_t bound) {
  return now - before <= bound - before || VERBENA_MUTANT(kTcpProgressUnchecked);
}

}  // namespace

LanePair::LanePair(UniqueFd socket, std::shared_ptr<Peer> peer, uint64_t remote_cq,
                   std::shared_ptr<LaneMemory> out, std::shared_ptr<LaneMemory> in)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      remote_cq_(remote_cq),
      out_(std::move(out)),
      in_(std::move(in)),
      requests_(in_->requests(), in_->geometry().request_lines),
      answers_(out_->answers(), out_->geometry().answer_lines) {}

void LanePair::set_out_lane(OutLane* lane) {
  out_lane_ = lane;
  if (lane == nullptr) End("its lane has failed");
}

void LanePair::set_in_lane(InLane* lane) {
  in_lane_ = lane;
  if (lane == nullptr) End("its lane has failed");
}

void LanePair::End(const char* reason) {
  if (over_) return;
  over_ = true;
  reason_ = reason;
  Touch();
}

void LanePair::Touch() {
  if (touched_ || owner_ == nullptr) return;
  touched_ = true;
  owner_->AddTouched(*this);
}

void LanePair::OnAnswersTaken() {
  const uint64_t taken = out_->header().answers_consumed.load(std::memory_order_relaxed);
  if (taken - told_answers_consumed_ > out_->geometry().answer_lines / 4) Touch();
}

void LanePair::Send() {
  if (over_ || closed() || blocked_) return;
  while (outgoing_.left != 0 || BeginChunk()) {
    msghdr message{};
    message.msg_iov = outgoing_.parts;
    message.msg_iovlen = std::size(outgoing_.parts);
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      Took(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      blocked_ = true;
      if (owner_ != nullptr) owner_->WatchWritable(*this, true);
      return;
    } else if (errno != EINTR) {
      End("sending failed");
      return;
    }
  }
}

bool LanePair::BeginChunk() {
  TcpChunk chunk;
  iovec requests{};
  iovec answers{};
  if (out_lane_ != nullptr && !out_lane_->failed()) {
    const RingWriter& ring = out_lane_->requests();
    const uint64_t from = requests_sent_;
    const uint64_t to = std::min(ring.EndOfRun(from), from + TcpChunk::kMaxLines);
    if (ring.position() != from) {
      requests = LinesAt(out_->requests(), ring.count(), from, to);
      chunk.request_lines = static_cast<uint32_t>(to - from);
      const bool pad = ring.IsPad(to);
      if (pad) chunk.flags |= TcpChunk::kRequestPad;
      requests_sent_ = pad ? ring.NextStart(to) : to;
    }
  }
  if (in_lane_ != nullptr && !in_lane_->broken()) {
    if (in_lane_->progress_due()) in_lane_->PublishProgress();
    const RingWriter& ring = in_lane_->answers();
    const uint64_t from = answers_sent_;
    const uint64_t to = std::min(ring.EndOfRun(from), from + TcpChunk::kMaxLines);
    if (ring.position() != from) {
      answers = LinesAt(in_->answers(), ring.count(), from, to);
      chunk.answer_lines = static_cast<uint32_t>(to - from);
      const bool pad = ring.IsPad(to);
      if (pad) chunk.flags |= TcpChunk::kAnswerPad;
      answers_sent_ = pad ? ring.NextStart(to) : to;
    }
    // Refusals come before the progress that they take back: they are in this chunk, or in earlier
    // ones, unless this one was cut short.
    if (answers_sent_ == ring.position() || VERBENA_MUTANT(kProgressBeforeRefusal)) {
      told_consumed_ = in_->header().consumed.load(std::memory_order_relaxed);
    }
  }
  const uint64_t taken = out_->header().answers_consumed.load(std::memory_order_relaxed);
  chunk.consumed = told_consumed_;
  chunk.answers_consumed = taken;
  const bool empty = chunk.request_lines == 0 && chunk.answer_lines == 0 && chunk.flags == 0;
  if (empty && sent_consumed_ == told_consumed_ && told_answers_consumed_ == taken) return false;
  sent_consumed_ = told_consumed_;
  told_answers_consumed_ = taken;
  outgoing_.header = Encode(chunk);
  outgoing_.parts[0] = {.iov_base = outgoing_.header.data(), .iov_len = outgoing_.header.size()};
  outgoing_.parts[1] = requests;
  outgoing_.parts[2] = answers;
  outgoing_.left = outgoing_.header.size() + requests.iov_len + answers.iov_len;
  return true;
}

void LanePair::Took(size_t bytes) {
  outgoing_.left -= bytes;
  for (iovec& part : outgoing_.parts) {
    const size_t taken = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
    part.iov_len -= taken;
    bytes -= taken;
  }
}

bool LanePair::Receive(std::span<std::byte> staging, bool& some) {
  some = false;
  if (over_) return false;
  iovec parts[3];
  size_t count = 0;
  size_t announced = 0;
  // Lines that are announced go straight to their place.
  for (RingIntake* ring : {&requests_, &answers_}) {
    const std::span<std::byte> rest = ring->Rest();
    if (!rest.empty()) parts[count++] = {.iov_base = rest.data(), .iov_len = rest.size()};
    announced += rest.size();
  }
  // In a stream of large chunks no more than the next header, so that its lines go there, too.
  if (announced > staging.size()) staging = staging.first(TcpChunk::kBytes);
  parts[count++] = {.iov_base = staging.data(), .iov_len = staging.size()};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (received <= 0) {
    End(received == 0 ? "the peer closed it" : "it was reset");
    return false;
  }
  some = true;
  auto left = static_cast<size_t>(received);
  for (RingIntake* ring : {&requests_, &answers_}) {
    const size_t bytes = std::min(left, ring->Rest().size());
    ring->Add(bytes);
    left -= bytes;
  }
  const bool complete = requests_.Rest().empty() && answers_.Rest().empty();
  if ((header_bytes_ == header_.size() && complete && !EndArrival()) ||
      !Parse(staging.first(left)) || !ShowArrived()) {
    End("the peer sent nonsense");
    return false;
  }
  return true;
}

bool LanePair::Parse(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t taken;
    if (header_bytes_ != header_.size()) {
      taken = std::min(bytes.size(), header_.size() - header_bytes_);
      std::memcpy(header_.data() + header_bytes_, bytes.data(), taken);
      header_bytes_ += taken;
      if (header_bytes_ == header_.size() && !BeginArrival()) return false;
    } else {
      RingIntake& ring = requests_.Rest().empty() ? answers_ : requests_;
      const std::span<std::byte> rest = ring.Rest();
      taken = std::min(bytes.size(), rest.size());
      std::memcpy(rest.data(), bytes.data(), taken);
      ring.Add(taken);
    }
    bytes = bytes.subspan(taken);
    if (header_bytes_ == header_.size() && requests_.Rest().empty() && answers_.Rest().empty() &&
        !EndArrival()) {
      return false;
    }
  }
  return true;
}

bool LanePair::BeginArrival() {
  if (!ParseChunk(header_, arriving_)) return false;
  const bool requests = arriving_.request_lines != 0 || (arriving_.flags & TcpChunk::kRequestPad);
  const bool answers = arriving_.answer_lines != 0 || (arriving_.flags & TcpChunk::kAnswerPad);
  // Nobody answers what was not asked.
  if (requests && in_lane_ == nullptr) return false;
  if (answers && out_lane_ == nullptr) return VERBENA_MUTANT(kUnaskedAnswersTaken);
  if (requests && !requests_.Begin(arriving_.request_lines, in_lane_->requests().position())) {
    return false;
  }
  if (answers && !answers_.Begin(arriving_.answer_lines, out_lane_->answers_position())) {
    return false;
  }
  return IsProgress(out_->header().consumed.load(std::memory_order_relaxed), arriving_.consumed,
                    requests_sent_) &&
         IsProgress(in_->header().answers_consumed.load(std::memory_order_relaxed),
                    arriving_.answers_consumed, answers_sent_);
}

bool LanePair::EndArrival() {
  header_bytes_ = 0;
  if (!ShowArrived()) return false;
  if ((arriving_.flags & TcpChunk::kRequestPad) != 0 &&
      !requests_.Pad(in_lane_->requests().position())) {
    return false;
  }
  if ((arriving_.flags & TcpChunk::kAnswerPad) != 0 &&
      !answers_.Pad(out_lane_->answers_position())) {
    return false;
  }
  out_->header().consumed.store(arriving_.consumed, std::memory_order_release);
  in_->header().answers_consumed.store(arriving_.answers_consumed, std::memory_order_release);
  return true;
}

bool LanePair::ShowArrived() {
  if (!requests_.Show() || !answers_.Show()) return false;
  out_->header().answered.store(answers_.messages(), std::memory_order_release);
  return true;
}

}  // namespace verbena::internal::soft
