// InLanes: the lanes through which requests arrive at one CQ, and which of them to look at.
//
// A poll must not cost more with every peer that is merely connected. A few lanes are hot: they are
// looked at in every poll, and their initiators need do nothing but publish. The others are cold:
// after publishing, an initiator also sets the lane's bit in the CQ's activity words, which a poll
// finds by one load. A cold lane that turns out busy takes the place of a hot one that was idle
// since it was last considered.
//
// Owned by a CompletionQueue, under its lock.

#ifndef VERBENA_TRANSPORT_SOFT_IN_LANES_H_
#define VERBENA_TRANSPORT_SOFT_IN_LANES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {

class InLanes {
 public:
  explicit InLanes(CqControl& control) : control_(control) {}

  // False when the CQ has as many lanes as it may. Lanes that have nothing more to give make way.
  bool Add(std::unique_ptr<InLane> lane);
  // Forgets lanes that have nothing more to give.
  void Sweep();
  // Tells the initiators that nothing will be consumed any more, and forgets the lanes.
  void CloseAll();

  template <typename Function>
  void ForEach(Function function) {
    for (auto& lane : lanes_) {
      if (lane != nullptr) function(*lane);
    }
  }

  // Calls serve(lane) for every lane that may have requests, until it returns false, which means
  // that the caller can take no more.
  template <typename Serve>
  void ServeActive(Serve serve);

  // True when some lane could be served.
  bool HasWork() const;

 private:
  static constexpr size_t kMaxLanes = CqControl::kActivityWords * 64;
  static constexpr size_t kMaxHot = 8;

  void Remove(size_t slot);
  // `lane` was cold and had requests: it may become hot.
  void Consider(InLane& lane);
  void MakeHot(InLane& lane, size_t place);
  void MakeCold(InLane& lane);
  template <typename Serve>
  void ServeCold(Serve serve);

  CqControl& control_;
  std::vector<std::unique_ptr<InLane>> lanes_;  // by slot, with holes
  std::array<InLane*, kMaxHot> hot_{};
  size_t hot_count_ = 0;
  size_t next_hot_ = 0;  // where serving starts, so that no lane is always last
  size_t clock_hand_ = 0;
};

template <typename Serve>
void InLanes::ServeActive(Serve serve) {
  if (next_hot_ >= hot_count_) next_hot_ = 0;
  const size_t start = next_hot_;
  for (size_t i = 0; i < hot_count_; ++i) {
    size_t place = start + i;
    if (place >= hot_count_) place -= hot_count_;
    InLane& lane = *hot_[place];
    if (!lane.MayHaveWork()) continue;
    lane.set_referenced(true);
    if (serve(lane)) continue;
    next_hot_ = place + 1;
    return;
  }
  if (control_.activity_summary.load(std::memory_order_relaxed) != 0) ServeCold(serve);
}

template <typename Serve>
void InLanes::ServeCold(Serve serve) {
  uint64_t words = control_.activity_summary.exchange(0, std::memory_order_acq_rel);
  bool more = true;
  for (; words != 0; words &= words - 1) {
    const size_t word = static_cast<size_t>(__builtin_ctzll(words));
    uint64_t bits = control_.activity[word].exchange(0, std::memory_order_acq_rel);
    for (; bits != 0; bits &= bits - 1) {
      const size_t slot = word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
      if (slot >= lanes_.size() || lanes_[slot] == nullptr) continue;
      InLane& lane = *lanes_[slot];
      if (!more) {
        control_.SetActive(static_cast<uint32_t>(slot));
        continue;
      }
      if (!lane.MayHaveWork()) continue;
      more = serve(lane);
      // The lane may hold more than the caller could take, or than one turn takes.
      if (!more || lane.CanServe()) control_.SetActive(static_cast<uint32_t>(slot));
      Consider(lane);
    }
  }
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_IN_LANES_H_
