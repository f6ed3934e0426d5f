// Refusals of one link's calls: Refusals, which sends them, and RefusalQueue, those that wait for
// room.
//
// Part of a ServerSession, on its executor's thread. Refusals::kMaxQueued bounds those that wait.

#ifndef VERBENA_RPC_SERVER_REFUSALS_H_
#define VERBENA_RPC_SERVER_REFUSALS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/state.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/listener.h"

namespace verbena::internal {

class Link;

struct Refusal {
  Refusal(CallId id, RefusalReason its_reason)
      : generation(id.generation), slot(static_cast<uint16_t>(id.slot)), reason(its_reason) {
    static_assert(kMaxCallsInFlight <= 1u << 16);
  }

  uint32_t generation;
  uint16_t slot;
  RefusalReason reason;
};

// RefusalQueue: refusals of one link's calls that wait for room, in order.
//
// Each entry is small, since an overloaded server may have many to send: the rest of the response
// follows from the reason. The queue keeps no memory while it is empty. Part of a Refusals.
class RefusalQueue {
 public:
  bool empty() const { return refusals_.empty(); }
  size_t size() const { return refusals_.size() - sent_; }
  // Refusals that were ever queued, and those that left again.
  uint64_t queued() const { return left_ + size(); }
  uint64_t left() const { return left_; }
  // Precondition of both: not empty().
  const Refusal& front() const {
    VERBENA_DCHECK(!empty());
    return refusals_[sent_];
  }
  void PopFront() {
    VERBENA_DCHECK(!empty());
    ++left_;
    if (++sent_ == refusals_.size()) Free();
  }
  void PushBack(const Refusal& refusal) {
    // Each refusal moves at most once for each that has left.
    if (refusals_.size() == refusals_.capacity() && 2 * sent_ > refusals_.size()) {
      refusals_.erase(refusals_.begin(), refusals_.begin() + static_cast<ptrdiff_t>(sent_));
      sent_ = 0;
    }
    refusals_.push_back(refusal);
  }
  void Clear() {
    left_ += size();
    Free();
  }

 private:
  void Free() {
    std::vector<Refusal>().swap(refusals_);
    sent_ = 0;
  }

  std::vector<Refusal> refusals_;
  size_t sent_ = 0;  // refusals at the beginning of refusals_ that have left
  uint64_t left_ = 0;
};

// Refusals: sends the responses that refuse calls of one link.
//
// A refusal leaves at once if there is room. Those that wait leave in order; if they wait longer
// than ServerOptions::response_grace, the link closes. Part of a ServerSession, on its executor's
// thread.
class Refusals final : private SendWaiter, private Timer {
 public:
  // The most that wait for room: one for each of the client's call slots. Only a client that gives
  // up refused calls without taking their answers can have more; then the link closes.
  static constexpr size_t kMaxQueued = kMaxCallsInFlight;
  // So many of them may wait whatever other links of the source have: more count in the source's
  // quota (ServerSource).
  static constexpr size_t kOwnQueued = 4096;

  // All outlive it. `peer` is the client's name in texts.
  Refusals(ServerState& state, ServerSource& source, const std::string& peer)
      : state_(state), source_(source), peer_(peer) {}
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;
  ~Refusals() override { StopTimer(); }

  // Refuses call `id` over `link`. A failed Status closes the link.
  absl::Status Refuse(Link& link, CallId id, RefusalReason reason);
  // The client owes the room that they wait for.
  bool wait() const { return SendWaiter::linked(); }
  void OnLinkDown();

 private:
  void OnWritable(Link& link) override;
  // Those that waited when the timer was started have all left by now, or the link closes.
  void OnTimer() override;
  // Sends the first one, which stays if there is no room.
  void SendFirst(Link& link);
  void AwaitRoom(Link& link);
  void StartTimer();
  void StopTimer();

  ServerState& state_;
  ServerSource& source_;
  const std::string& peer_;
  RefusalQueue queue_;
  Link* link_ = nullptr;        // of the last one
  bool timer_running_ = false;  // while some wait
  uint64_t due_ = 0;            // of all queued so far, how many must have left when the timer ends
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_REFUSALS_H_
