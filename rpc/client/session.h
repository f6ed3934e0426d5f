// The calling side of one link: ClientSession, the numbers of its server's methods, and a tally of
// how calls have ended.
//
// A Connection owns them, on its executor's thread. At most kMaxCallsInFlight calls.

#ifndef VERBENA_RPC_CLIENT_SESSION_H_
#define VERBENA_RPC_CLIENT_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/windows.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

// MethodNumbers: the numbers that a server gave its methods, as one session has asked for them.
//
// A method is looked up among the server's once per link; then its number lies in an array. Owned
// by a ClientSession, on its executor's thread. Bounded by the methods that this process knows.
class MethodNumbers {
 public:
  // No method's number: a server has at most kMaxMethods.
  static constexpr uint16_t kUnasked = 0xffff;

  // Returns the number that Of() returned for the method; kUnasked if Of() was not called for it.
  uint16_t Known(const MethodDescriptor& method) const {
    const uint32_t index = method.index.value();
    return index < numbers_.size() ? numbers_[index] : kUnasked;
  }
  // 0 if the server, whose methods are `offered`, has no such method, or has it in a shape with
  // which it cannot serve this client. A session passes the same methods each time.
  uint16_t Of(const MethodDescriptor& method, const std::vector<OfferedMethod>& offered);

 private:
  std::vector<uint16_t> numbers_;
};

// CallTally: how the calls of one connection have ended, counted as they end.
//
// There is one only if a channel judges its servers (EjectionOptions), and several channels may
// read it, so numbers only grow. Failures are those of the server or of the way to it: a link that
// was lost under calls, a deadline that passed unanswered, and an answer of UNAVAILABLE or INTERNAL
// that does not say whether the handler ran. Any other answer of a handler is no failure. One call
// in kTimedOneIn is timed, since reading a clock costs more than the rest. Owned by a Connection;
// on its executor's thread.
struct CallTally {
  static constexpr uint64_t kTimedOneIn = 16;

  uint64_t answered = 0;
  uint64_t failed = 0;
  uint64_t failed_before_answer = 0;  // the failures up to the last answer
  uint64_t timed = 0;                 // calls whose time is in `time`
  Duration time{};

  // A response has come, with the code and the outcome of its frame.
  void OnResponse(uint8_t code, uint8_t outcome) {
    if (code != 0 && IsFailure(code, outcome)) [[unlikely]] {
      ++failed;
      return;
    }
    ++answered;
    failed_before_answer = failed;
  }
  void OnFailure() { ++failed; }
  void OnTimed(Duration took) {
    ++timed;
    time += took;
  }

 private:
  static bool IsFailure(uint8_t code, uint8_t outcome) {
    const bool is_known = outcome == static_cast<uint8_t>(Outcome::kNotExecuted) ||
                          outcome == static_cast<uint8_t>(Outcome::kExecuted);
    const bool is_servers = code == static_cast<uint8_t>(absl::StatusCode::kUnavailable) ||
                            code == static_cast<uint8_t>(absl::StatusCode::kInternal);
    return is_servers && !is_known;
  }
};

// RegisteredCall: a unary call or a stream that has a slot of a session, as the session sees it. It
// hears of its frames from the server, and of the link's end.
//
// A failed Status says that the server broke the protocol, and closes the link. On the session's
// thread.
class RegisteredCall {
 public:
  // The last frame of the call.
  virtual absl::Status OnResponse(const FrameHeader& frame, const char* body) = 0;
  // The server asks for memory for the response.
  virtual absl::Status OnLandingNeeded(const LandingRequest& wanted) = 0;
  virtual absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) = 0;
  // `reason` is the call's status, without its outcome.
  virtual void OnLinkDown(const absl::Status& reason) = 0;
  virtual const char* method_name() const = 0;
  // Its caller waits no more, or has asked the server to end it: the response says nothing good of
  // the server.
  virtual bool is_given_up() const { return false; }

 protected:
  ~RegisteredCall() = default;
};

// The violation of a server that sends a frame of a stream for a unary call.
[[gnu::cold]] absl::Status NotAStream(const FrameHeader& frame);

// Leases that outlive their call. Most calls have one or two.
using LeaseList = absl::InlinedVector<Lease*, 2>;

