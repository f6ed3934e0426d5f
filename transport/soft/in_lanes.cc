#include "verbena/transport/soft/in_lanes.h"

#include <algorithm>
#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {

void InLanes::Sweep() {
  for (size_t slot = 0; slot < lanes_.size(); ++slot) {
    InLane* old = lanes_[slot].get();
    if (old != nullptr && old->finished() && !old->listed()) Remove(slot);
  }
}

bool InLanes::Add(std::unique_ptr<InLane> lane) {
  Sweep();
  size_t slot =
      static_cast<size_t>(std::find(lanes_.begin(), lanes_.end(), nullptr) - lanes_.begin());
  if (slot == kMaxLanes) return false;
  if (slot == lanes_.size()) lanes_.emplace_back();
  lane->set_slot(static_cast<uint32_t>(slot));
  VERBENA_CHECK(slot < lanes_.size() && lanes_[slot] == nullptr) << "slot " << slot;
  lanes_[slot] = std::move(lane);
  lanes_[slot]->header().target_open.store(1, std::memory_order_release);
  if (hot_count_ < kMaxHot) {
    MakeHot(*lanes_[slot], hot_count_++);
  } else {
    MakeCold(*lanes_[slot]);
  }
  return true;
}

void InLanes::Remove(size_t slot) {
  InLane* lane = lanes_[slot].get();
  auto end = hot_.begin() + static_cast<std::ptrdiff_t>(hot_count_);
  auto place = std::find(hot_.begin(), end, lane);
  VERBENA_CHECK(lane->slot() == slot && lane->hot() == (place != end) && !lane->listed())
      << "slot " << slot << " of " << lanes_.size() << ", lane's " << lane->slot();
  if (place != end) {
    *place = hot_[--hot_count_];
    hot_[hot_count_] = nullptr;
  }
  lanes_[slot].reset();
}

void InLanes::Orphan(InLane& lane) {
  lane.Orphan();
  if (!lane.hot()) control_.SetActive(lane.slot());
}

void InLanes::CloseAll() {
  ForEach([](InLane& lane) { lane.CloseTarget(); });
  hot_count_ = 0;
  lanes_.clear();
}

void InLanes::AddCopiesUnderWay(const DeviceAddress* peer, uint32_t key,
                                std::vector<CopyUnderWay>& copies) {
  ForEach([&](InLane& lane) {
    if (peer != nullptr && *peer != lane.peer().address()) return;
    if (auto copy = lane.FindCopyUnderWay(key)) copies.push_back(*std::move(copy));
  });
}

void InLanes::Consider(InLane& lane) {
  if (lane.hot()) return;
  if (hot_count_ < kMaxHot) {
    MakeHot(lane, hot_count_++);
    return;
  }
  const size_t place = clock_hand_++ % kMaxHot;
  if (hot_[place]->referenced()) {
    hot_[place]->set_referenced(false);
    return;
  }
  MakeCold(*hot_[place]);
  MakeHot(lane, place);
}

void InLanes::MakeHot(InLane& lane, size_t place) {
  VERBENA_CHECK(place < hot_count_ && !lane.hot()) << "place " << place << " of " << hot_count_;
  hot_[place] = &lane;
  lane.set_hot(true);
  lane.set_referenced(true);
  lane.header().activity_slot.store(0, std::memory_order_relaxed);
}

void InLanes::MakeCold(InLane& lane) {
  lane.set_hot(false);
  lane.header().activity_slot.store(lane.slot() + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // A writer may have published before it could see that the lane is cold: look at the lane once
  // more.
  control_.SetActive(lane.slot());
}

bool InLanes::HasWork() const {
  for (size_t i = 0; i < hot_count_; ++i) {
    if (hot_[i]->CanServe()) return true;
  }
  return control_.activity_summary.load(std::memory_order_relaxed) != 0;
}

}  // namespace verbena::internal::soft
