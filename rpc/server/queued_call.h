// QueuedCall: a call as admission sees it. ClientQueue and SourceQueue: the shares that one client,
// and all clients of one source address, have of an AdmissionQueue.
//
// A ServerCall is a QueuedCall; a ServerClient and a ServerSource have one of the others each. They
// must outlive their calls. On their executor's thread.

#ifndef VERBENA_RPC_SERVER_QUEUED_CALL_H_
#define VERBENA_RPC_SERVER_QUEUED_CALL_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/rpc/call_context.h"
#include "verbena/rpc/server/refusal_reason.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/intrusive_list.h"

namespace verbena::internal {

// The three queues, in the order in which they are served.
enum class CallClass : uint8_t { kControl, kNormal, kBackground };
inline constexpr size_t kCallClasses = 3;

class ClientQueue;

// A call's place in the list of all that wait, the oldest first.
class AgingCall : public IntrusiveNode<AgingCall> {};

class QueuedCall : public AgingCall, public IntrusiveNode<QueuedCall> {
 public:
  virtual ~QueuedCall() = default;
  // The call's turn has come, and it has left the queue. May end the call.
  virtual void RunQueued() = 0;
  // Ends the call, which has left the queue and never runs.
  virtual void RefuseQueued(RefusalReason reason) = 0;

  // Says how the call counts, from its arrival to its end.
  void SetAdmitted(ClientQueue& client, CallClass its_class, uint64_t pinned_bytes) {
    client_ = &client;
    class_ = its_class;
    pinned_bytes_ = pinned_bytes;
  }

 private:
  friend class Admission;
  friend class AdmissionQueue;

  ClientQueue* client_ = nullptr;
  uint64_t pinned_bytes_ = 0;
  CallClass class_ = CallClass::kNormal;
  bool waits_ = false;    // in the queue
  bool counted_ = false;  // among the handlers that run
  TimePoint arrived_{};
};

// One client's calls of one class that wait, in the order of their arrival.
class CallFlow : public IntrusiveNode<CallFlow> {
 private:
  friend class AdmissionQueue;
  friend class ClientQueue;

  IntrusiveList<QueuedCall> calls_;
  uint32_t size_ = 0;
  ClientQueue* client_ = nullptr;
};

class SourceQueue {
 public:
  // `bounded`: it may take a part of the handlers that run, of the queue and of the control places,
  // and no more.
  explicit SourceQueue(bool bounded = true) : bounded_(bounded) {}

 private:
  friend class Admission;
  friend class AdmissionQueue;

  const bool bounded_;
  uint32_t running_ = 0;  // control calls do not count
  uint32_t waiting_ = 0;  // likewise
  uint32_t control_ = 0;  // control places, from a call's arrival to its end
  // Flows of clients that wait because the source runs as many calls as it may.
  std::array<IntrusiveList<CallFlow>, kCallClasses> parked_;
};

class ClientQueue {
 public:
  explicit ClientQueue(SourceQueue& source) : source_(source) {
    for (CallFlow& flow : flows_) flow.client_ = this;
  }
  ClientQueue(const ClientQueue&) = delete;
  ClientQueue& operator=(const ClientQueue&) = delete;

 private:
  friend class Admission;
  friend class AdmissionQueue;

  SourceQueue& source_;
  std::array<CallFlow, kCallClasses> flows_;
  uint32_t running_ = 0;
  uint32_t waiting_ = 0;  // control calls do not count
  uint32_t control_ = 0;  // control places, from a call's arrival to its end
  uint64_t pinned_bytes_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_QUEUED_CALL_H_
