// UnaryCall: one call of a unary method, as a stub's method returns it.
//
// Lazy: the call begins when it is awaited, on the executor of whoever awaits it. The call is a
// part of this object, which a co_await keeps in the awaiting coroutine's frame: no coroutine lies
// between, and nothing is allocated once warm. Destroying it while it runs abandons the call: the
// server is told, and nothing is written to the reply any more. One thread; movable until it is
// awaited, which happens at most once.
//
// `Request` is a reference when the call borrows its request, until it ends; otherwise the call
// owns it. `Reply` likewise: a message, or a WithPayload of one if responses have payloads. A call
// that owns its reply gives absl::StatusOr<Reply>, one that borrows it absl::Status. Failures carry
// an Outcome (outcome.h).
//
//   absl::StatusOr<GetReply> got = co_await stub.Get(request);
//   auto [a, b] = co_await WhenAll(stub.Get(first), stub.Get(second));
//   Task<absl::StatusOr<GetReply>> later = stub.Get(std::move(request));

#ifndef VERBENA_RPC_UNARY_CALL_H_
#define VERBENA_RPC_UNARY_CALL_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/with_payload.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Channel;

namespace internal {

struct CallRoute;

// The part of a UnaryCall that is the same for all messages: the channel, the method, the options,
// and once the call has begun, the call itself, whose type no user sees.
class InPlaceCall {
 public:
  // Takes `options` before it returns. `channel` and `method` are borrowed until the call ends.
  InPlaceCall(Channel& channel, const MethodDescriptor& method, CallOptions&& options);
  // Without options: making and destroying empty ones costs as much as the rest of this
  // constructor.
  InPlaceCall(Channel& channel, const MethodDescriptor& method);
  // A check aborts if `other` has begun.
  InPlaceCall(InPlaceCall&& other) noexcept;
  InPlaceCall& operator=(InPlaceCall&&) = delete;
  ~InPlaceCall();

  // Begins the call for `caller`, which is suspended and goes on when the call has ended. Both
  // messages, and what `payload` names, are borrowed until then. Returns the coroutine to resume
  // now. A check aborts if the call has begun before, or was moved from.
  std::coroutine_handle<> Begin(PromiseBase& caller, const google::protobuf::MessageLite& request,
                                google::protobuf::MessageLite& reply, PayloadSink payload);
  // How the call ended. Call it once.
  absl::Status TakeStatus();

 private:
  // A call that travels in frames, in storage_.
  class Eager;
  enum class Stage : uint8_t {
    kNew,
    kNewWithOptions,  // storage_ holds all CallOptions: the call has more than messages
    kNewWithPolicy,   // as kNewWithOptions; the channel has a MethodConfig for the method
    kEager,           // storage_ holds an Eager; task_ too if the server asked for a landing
    kTask,            // task_ makes the call
    kMovedFrom,
  };
  // Enough for an Eager and for CallOptions, which the source checks.
  static constexpr size_t kStorageBytes = 320;

  // `has_parts`: by its method or its options, the call has more than messages.
  static Stage StageOf(const Channel& channel, const MethodDescriptor& method, bool has_parts);
  bool is_new() const { return stage_ <= Stage::kNewWithPolicy; }
  // The call may have several attempts, and limits that the channel sets.
  [[gnu::noinline]] std::coroutine_handle<> BeginWithPolicy(
      PromiseBase& caller, const google::protobuf::MessageLite& request,
      google::protobuf::MessageLite& reply, PayloadSink payload);
  // A call that is more than a request and a reply in frames over a link that is there.
  [[gnu::noinline]] std::coroutine_handle<> BeginFull(CallRoute route, PromiseBase& caller,
                                                      const google::protobuf::MessageLite& request,
                                                      google::protobuf::MessageLite& reply,
                                                      PayloadSink payload);
  std::coroutine_handle<> BeginTask(Task<absl::Status> task, PromiseBase& caller);
  // The options; empty ones if the call has none.
  CallOptions TakeOptions();
  Eager& eager() { return *reinterpret_cast<Eager*>(storage_); }
  CallOptions& options() { return *reinterpret_cast<CallOptions*>(storage_); }

