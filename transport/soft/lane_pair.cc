#include "verbena/transport/soft/lane_pair.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <utility>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane_pairs.h"

namespace verbena::internal::soft {
namespace {

// Returns the end of the chunk whose lines begin at `from`. A payload that is received at its place
// goes there by fewer system calls if one chunk has all of it.
uint64_t EndOfChunk(const RingWriter& ring, const LentPayloads& lent, uint64_t from) {
  const uint64_t to = std::min(ring.EndOfRun(from), from + TcpChunk::kMaxLines);
  return lent.empty() ? to : lent.WholeMessages(from, to);
}

constexpr uint64_t BytesAt(uint64_t position) { return position * kLineBytes; }

}  // namespace

LanePair::LanePair(UniqueFd socket, std::shared_ptr<Peer> peer, uint64_t remote_cq,
                   std::shared_ptr<LaneMemory> out, std::shared_ptr<LaneMemory> in)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      remote_cq_(remote_cq),
      out_(std::move(out)),
      in_(std::move(in)),
      lent_requests_(out_->requests(), out_->geometry().request_lines),
      lent_answers_(in_->answers(), in_->geometry().answer_lines),
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
  if (!over_ && !closed() && !blocked_) SendChunks();
  if (!lent_requests_.empty() || !lent_answers_.empty()) SettleLoans();
}

void LanePair::SendChunks() {
  while (!outgoing_.empty() || BeginChunk()) {
    iovec parts[1 + 2 * LentPayloads::kMaxParts];
    parts[0] = {.iov_base = outgoing_.header.data() + outgoing_.header_sent,
                .iov_len = outgoing_.header.size() - outgoing_.header_sent};
    size_t count = parts[0].iov_len != 0 ? 1 : 0;
    const std::span<iovec> all(parts);
    count +=
        lent_requests_.Describe(outgoing_.requests.from, outgoing_.requests.to, all.subspan(count));
    count +=
        lent_answers_.Describe(outgoing_.answers.from, outgoing_.answers.to, all.subspan(count));
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
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
  Range& requests = outgoing_.requests;
  Range& answers = outgoing_.answers;
  requests = {.from = BytesAt(requests_sent_), .to = BytesAt(requests_sent_)};
  answers = {.from = BytesAt(answers_sent_), .to = BytesAt(answers_sent_)};
  if (out_lane_ != nullptr && !out_lane_->failed()) {
    const RingWriter& ring = out_lane_->requests();
    const uint64_t from = requests_sent_;
    const uint64_t to = EndOfChunk(ring, lent_requests_, from);
    if (ring.position() != from) {
      requests.to = BytesAt(to);
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
    const uint64_t to = EndOfChunk(ring, lent_answers_, from);
    if (ring.position() != from) {
      answers.to = BytesAt(to);
      chunk.answer_lines = static_cast<uint32_t>(to - from);
      const bool pad = ring.IsPad(to);
      if (pad) chunk.flags |= TcpChunk::kAnswerPad;
      answers_sent_ = pad ? ring.NextStart(to) : to;
    }
    // Refusals come before the progress that they take back: they are in this chunk, or in earlier
    // ones, unless this one was cut short.
    if (answers_sent_ == ring.position()) {
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
  outgoing_.header_sent = 0;
  return true;
}

void LanePair::Range::Drop(size_t& bytes) {
  const size_t dropped = std::min<size_t>(bytes, this->bytes());
  from += dropped;
  bytes -= dropped;
}

void LanePair::Took(size_t bytes) {
  const size_t of_header = std::min(bytes, outgoing_.header.size() - outgoing_.header_sent);
  outgoing_.header_sent += of_header;
  bytes -= of_header;
  outgoing_.requests.Drop(bytes);
  outgoing_.answers.Drop(bytes);
}

void LanePair::SettleLoans() {
  // All bytes before the rest of the last chunk are sent, and none behind it.
  const LentPayloads::Settlement requests = lent_requests_.Settle(outgoing_.requests.from);
  const LentPayloads::Settlement answers = lent_answers_.Settle(outgoing_.answers.from);
  if (owner_ == nullptr) return;
  CopyCounters& copied = owner_->cq().copied();
  copied.Add(CopyWay::kSent, requests.sent + answers.sent);
  copied.Add(CopyWay::kRing, requests.copied + answers.copied);
}

}  // namespace verbena::internal::soft