struct ClientSessionStats {
  uint64_t calls = 0;
  uint64_t late_responses = 0;
};

// ClientSession: the calling side of one link, with the table of calls in flight.
//
// Each call has a slot and the slot's generation, which travel with the request and come back in
// the response. A response of a past generation is late (its call was cancelled or timed out):
// counted, harmless. (A call may keep its slot though it was given up: KeptSlot.) A response for a
// slot that does not exist, or of a generation yet to come, is a violation and closes the link.
// Memory that a given-up call had leased stays leased until its late response. A stream is a call,
// too: its messages name its slot.
//
// Owned by a Connection, on its executor's thread, which frees it some time after its link is down.
// Bounded by kMaxCallsInFlight.
class ClientSession final : public LinkListener, private SendWaiter {
 public:
  // Hears that the link is lost, or that its peer wants no more calls.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnSessionDown(ClientSession& session, const absl::Status& reason) = 0;
    virtual void OnSessionDraining(ClientSession& session) = 0;
    // A draining session has become idle().
    virtual void OnSessionIdle(ClientSession& session) = 0;
  };

  // `streams` is the server's share of memory for messages.
  ClientSession(Listener& listener, std::shared_ptr<StreamShare> streams)
      : listener_(listener), stream_share_(std::move(streams)) {}
  ~ClientSession() override;

  // `link` is open.
  void Attach(Link& link);
  // Set once, before the link is connected: for the landings that the server asks for.
  void set_landing_quota(std::shared_ptr<Quota> quota) { landing_quota_ = std::move(quota); }
  const std::shared_ptr<Quota>& landing_quota() const { return landing_quota_; }
  // From now on calls are counted in `tally`, which outlives the session. Null, the default: they
  // are not counted.
  void set_tally(CallTally* tally) { tally_ = tally; }
  CallTally* tally() const { return tally_; }
  // Whether the call that was registered last is to be timed for the tally.
  bool times_call() const {
    return tally_ != nullptr && stats_.calls % CallTally::kTimedOneIn == 0;
  }
  // nullptr before Attach(), and once the link is down. Otherwise the link is open, unless it is
  // being closed and this session has not heard of it yet.
  Link* link() const { return link_; }
  // Whether link() is nullptr.
  bool down() const { return link_ == nullptr; }
  // Ends its link, unless it is down().
  void CloseLink(const absl::Status& reason);
  // Whether it may take new calls.
  bool usable() const { return link_ != nullptr && !draining_; }
  // Takes no new calls from now on, as if the server had said GOAWAY, and tells the listener.
  void Drain();
  // Whether no call is in flight, and none waits for its leases to end.
  bool idle() const;
  // True once a call over it has had a response, or a stream a frame from the server.
  bool answered() const { return answered_; }
  // Whether a fault of the device, or of the path behind it, has ended the link.
  bool broken() const { return broken_; }
  // For calls: the response was what the protocol allows.
  void NoteAnswered() { answered_ = true; }

  // The number that requests call `method` by; 0 if it cannot be called there, as NoSuchMethod()
  // says. Precondition: !down().
  uint16_t NumberOf(const MethodDescriptor& method) {
    const uint16_t known = numbers_.Known(method);
    if (known != MethodNumbers::kUnasked) [[likely]]
      return known;
    return LookUpNumber(method);
  }

  // Takes a slot; false when kMaxCallsInFlight are taken.
  bool Register(RegisteredCall& call, CallId* id);
  // `to` has the slot of `id` from now on.
  void HandOver(CallId id, RegisteredCall& to);
  void Release(CallId id);
  // The same of a call that was given up and kept its slot, whose final frame has come.
  void ReleaseLate(CallId id, const FrameHeader& frame);
  // The windows that the link's streams share. Precondition: !down().
  StreamLink& streams() { return streams_; }
  // Why a call of `method` cannot begin. Precondition of the first: !down().
  [[gnu::cold]] absl::Status NoSuchMethod(const MethodDescriptor& method) const;
  [[gnu::cold]] static absl::Status TooManyCalls();
  // For a call whose deadline passes before its response has come. Precondition: the link is not
  // down.
  [[gnu::cold]] absl::Status DeadlinePassed(const MethodDescriptor& method) const;
  // Tells the server that nobody waits for `id` any more, at once or when there is room.
  void SendCancel(CallId id);

  // The landings that the server has granted for payloads of requests to come.
  GrantsHeld& grants() { return grants_; }
  const GrantsHeld& grants() const { return grants_; }

  // A call has its response, and waits until its leases have ended. Until then the link stays.
  void BeginSettling() { ++settling_; }
  // Call once for each BeginSettling(). If the link is lost first, call it at the latest in
  // OnSessionDown().
  void EndSettling();

  // Keeps the leases of a call that was given up until its final frame comes.
  void Quarantine(CallId id, const LeaseList& leases);

  // Call when the application begins to use memory that the server has lent over the link: from now
  // on the link is never idle.
  void NoteRemoteMemory() { reaches_memory_ = true; }

  const ClientSessionStats& stats() const { return stats_; }
  // The count itself, for a balancer that compares servers before each call.
  const uint32_t& in_flight() const { return in_flight_; }

  // LinkListener
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override;
  const char* MethodOf(const FrameHeader& frame) const override;
  void OnLinkDown(Link& link, const absl::Status& reason) override;
  uint32_t calls_in_flight() const override { return in_flight_; }
  bool ExpectsFrames() const override { return in_flight_ > 0 || !quarantine_.empty(); }
  bool InUse(const Link& link) const override;

 private:
  struct Slot {
    RegisteredCall* call = nullptr;
    uint32_t generation = 0;
  };

  // Rare paths are out of line to keep the hot path small.
  [[gnu::cold, gnu::noinline]] uint16_t LookUpNumber(const MethodDescriptor& method);
  [[gnu::cold, gnu::noinline]] uint32_t AddSlot();
  [[gnu::noinline]] absl::Status OnOtherFrame(Link& link, const FrameHeader& frame,
                                              const char* body);
  // The frame's call has ended, or there never was one.
  [[gnu::cold, gnu::noinline]] absl::Status OnLateResponse(const FrameHeader& frame);
  // OnResponse() of a call whose channel judges its servers. A function of its own, so that other
  // calls need not save registers for it.
  [[gnu::noinline]] absl::Status OnTalliedResponse(RegisteredCall& call, const FrameHeader& frame,
                                                   const char* body);
  [[gnu::noinline]] absl::Status OnStreamFrame(const FrameHeader& frame, const char* body);
  void OnWritable(Link& link) override;
  // The call that a frame is for, if it is in flight; otherwise nullptr.
  RegisteredCall* InFlight(const FrameHeader& frame) const;
  // The call that a frame is for; nullptr if the call has ended. An error if there never was such a
  // call.
  absl::StatusOr<RegisteredCall*> Find(const FrameHeader& frame) const;
  absl::Status OnResponse(const FrameHeader& frame, const char* body);
  // Tells the listener if a draining session has become idle().
  void CheckDrained();
  absl::Status OnLandingNeeded(const FrameHeader& frame, const char* body);
  void EndQuarantine(const FrameHeader& frame);

  Listener& listener_;
  const std::shared_ptr<StreamShare> stream_share_;
  CallTally* tally_ = nullptr;
  Link* link_ = nullptr;
  bool draining_ = false;
  bool reaches_memory_ = false;
  bool answered_ = false;
  bool broken_ = false;
  uint32_t in_flight_ = 0;
  uint32_t settling_ = 0;  // calls
  std::vector<Slot> slots_;
  StreamLink streams_;
  BoundedVector<uint32_t> free_;  // last in, first out: few slots stay in the cache
  // Slots of calls that were given up and whose CANCEL waits for room, with their newest such
  // generation: the REQUEST of a later call of the slot has ended the earlier ones.
  std::deque<uint16_t> cancelled_slots_;
  absl::flat_hash_map<uint16_t, uint32_t> cancelled_generations_;
  // By slot and generation. Bounded by what the link leases (LeaseLimits).
  absl::flat_hash_map<uint64_t, LeaseList> quarantine_;
  GrantsHeld grants_;
  MethodNumbers numbers_;
  std::shared_ptr<Quota> landing_quota_;
  ClientSessionStats stats_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SESSION_H_
