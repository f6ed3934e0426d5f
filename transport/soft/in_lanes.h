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
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/copies_under_way.h"
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
  // The initiator of `lane` is no more. It may have been killed before it announced what it had
  // published, so the lane is looked at once more.
  void Orphan(InLane& lane);
  // Tells the initiators that nothing will be consumed any more, and forgets the lanes.
  void CloseAll();

  template <typename Function>
  void ForEach(Function function) {
    for (auto& lane : lanes_) {
      if (lane != nullptr) function(*lane);
    }
  }

  // Adds the copies that are under way into our memory, by `key` or, if that is 0, by any: those of
  // the device at `peer`, or, if that is null, of all. The caller has passed a full fence since it
  // withdrew the permission.
  void AddCopiesUnderWay(const DeviceAddress* peer, uint32_t key,
                         std::vector<CopyUnderWay>& copies);

  // Calls serve(lane) for every lane that may have requests, until it returns false, which means
  // that the caller can take no more.
  template <typename Serve>
  void ServeActive(Serve serve);

  // True when some lane could be served.
  bool HasWork() const;

 private:
  static constexpr size_t kMaxLanes = CqControl::kActivityWords * 64;
  static constexpr size_t kMaxHot = 8;
  static_assert(CqControl::kActivityWords == 64);  // a word of the summary has a bit for each

  void Remove(size_t slot);
  // `lane` was cold and had requests: it may become hot.
  void Consider(InLane& lane);
  void MakeHot(InLane& lane, size_t place);
  void MakeCold(InLane& lane);
  // False when the caller can take no more.
  template <typename Serve>
  bool ServeCold(Serve serve);
  template <typename Serve>
  bool ServeColdOf(size_t word, uint64_t mask, bool more, Serve serve);

  CqControl& control_;
  std::vector<std::unique_ptr<InLane>> lanes_;  // by slot, with holes
  std::array<InLane*, kMaxHot> hot_{};
  size_t hot_count_ = 0;
  // Serving starts there, so that no lane is always last.
  size_t next_hot_ = 0;
  size_t next_cold_ = 0;     // by slot
  bool cold_first_ = false;  // since hot ones had all of the last turn
  size_t clock_hand_ = 0;
};

template <typename Serve>
void InLanes::ServeActive(Serve serve) {
  if (cold_first_) {
    cold_first_ = false;
    if (control_.activity_summary.load(std::memory_order_relaxed) != 0 && !ServeCold(serve)) return;
  }
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
    cold_first_ = true;
    return;
  }
  if (control_.activity_summary.load(std::memory_order_relaxed) != 0) ServeCold(serve);
}

template <typename Serve>
bool InLanes::ServeCold(Serve serve) {
  const uint64_t words = control_.activity_summary.exchange(0, std::memory_order_acq_rel);
  const size_t start = next_cold_ / 64 % CqControl::kActivityWords;
  const uint64_t before = (uint64_t{1} << next_cold_ % 64) - 1;
  // Once around: the lanes of the first word that are before the start come last.
  const bool first = (words >> start & 1) != 0;
  bool more = !first || ServeColdOf(start, ~before, true, serve);
  for (uint64_t rest = std::rotr(words, static_cast<int>(start)) & ~uint64_t{1}; rest != 0;
       rest &= rest - 1) {
    const size_t word = start + static_cast<size_t>(std::countr_zero(rest));
    more = ServeColdOf(word % CqControl::kActivityWords, ~uint64_t{0}, more, serve);
  }
  return first && before != 0 ? ServeColdOf(start, before, more, serve) : more;
}

template <typename Serve>
bool InLanes::ServeColdOf(size_t word, uint64_t mask, bool more, Serve serve) {
  uint64_t bits = control_.activity[word].fetch_and(~mask, std::memory_order_acq_rel) & mask;
  for (; bits != 0; bits &= bits - 1) {
    const size_t slot = word * 64 + static_cast<size_t>(std::countr_zero(bits));
    if (slot >= lanes_.size() || lanes_[slot] == nullptr) continue;
    InLane& lane = *lanes_[slot];
    if (!more) {
      control_.SetActive(static_cast<uint32_t>(slot));
      continue;
    }
    if (!lane.MayHaveWork()) continue;
    more = serve(lane);
    if (!more) next_cold_ = slot + 1;
    // The lane may hold more than the caller could take, or than one turn takes.
    if (!more || lane.CanServe()) control_.SetActive(static_cast<uint32_t>(slot));
    Consider(lane);
  }
  return more;
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_IN_LANES_H_
