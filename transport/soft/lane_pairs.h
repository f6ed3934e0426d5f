// LanePairs: the TCP connections of one CQ, and which of them to look at.
//
// While the CQ is polled, each poll reads its connections itself: each of them while they are few,
// otherwise those that an epoll of the CQ's own names, so that a thousand idle connections cost one
// system call. While nobody polls, the engine watches that epoll, and sleeps until something comes.
//
// Owned by a CompletionQueue, under its lock. A CQ without TCP connections has none.

#ifndef VERBENA_TRANSPORT_SOFT_LANE_PAIRS_H_
#define VERBENA_TRANSPORT_SOFT_LANE_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {

class CompletionQueue;
class CompletionWriter;

class LanePairs {
 public:
  // `control` is that of `cq`, which owns them; `tag` names the CQ in the events of `engine_epoll`,
  // which outlives it.
  LanePairs(CompletionQueue& cq, CqControl& control, int engine_epoll, uint64_t tag);
  LanePairs(const LanePairs&) = delete;
  LanePairs& operator=(const LanePairs&) = delete;
  ~LanePairs();

  // Precondition: the pair's in-lane was added to the CQ.
  absl::Status Add(std::shared_ptr<LanePair> pair);
  // Null when there is none, or it is broken.
  std::shared_ptr<LanePair> Find(const Peer& peer, uint64_t remote_cq) const;

  // Takes what has arrived. Closes connections that are over: the queue pairs that send over them
  // fail.
  void Receive(CompletionWriter& writer);
  // Sends what is due at the end of a turn.
  void Flush(CompletionWriter& writer) {
    if (!touched_.empty()) FlushTouched(writer);
  }
  // Closes the connections of `peer`; null: of all.
  void Close(const Peer* peer, CompletionWriter& writer);

  // Whether the engine is to watch. Harmless when it does so already.
  void LetEngineWatch(bool watch);

  // For LanePair.
  CompletionQueue& cq() { return cq_; }
  void AddTouched(LanePair& pair) { touched_.push_back(&pair); }
  void WatchWritable(LanePair& pair, bool writable);

 private:
  void FlushTouched(CompletionWriter& writer);
  void Look(LanePair& pair, CompletionWriter& writer);
  void CloseOne(LanePair& pair, CompletionWriter& writer);

  CompletionQueue& cq_;
  CqControl& control_;
  const int engine_epoll_;
  const uint64_t tag_;
  UniqueFd epoll_;
  bool engine_watches_ = false;
  std::vector<std::shared_ptr<LanePair>> pairs_;
  std::vector<LanePair*> touched_;
  std::unique_ptr<std::byte[]> staging_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LANE_PAIRS_H_
