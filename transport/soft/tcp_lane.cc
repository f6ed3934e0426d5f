#include "verbena/transport/soft/tcp_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/completions.h"

namespace verbena::internal::soft {
namespace {

// Returns the end of the chunk whose lines begin at `from`. A payload that is received at its place
// goes there by fewer system calls if one chunk has all of it.
uint64_t EndOfChunk(const RingWriter& ring, const LentPayloads& lent, uint64_t from) {
  const uint64_t to = std::min(ring.EndOfRun(from), from + TcpChunk::kMaxLines);
  return lent.empty() ? to : lent.WholeMessages(from, to);
}

constexpr uint64_t BytesAt(uint64_t position) { return position * kLineBytes; }

// One turn receives this much in the middle of large messages, but no more than half a ring. Then
// it is time to execute them, and to tell the peer, which can send the other half meanwhile.
// (start)
constexpr size_t kBytesPerTurn = 256u << 10;
// Lines that are received at once while small messages are likely: all of a large message's that
// are among them pass through the ring. (start)
constexpr size_t kUnplacedBytes = 16384;
// A chunk this large is likely to hold large messages, and to be followed by others, with a few
// small ones between. (start)
constexpr uint32_t kLargeChunkLines = 128;
constexpr uint32_t kSmallChunksBetween = 4;
// The header of the next chunk, and its first line, which says whether its message has a place.
constexpr size_t kNextHead = TcpChunk::kBytes + kLineBytes;

// `now` may have risen since `before`, but not beyond `bound`.
bool IsProgress(uint64_t before, uint64_t now, uint64_t bound) {
  return now - before <= bound - before;
}

// Beyond this many connections one epoll_wait is cheaper than a recvmsg for each. (start)
constexpr size_t kLookedAt = 4;
// Connections that one turn serves; others that are ready come next.
constexpr int kEventsPerTurn = 32;
// Connections of one source that are entries of the CQ's epoll themselves. (start)
constexpr size_t kUncrowded = 8;
// Marks the address of a Source among the events of that epoll.
constexpr uint64_t kCrowdTag = 1;
// Bytes that one recvmsg takes beyond the lines that were announced.
constexpr size_t kStagingBytes = 16384;

// A peer can have it written as often as it likes.
void LogClosed(const LanePair& pair) {
  static ThrottledLog& log = *new ThrottledLog(LogComponent::kDevice, {});
  VERBENA_LOG_THROTTLED(log, kInfo, Clock::Real().Now(),
                        fmt::format("soft device: a connection to {} is closed: {}",
                                    AddressText(pair.peer()->address()), pair.reason()),
                        {{"peer", AddressText(pair.peer()->address())}});
}

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
  // Nobody may look at the CQ, and the socket does not tell of every end.
  if (owner_ != nullptr && owner_->cq().unpolled()) owner_->cq().WakeEngine();
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
  if (requests.lost || answers.lost) End("memory that was to be sent is not mapped any more");
  if (owner_ == nullptr) return;
  CopyCounters& copied = owner_->cq().copied();
  copied.Add(CopyWay::kSent, requests.sent + answers.sent);
  copied.Add(CopyWay::kRing, requests.copied + answers.copied);
}

// LanePair: how it takes what arrives.

bool LanePair::Receive(std::span<std::byte> staging, bool& some) {
  some = false;
  if (over_) return false;
  const size_t half_a_ring = size_t{arriving_ring().count()} * kLineBytes / 2;
  const size_t most = std::min(kBytesPerTurn, half_a_ring);
  for (size_t turn = 0; turn < most;) {
    Incoming incoming;
    if (!PlanReceive(staging, turn == 0, incoming)) return true;
    msghdr message{};
    message.msg_iov = incoming.parts.data();
    message.msg_iovlen = incoming.count;
    const ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (received <= 0) {
      End(received == 0     ? "the peer closed it"
          : errno == EFAULT ? "memory that arriving bytes belong in is not mapped any more"
                            : "it was reset");
      return false;
    }
    some = true;
    if (!TakeReceived(staging, incoming, static_cast<size_t>(received))) {
      End("the peer sent nonsense");
      return false;
    }
    turn += static_cast<size_t>(received);
    // Only in the middle of a chunk something is sure to follow.
    if (static_cast<size_t>(received) < incoming.bytes || !Announced()) return true;
  }
  return true;
}

// Lines that are announced go to the ring, or to the places of their messages. What follows them is
// not known yet, and goes through staging.
bool LanePair::PlanReceive(std::span<std::byte> staging, bool first, Incoming& incoming) {
  const bool announced = Announced();
  if (announced && !PlanLines(first, incoming)) return false;
  if (incoming.ring_bytes < arriving_ring().Rest().size()) return true;
  if (announced && &arriving_ring() == &requests_) {
    const std::span<std::byte> rest = answers_.Rest();
    // A large message among them may have a place.
    incoming.answer_bytes = rest.size() < kUnplacedBytes ? rest.size() : kLineBytes;
    if (!rest.empty()) incoming.Add(rest.first(incoming.answer_bytes));
    if (incoming.answer_bytes < rest.size()) return true;
  }
  // In a stream of large chunks no more than the next head, so that its lines go to their place.
  const bool large = expects_large_ != 0 || incoming.bytes > kUnplacedBytes;
  incoming.Add(large ? staging.first(kNextHead) : staging);
  return true;
}

bool LanePair::PlanLines(bool first, Incoming& incoming) {
  RingIntake& ring = arriving_ring();
  const std::span<std::byte> rest = ring.Rest();
  incoming.ring_bytes = rest.size();
  if (rest.size() >= Places::kLeastBytes) {
    RingIntake::Incomplete message;
    const bool known = ring.FindIncomplete(message);
    if (known && message.header.length - message.arrived >= Places::kLeastBytes) {
      return PlanLargeMessage(ring, message, first, incoming);
    }
    // Large messages come one after the other, and so do small ones.
    const bool large = (known ? message.header.length : ring.last_bytes()) >= Places::kLeastBytes;
    const size_t next_head = known ? message.missing + kLineBytes : ring.ToHead();
    incoming.ring_bytes = std::min(rest.size(), large ? next_head : kUnplacedBytes);
  }
  incoming.Add(rest.first(incoming.ring_bytes));
  return true;
}

bool LanePair::PlanLargeMessage(RingIntake& ring, const RingIntake::Incomplete& message, bool first,
                                Incoming& incoming) {
  const std::span<std::byte> rest = ring.Rest();
  const uint32_t missing = message.header.length - message.arrived;
  // Up to the head of the next message, which may have a place, too.
  incoming.ring_bytes = std::min<size_t>(rest.size(), message.missing + kLineBytes);
  const bool request = &ring == &requests_;
  PlacedFragments& placed = request ? placed_requests_ : placed_answers_;
  PlacedBytes* const before = placed.Find(message.position);
  Place place;
  if (before == nullptr && placed.full()) {
    place.later = true;
  } else if (before == nullptr || (before->end() == message.arrived && !before->withdrawn)) {
    const auto most = static_cast<uint32_t>(std::min<size_t>(missing, rest.size()));
    place = request ? places_.OfRequest(*in_lane_, owner_->cq(), message, ring.messages(), most)
                    : places_.OfAnswer(*out_lane_, message, ring.messages(), most);
    if (place.bytes == 0 && !place.later && before != nullptr) before->withdrawn = true;
  }
  if (place.later && !first) return false;
  for (const iovec& part : std::span(place.parts).first(place.count)) {
    incoming.Add({static_cast<std::byte*>(part.iov_base), part.iov_len});
  }
  incoming.placed = place.bytes;
  incoming.position = message.position;
  incoming.arrived = message.arrived;
  if (place.bytes != 0 && place.bytes != missing) incoming.ring_bytes = place.bytes;
  const size_t in_ring = incoming.ring_bytes - place.bytes;
  if (in_ring != 0) incoming.Add(rest.subspan(place.bytes, in_ring));
  return true;
}

bool LanePair::TakeReceived(std::span<const std::byte> staging, const Incoming& incoming,
                            size_t bytes) {
  RingIntake& ring = arriving_ring();
  const bool request = &ring == &requests_;
  const size_t of_ring = std::min(bytes, incoming.ring_bytes);
  ring.Add(of_ring);
  if (const size_t in_place = std::min(of_ring, incoming.placed); in_place != 0) {
    PlacedFragments& placed = request ? placed_requests_ : placed_answers_;
    placed.Add(incoming.position, incoming.arrived, static_cast<uint32_t>(in_place));
    owner_->cq().copied().Add(CopyWay::kPlaced, in_place);
  }
  bytes -= of_ring;
  const size_t of_answers = std::min(bytes, incoming.answer_bytes);
  answers_.Add(of_answers);
  bytes -= of_answers;
  const bool ended = header_bytes_ == header_.size() && !Announced();
  return (!ended || EndArrival()) && Parse(staging.first(bytes)) && ShowArrived();
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
  if (answers && out_lane_ == nullptr) return false;
  if (requests && !requests_.Begin(arriving_.request_lines, in_lane_->requests().position())) {
    return false;
  }
  if (answers && !answers_.Begin(arriving_.answer_lines, out_lane_->answers_position())) {
    return false;
  }
  if (arriving_.request_lines + arriving_.answer_lines >= kLargeChunkLines) {
    expects_large_ = kSmallChunksBetween;
  } else if (expects_large_ != 0) {
    --expects_large_;
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

LanePairs::LanePairs(Completions& cq, CqControl& control, int engine_epoll, uint64_t tag)
    : cq_(cq),
      control_(control),
      engine_epoll_(engine_epoll),
      tag_(tag),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      staging_(std::make_unique_for_overwrite<std::byte[]>(kStagingBytes)) {}

LanePairs::~LanePairs() {
  LetEngineWatch(false);
  for (const std::shared_ptr<LanePair>& pair : pairs_) pair->owner_ = nullptr;
}

absl::Status LanePairs::Add(std::shared_ptr<LanePair> pair) {
  // There may have been no descriptor for it before.
  if (!epoll_) epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  // None for a connection that is reset already, and soon closed.
  pair->source_ = RangeOf(TcpSource::Of(pair->fd()).value_or(TcpSource{}).address);
  Source& source = sources_[pair->source_];
  pair->epoll_fd_ = EpollFor(source);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = pair.get()}};
  if (pair->epoll_fd_ < 0 || epoll_ctl(pair->epoll_fd_, EPOLL_CTL_ADD, pair->fd(), &event) != 0) {
    absl::Status status = ErrnoStatus(errno, "the epoll of a soft device's CQ");
    if (source.pairs == 0) sources_.erase(pair->source_);
    // Its lane may keep it for a while, and the peer takes it for open.
    shutdown(pair->fd(), SHUT_RDWR);
    return status;
  }
  ++source.pairs;
  pair->owner_ = this;
  pairs_.push_back(std::move(pair));
  return absl::OkStatus();
}

int LanePairs::EpollFor(Source& source) {
  if (source.pairs < kUncrowded || !epoll_) return epoll_.get();
  if (!source.crowd) {
    UniqueFd crowd(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN,
                      .data = {.u64 = reinterpret_cast<uint64_t>(&source) | kCrowdTag}};
    if (!crowd || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, crowd.get(), &event) != 0) return -1;
    source.crowd = std::move(crowd);
  }
  return source.crowd.get();
}

