#include "verbena/transport/soft/lane_pairs.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/completion_queue.h"

namespace verbena::internal::soft {
namespace {

// Beyond this many connections one epoll_wait is cheaper than a recvmsg for each. (start)
constexpr size_t kLookedAt = 4;
// Connections that one turn serves; others that are ready come next.
constexpr int kEventsPerTurn = 32;
// Bytes that one recvmsg takes beyond the lines that were announced.
constexpr size_t kStagingBytes = 16384;

// A peer can have it written as often as it likes.
void LogClosed(const LanePair& pair) {
  static ThrottledLog& log = *new ThrottledLog({});
  const std::string text = fmt::format("soft device: a connection to {} is closed: {}",
                                       AddressText(pair.peer()->address()), pair.reason());
  log.Write(LogLevel::kInfo, Clock::Real().Now(), text);
}

}  // namespace

LanePairs::LanePairs(CompletionQueue& cq, CqControl& control, int engine_epoll, uint64_t tag)
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
  epoll_event event{.events = EPOLLIN, .data = {.ptr = pair.get()}};
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pair->fd(), &event) != 0) {
    absl::Status status = ErrnoStatus(errno, "the epoll of a soft device's CQ");
    // Its lane may keep it for a while, and the peer takes it for open.
    shutdown(pair->fd(), SHUT_RDWR);
    return status;
  }
  pair->owner_ = this;
  pairs_.push_back(std::move(pair));
  return absl::OkStatus();
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
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) Look(*static_cast<LanePair*>(events[i].data.ptr), writer);
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
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, closing->fd(), nullptr);
  closing->over_ = true;
  // Likewise: the peer is to see the end.
  shutdown(closing->fd(), SHUT_RDWR);
  closing->socket_ = UniqueFd();
  closing->closed_.store(true, std::memory_order_release);
  LogClosed(*closing);
  if (closing->in_lane() != nullptr) closing->in_lane()->Orphan();
  if (closing->out_lane() != nullptr) closing->out_lane()->Lose(writer);
}

void LanePairs::LetEngineWatch(bool watch) {
  if (watch == engine_watches_ || !epoll_) return;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag_}};
  const bool done =
      epoll_ctl(engine_epoll_, watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, epoll_.get(), &event) == 0;
  engine_watches_ = watch && done;
}

void LanePairs::WatchWritable(LanePair& pair, bool writable) {
  if (pair.watches_writable_ == writable) return;
  pair.watches_writable_ = writable;
  const uint32_t out = writable ? uint32_t{EPOLLOUT} : 0;
  epoll_event event{.events = EPOLLIN | out, .data = {.ptr = &pair}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, pair.fd(), &event);
}

}  // namespace verbena::internal::soft
