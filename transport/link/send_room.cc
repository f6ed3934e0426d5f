#include "verbena/transport/link/send_room.h"

#include <algorithm>

namespace verbena::internal {

void SendRoom::Await(RoomWaiter& waiter, PeerSource& source) {
  if (waiter.linked()) return;
  // If no buffer is free, the next one that is given back goes to the longest waiter.
  if (buffers_.free_count() == 0 || !buffers_.IsFull(source)) {
    waiters_.Add(waiter);
    return;
  }
  source.waiters.Add(waiter);
  if (!source.linked()) List(source);
}

void SendRoom::List(PeerSource& source) {
  source.Unlink();
  // Without another source, this one may hold all buffers.
  const size_t place =
      buffers_.IsFull(source) ? std::min<size_t>(source.held, full_.size() - 1) : 0;
  full_[place].PushBack(source);
  lowest_ = std::min(lowest_, place);
}

WaiterQueue<RoomWaiter>* SendRoom::Next() {
  const size_t free = buffers_.free_count();
  if (free == 0) return nullptr;
  if (!waiters_.empty()) return &waiters_;
  while (lowest_ < free) {
    PeerSource* source = full_[lowest_].Front();
    if (source == nullptr) {
      ++lowest_;
    } else if (source->waiters.empty()) {
      source->Unlink();
    } else if (buffers_.IsFull(*source)) {
      List(*source);
    } else {
      return &source->waiters;
    }
  }
  return nullptr;
}

// A link that is woken may post, which makes room again: the loop sees it. Whoever finds no room
// waits at the end of the list that fits the reason.
void SendRoom::Wake() {
  if (waking_) return;
  waking_ = true;
  while (WaiterQueue<RoomWaiter>* waiters = Next()) {
    waiters->ServeFirst([](RoomWaiter& first) { first.OnRoom(); });
  }
  waking_ = false;
}

}  // namespace verbena::internal