std::shared_ptr<LanePair> LanePairs::Find(const Peer& peer, uint64_t remote_cq) const {
  for (const std::shared_ptr<LanePair>& pair : pairs_) {
    if (pair->peer().get() == &peer && pair->remote_cq() == remote_cq && !pair->broken()) {
      return pair;
    }
  }
  return nullptr;
}

void LanePairs::Receive(CompletionWriter& writer) {
  if (pairs_.size() <= kLookedAt) {
    // From the back, since a connection that is over makes way for the last one.
    for (size_t i = pairs_.size(); i-- != 0;) Look(*pairs_[i], writer);
    return;
  }
  std::array<LanePair*, kEventsPerTurn> ready;
  const size_t count = FindReady(ready);
  for (size_t i = 0; i < count; ++i) Look(*ready[i], writer);
}

size_t LanePairs::FindReady(std::span<LanePair*> ready) {
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
  size_t found = 0;
  std::array<int, kEventsPerTurn> crowds;
  int crowd_count = 0;
  for (int i = 0; i < count; ++i) {
    if ((events[i].data.u64 & kCrowdTag) == 0) {
      ready[found++] = static_cast<LanePair*>(events[i].data.ptr);
    } else {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): a tagged pointer.
      Source* const source = reinterpret_cast<Source*>(events[i].data.u64 & ~kCrowdTag);
      crowds[crowd_count++] = source->crowd.get();
    }
  }
  // Each has the same part of what others leave.
  const int share = crowd_count == 0 ? 0 : 1 + (kEventsPerTurn - count) / crowd_count;
  for (int i = 0; i < crowd_count; ++i) {
    const int of_crowd = epoll_wait(crowds[i], events, share, 0);
    for (int j = 0; j < of_crowd; ++j) ready[found++] = static_cast<LanePair*>(events[j].data.ptr);
  }
  return found;
}

