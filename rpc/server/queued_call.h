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
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/intrusive_list.h"

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

class SourceFlow;

// One client's calls of one class that wait, in the order of their arrival.
class CallFlow : public IntrusiveNode<CallFlow> {
 private:
  friend class AdmissionQueue;
  friend class ClientQueue;

  IntrusiveList<QueuedCall> calls_;
  uint32_t size_ = 0;
  uint32_t ready_ = 0;  // as many of them as count in source_: all, if the client may run one
  SourceFlow* source_ = nullptr;
};

// A place in the turns of one class: that of all clients of a bounded source together, or that of
// one client of another. Its flows take turns in it.
class SourceFlow : public IntrusiveNode<SourceFlow> {
 private:
  friend class AdmissionQueue;

  IntrusiveList<CallFlow> flows_;  // whose clients may run a call
  uint32_t flow_count_ = 0;
  uint32_t calls_ = 0;  // of these flows
  uint32_t ready_ = 0;  // as many of them as count in the class: all, if the source may run one
};

class SourceQueue {
 public:
  // `bounded`: it may take a part of the handlers that run, of the queue and of the control places,
  // and no more, and has one turn for all of its clients.
  explicit SourceQueue(bool bounded = true) : bounded_(bounded) {}

 private:
  friend class Admission;
  friend class AdmissionQueue;
  friend class ClientQueue;

  const bool bounded_;
  uint32_t running_ = 0;                        // control calls do not count
  uint32_t waiting_ = 0;                        // likewise
  uint32_t control_ = 0;                        // control places, from a call's arrival to its end
  std::array<SourceFlow, kCallClasses> flows_;  // unless it is unbounded
};

class ClientQueue {
 public:
  explicit ClientQueue(SourceQueue& source) : source_(source) {
    const bool alone = !source.bounded_;
    for (size_t i = 0; i < kCallClasses; ++i) {
      flows_[i].source_ = alone ? &alone_[i] : &source.flows_[i];
    }
  }
  ClientQueue(const ClientQueue&) = delete;
  ClientQueue& operator=(const ClientQueue&) = delete;

 private:
  friend class Admission;
  friend class AdmissionQueue;

  SourceQueue& source_;
  std::array<SourceFlow, kCallClasses> alone_;  // if the source is unbounded
  std::array<CallFlow, kCallClasses> flows_;
  uint32_t running_ = 0;
  uint32_t waiting_ = 0;  // control calls do not count
  uint32_t control_ = 0;  // control places, from a call's arrival to its end
  uint64_t pinned_bytes_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_QUEUED_CALL_H_