  Channel* channel_;
  const MethodDescriptor* method_;
  Deadline deadline_;
  CallInfo* info_;
  std::optional<uint64_t> route_key_;
  Task<absl::Status> task_;
  Stage stage_;
  bool wait_for_ready_;
  alignas(std::max_align_t) std::byte storage_[kStorageBytes];
};

}  // namespace internal

template <typename Request, typename Reply>
class [[nodiscard("a call begins when it is awaited: co_await it")]] UnaryCall {
  static constexpr bool kBorrowsReply = std::is_reference_v<Reply>;

 public:
  using value_type = std::conditional_t<kBorrowsReply, absl::Status, absl::StatusOr<Reply>>;

  // For generated stubs. `channel` and `descriptor` are borrowed until the call ends.
  UnaryCall(Channel& channel, const MethodDescriptor& descriptor, Request&& request)
    requires(!kBorrowsReply)
      : request_(std::forward<Request>(request)),
        reply_(absl::in_place),
        call_(channel, descriptor) {}
  UnaryCall(Channel& channel, const MethodDescriptor& descriptor, Request&& request, Reply reply)
    requires kBorrowsReply
      : request_(std::forward<Request>(request)), reply_(reply), call_(channel, descriptor) {}
  // With options.
  UnaryCall(Channel& channel, const MethodDescriptor& descriptor, Request&& request,
            CallOptions&& options)
    requires(!kBorrowsReply)
      : request_(std::forward<Request>(request)),
        reply_(absl::in_place),
        call_(channel, descriptor, std::move(options)) {}
  UnaryCall(Channel& channel, const MethodDescriptor& descriptor, Request&& request, Reply reply,
            CallOptions&& options)
    requires kBorrowsReply
      : request_(std::forward<Request>(request)),
        reply_(reply),
        call_(channel, descriptor, std::move(options)) {}
  UnaryCall(UnaryCall&&) noexcept = default;

  class Awaiter {
   public:
    explicit Awaiter(UnaryCall& call) : call_(call) {}
    bool await_ready() const noexcept { return false; }
    template <typename Caller>
      requires std::derived_from<Caller, internal::PromiseBase>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Caller> caller) {
      return call_.call_.Begin(caller.promise(), call_.request_, internal::MessageOf(call_.reply()),
                               internal::SinkOf(call_.reply()));
    }
    value_type await_resume() { return call_.TakeResult(); }

   private:
    UnaryCall& call_;
  };
  // The object must live until the call has ended, as a temporary in the co_await expression does.
  Awaiter operator co_await() && noexcept { return Awaiter(*this); }

  // The call as a Task, which costs a coroutine's frame: for containers, and for functions that
  // choose between calls. The conversion is implicit.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<value_type> AsTask() && {
    return RunAsTask(std::move(*this));
  }
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS
  operator Task<value_type>() && {  // NOLINT(google-explicit-constructor)
    return RunAsTask(std::move(*this));
  }

 private:
  static Task<value_type> RunAsTask(UnaryCall call) { co_return co_await std::move(call); }

  std::remove_reference_t<Reply>& reply() {
    if constexpr (kBorrowsReply) {
      return reply_;
    } else {
      return *reply_;
    }
  }
  value_type TakeResult() {
    absl::Status status = call_.TakeStatus();
    if constexpr (kBorrowsReply) {
      return status;
    } else {
      if (!status.ok()) reply_ = std::move(status);
      return std::move(reply_);
    }
  }

  Request request_;
  std::conditional_t<kBorrowsReply, Reply, absl::StatusOr<Reply>> reply_;
  internal::InPlaceCall call_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_UNARY_CALL_H_
