// SendRoom: the links of one endpoint that hold no send buffer, and wait for one.
//
// Some wait until any buffer is free; others until their source, which is full, may hold one more
// (send_buffers.h). A source may hold one more when more buffers are free than it holds, whoever
// gave them back. So full sources are listed by how many they hold, and a buffer that is given back
// costs no look at those that hold too many. One thread.

#ifndef VERBENA_TRANSPORT_LINK_SEND_ROOM_H_
#define VERBENA_TRANSPORT_LINK_SEND_ROOM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/base/waiter_queue.h"
#include "verbena/transport/link/peer_source.h"
#include "verbena/transport/link/send_buffers.h"

namespace verbena::internal {

class SendRoom {
 public:
  // `buffers` must outlive it.
  explicit SendRoom(const SendBuffers& buffers)
      : buffers_(buffers), full_(buffers.count() + 1), lowest_(full_.size()) {}

  // Whether links wait until any buffer is free.
  bool is_awaited() const { return !waiters_.empty(); }
  // A link to `source`, which holds no buffer, waits until Note() finds that it may have one.
  void Await(RoomWaiter& waiter, PeerSource& source);
  // After a link to `source` has given buffers back, or when one may hold more.
  void Note(PeerSource& source) {
    const bool is_full = source.linked();
    if (is_full) [[unlikely]]
      List(source);
    const bool may_go = lowest_ < buffers_.free_count();
    if (is_awaited() || may_go) [[unlikely]]
      Wake();
  }

 private:
  void List(PeerSource& source);
  void Wake();
  // The queue of the next that may have a buffer; nullptr if there is none.
  WaiterQueue<RoomWaiter>* Next();

  const SendBuffers& buffers_;
  WaiterQueue<RoomWaiter> waiters_;
  // Full sources by the buffers that they hold, or fewer: they are listed anew when their turn
  // comes.
  std::vector<IntrusiveList<PeerSource>> full_;
  size_t lowest_;  // no list before this one has a member
  bool waking_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SEND_ROOM_H_