void LanePairs::Look(LanePair& pair, CompletionWriter& writer) {
  if (pair.blocked()) {
    pair.Unblock();
    pair.Send();
    if (!pair.blocked()) WatchWritable(pair, false);
  }
  bool some = false;
  if (!pair.Receive({staging_.get(), kStagingBytes}, some)) {
    CloseOne(pair, writer);
    return;
  }
  if (!some || pair.in_lane() == nullptr) return;
  const uint32_t slot = pair.in_lane()->header().activity_slot.load(std::memory_order_relaxed);
  if (slot != 0) control_.SetActive(slot - 1);
}

void LanePairs::FlushTouched(CompletionWriter& writer) {
  // A connection that closes fails queue pairs, which touches no other connection but may grow the
  // list: it is walked by index.
  for (size_t i = 0; i < touched_.size(); ++i) {
    LanePair* pair = touched_[i];
    if (pair == nullptr) continue;
    pair->touched_ = false;
    if (!pair->broken()) pair->Send();
    if (pair->broken()) CloseOne(*pair, writer);
  }
  touched_.clear();
}

void LanePairs::Close(const Peer* peer, CompletionWriter& writer) {
  for (size_t i = pairs_.size(); i-- != 0;) {
    const std::shared_ptr<LanePair> pair = pairs_[i];
    if (peer != nullptr && pair->peer().get() != peer) continue;
    // Messages that arrived before the end are served, and those that were due are sent, if the
    // socket takes them.
    Look(*pair, writer);
    pair->Send();
    CloseOne(*pair, writer);
  }
}

