// CancelScope: a request to stop, and who wants to hear it.
//
// Cancelling is a request: the await in flight returns CANCELLED (or the scope's reason) and the
// coroutine runs on to its co_return. Scopes form a tree: a request reaches every scope below. A
// coroutine inherits the scope of the coroutine that awaits it. One thread; owned by whoever may
// cancel (a TaskScope, a deadline, a server call), and must outlive the tasks that run in it.
//
// A scope also holds the context of the work in it: the time at which its owner will cancel it, its
// place in a trace, and the client that it is done for, or the owner that knows this client. A new
// scope takes these over from its parent. Calls made in a scope tell their servers the first two.
//
//   CancelScope scope(parent);
//   scope.Request();   // every await below returns CANCELLED
//
//   precondition                                    how it is checked   test
//   requested on the thread of its coroutines       a check aborts      one_executor_test
//   Request() has a reason                          a check aborts      cancel_test
//   outlives the tasks that run in it               not checked
//   its owner outlives it and the scopes below      not checked

#ifndef VERBENA_TRANSPORT_CORO_CANCEL_H_
#define VERBENA_TRANSPORT_CORO_CANCEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/trace.h"

namespace verbena {

namespace internal {

// Something that a request must reach: an await in flight, or a scope further down.
class CancelNode : public IntrusiveNode<CancelNode> {
 public:
  virtual ~CancelNode() = default;
  // Called once, with the node already unlinked. Must not resume a coroutine inline.
  virtual void OnCancel(absl::StatusCode reason) = 0;
};

class WorkOwner;

// The Status of an await that ended by cancellation.
VERBENA_EXPORT absl::Status CancelStatus(absl::StatusCode reason);

}  // namespace internal

class VERBENA_EXPORT CancelScope final : public internal::CancelNode {
 public:
  explicit CancelScope(CancelScope* parent = nullptr);
  ~CancelScope() override = default;

  // Requests cancellation of everything in this scope, with CANCELLED or DEADLINE_EXCEEDED as the
  // reason that awaits report. Only the first request counts.
  void Request(absl::StatusCode reason = absl::StatusCode::kCancelled);

  bool requested() const { return reason_ != absl::StatusCode::kOk; }
  // kOk until requested.
  absl::StatusCode reason() const { return reason_; }
  // The reason as the Status that an await returns; OK until requested.
  absl::Status status() const;

  // The time at which the owner will request cancellation; kNever if it knows of none.
  TimePoint deadline() const { return deadline_; }
  // For the owner, which requests the cancellation itself. A later time than deadline() changes
  // nothing. Scopes below that exist already keep their deadlines.
  void LimitDeadline(TimePoint deadline) {
    if (deadline < deadline_) deadline_ = deadline;
  }
  // The trace that the work belongs to; nullptr if it belongs to none.
  const TraceContext* trace() const { return trace_.get(); }
  void set_trace(const TraceContext& trace) { trace_ = internal::TraceRef(trace); }
  // Whose work it is, as a number that equals no other client's: the owner's, in a call of a
  // server. 0 for work that is no client's. RunBlocking() lets clients take turns by it.
  uint64_t client() const { return has_owner_ ? ClientOfOwner() : whose_.client; }
  // The work has no owner from now on.
  void set_client(uint64_t client) {
    whose_.client = client;
    has_owner_ = false;
  }
  // Who hears of the changes of files that awaits in this scope have left; null: nobody does. The
  // owner outlives the scope and all scopes below.
  internal::WorkOwner* owner() const { return has_owner_ ? whose_.owner : nullptr; }
  void set_owner(internal::WorkOwner& owner) {
    whose_.owner = &owner;
    has_owner_ = true;
  }

  // Registers `node` until it is unlinked or called. The scope must not have been requested.
  void Add(internal::CancelNode& node) {
    VERBENA_DCHECK(!requested()) << "nobody would tell this node of the request: " << reason_;
    nodes_.PushBack(node);
  }

 private:
  void OnCancel(absl::StatusCode reason) override { Request(reason); }
  uint64_t ClientOfOwner() const;

  internal::IntrusiveList<internal::CancelNode> nodes_;
  absl::StatusCode reason_ = absl::StatusCode::kOk;
  bool has_owner_ = false;
  TimePoint deadline_ = kNever;
  union {
    uint64_t client = 0;
    internal::WorkOwner* owner;
  } whose_;
  internal::TraceRef trace_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_CANCEL_H_
