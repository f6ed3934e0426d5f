#include "verbena/rpc/channel.h"

#include <utility>

#include "verbena/rpc/client/bulk_call.h"
#include "verbena/rpc/client/client_call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/shard.h"
#include "verbena/rpc/stub.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/executor/executor_gate.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/check.h"

namespace verbena {
namespace {

internal::ExecutorWish WishOf(const ChannelOptions& options) {
  if (options.server_executor >= 0) {
    return {.choice = internal::ExecutorChoice::kNumber,
            .number = static_cast<uint32_t>(options.server_executor) % internal::kMaxExecutors};
  }
  if (options.server_key != 0)
    return {.choice = internal::ExecutorChoice::kKey, .key = options.server_key};
  return {};
}

absl::Status NotOnAnExecutor() {
  return absl::FailedPreconditionError(
      "a Channel was used on a thread that runs no executor of its runtime; use "
      "Runtime::BlockOn(task) or Runtime::Spawn(task)");
}

// UNAVAILABLE when there is none before `deadline`.
Task<absl::StatusOr<internal::ClientSession*>> SessionOf(internal::Connection& connection,
                                                         Deadline deadline) {
  while (connection.usable_session() == nullptr) {
    VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(connection.Ready(), deadline.when()));
  }
  co_return connection.usable_session();
}

Task<absl::Status> EagerCall(Channel& channel, const MethodDescriptor& method,
                             const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite& reply, Deadline deadline,
                             CallInfo* info);

Task<absl::Status> CallOnceConnected(internal::Connection& connection, Channel& channel,
                                     const MethodDescriptor& method,
                                     const google::protobuf::MessageLite& request,
                                     google::protobuf::MessageLite& reply, Deadline deadline,
                                     CallInfo* info) {
  const Executor& executor = connection.shard().executor();
  const TimePoint began = executor.now();
  absl::StatusOr<internal::ClientSession*> found = co_await SessionOf(connection, deadline);
  absl::Status status;
  if (found.ok()) {
    status = co_await EagerCall(channel, method, request, reply, deadline, info);
  } else {
    status = WithOutcome(found.status(), Outcome::kNotExecuted);
    if (info != nullptr) info->request_bytes = static_cast<uint32_t>(request.ByteSizeLong());
  }
  if (info != nullptr) info->elapsed = executor.now() - began;
  co_return status;
}

// A call that moves nothing one-sided, unless it turns out that its messages must.
Task<absl::Status> EagerCall(Channel& channel, const MethodDescriptor& method,
                             const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite& reply, Deadline given, CallInfo* info) {
  internal::Connection* connection = channel.ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotExecuted);
  const Deadline deadline = given.At(connection->shard().executor());
  internal::ClientSession* session = connection->usable_session();
  if (session == nullptr) {
    co_return co_await CallOnceConnected(*connection, channel, method, request, reply, deadline,
                                         info);
  }
  const size_t request_bytes = request.ByteSizeLong();
  if (request_bytes > session->max_body_bytes()) {
    co_return co_await BulkCall(*connection, method, request, reply,
                                {.deadline = deadline, .info = info});
  }
  internal::ClientCall call(*session, connection->shard().executor(), method, request, reply,
                            deadline, info, request_bytes);
  absl::Status status = co_await call;
  if (!call.landing_needed()) co_return status;
  co_return co_await FinishInLanding(call, reply, deadline, info);
}

Task<absl::Status> PayloadCall(Channel& channel, const MethodDescriptor& method,
                               const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite& reply, CallOptions options) {
  internal::Connection* connection = channel.ConnectionHere();
  if (connection == nullptr) co_return internal::FailUnsent(NotOnAnExecutor(), options);
  options.deadline = options.deadline.At(connection->shard().executor());
  co_return co_await BulkCall(*connection, method, request, reply, std::move(options));
}

}  // namespace

Channel::Channel(Runtime& runtime, std::string target, ChannelOptions options)
    : runtime_(runtime), target_(std::move(target)), options_(options), uses_(runtime.executors()) {
  VERBENA_CHECK(options.server_executor >= -1 &&
                (options.server_executor == -1 || options.server_key == 0))
      << "server_executor is " << options.server_executor << " and server_key is "
      << options.server_key << ": set at most one of them, server_executor to -1 or more";
}

Channel::~Channel() {
  for (const Use& use : uses_) {
    if (use.gate == nullptr) continue;
    use.gate->Post([use] {
      if (use.gate->open()) use.connections->Release(*use.connection);
    });
  }
}

internal::Connection* Channel::ConnectionHere() {
  const internal::Shard* shard = runtime_.CurrentShard();
  if (shard == nullptr) return nullptr;
  Use& use = uses_[shard->index()];
  if (use.connection == nullptr) {
    internal::Connections& here = runtime_.connections(static_cast<int>(shard->index()));
    use = {&here.To(target_, WishOf(options_)), &here, here.gate()};
  }
  return use.connection;
}

Task<absl::Status> Channel::Connect() {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotExecuted);
  absl::Status ready = co_await connection->Ready();
  if (!ready.ok()) co_return WithOutcome(std::move(ready), Outcome::kNotExecuted);
  co_return ready;
}

Task<absl::StatusOr<Buffer>> Channel::AllocateBuffer(size_t bytes) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotExecuted);
  absl::StatusOr<internal::ClientSession*> session = co_await SessionOf(*connection, {});
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  const internal::Endpoint& endpoint = (*session)->endpoint();
  absl::StatusOr<Buffer> buffer =
      co_await AllocateUntil(endpoint, endpoint.memory().send(), bytes, {});
  if (!buffer.ok()) co_return WithOutcome(buffer.status(), Outcome::kNotExecuted);
  co_return buffer;
}

Task<absl::StatusOr<std::string>> Channel::DeviceName() {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotExecuted);
  absl::StatusOr<internal::ClientSession*> session = co_await SessionOf(*connection, {});
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  co_return (*session)->endpoint().device_name();
}

Task<absl::StatusOr<Loan>> Channel::Lend(BufferView view, LeaseAccess access) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotExecuted);
  absl::StatusOr<internal::ClientSession*> session = co_await SessionOf(*connection, {});
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  absl::StatusOr<Loan> loan =
      co_await internal::LendOver(*(*session)->link(), view, access, kNever);
  if (!loan.ok()) co_return WithOutcome(loan.status(), Outcome::kNotExecuted);
  co_return loan;
}

absl::StatusOr<RemoteMemory> Channel::Remote(const RemoteMemoryHandle& handle) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) return NotOnAnExecutor();
  internal::ClientSession* session = connection->usable_session();
  if (session == nullptr) {
    return absl::FailedPreconditionError(
        "the link that the memory was lent over is lost, or its server is shutting down");
  }
  absl::StatusOr<RemoteMemory> memory = internal::RemoteOver(*session->link(), handle);
  if (memory.ok()) session->NoteRemoteMemory();
  return memory;
}

namespace internal {

Task<absl::Status> UnaryCall(Channel& channel, const MethodDescriptor& method,
                             const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite& reply, CallOptions&& options) {
  if (!options.deadline.is_given()) options.deadline = channel.options().default_deadline;
  if (WantsBulk(method, options)) {
    return PayloadCall(channel, method, request, reply, std::move(options));
  }
  return EagerCall(channel, method, request, reply, options.deadline, options.info);
}

}  // namespace internal
}  // namespace verbena