void LanePairs::CloseOne(LanePair& pair, CompletionWriter& writer) {
  const auto found =
      std::find_if(pairs_.begin(), pairs_.end(), [&](auto& each) { return each.get() == &pair; });
  if (found == pairs_.end()) return;
  const std::shared_ptr<LanePair> closing = std::move(*found);
  *found = std::move(pairs_.back());
  pairs_.pop_back();
  std::replace(touched_.begin(), touched_.end(), closing.get(), static_cast<LanePair*>(nullptr));
  closing->owner_ = nullptr;
  // By hand: a child of this process may hold a copy of the descriptor, which would stay watched.
  epoll_ctl(closing->epoll_fd_, EPOLL_CTL_DEL, closing->fd(), nullptr);
  if (auto source = sources_.find(closing->source_); --source->second.pairs == 0) {
    // Likewise.
    if (source->second.crowd) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source->second.crowd.get(), nullptr);
    }
    sources_.erase(source);
  }
  closing->over_ = true;
  // Likewise: the peer is to see the end.
  shutdown(closing->fd(), SHUT_RDWR);
  closing->socket_ = UniqueFd();
  closing->closed_.store(true, std::memory_order_release);
  LogClosed(*closing);
  if (closing->in_lane() != nullptr) closing->in_lane()->Orphan();
  if (closing->out_lane() != nullptr) closing->out_lane()->Lose(writer);
}

bool LanePairs::LetEngineWatch(bool watch) {
  if (watch == engine_watches_ || !epoll_) return true;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag_}};
  const bool done =
      epoll_ctl(engine_epoll_, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, epoll_.get(), &event) == 0;
  engine_watches_ = watch && done;
  return engine_watches_ == watch;
}

void LanePairs::WatchWritable(LanePair& pair, bool writable) {
  if (pair.watches_writable_ == writable) return;
  pair.watches_writable_ = writable;
  const uint32_t out = writable ? uint32_t{EPOLLOUT} : 0;
  epoll_event event{.events = EPOLLIN | out, .data = {.ptr = &pair}};
  const int failed = epoll_ctl(pair.epoll_fd_, EPOLL_CTL_MOD, pair.fd(), &event);
  VERBENA_CHECK(failed == 0) << "errno " << errno;
}

}  // namespace verbena::internal::soft
