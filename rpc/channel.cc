#include "verbena/rpc/channel.h"

#include <utility>

#include "verbena/rpc/allocate.h"
#include "verbena/rpc/bulk_call.h"
#include "verbena/rpc/client_call.h"
#include "verbena/rpc/connection.h"
#include "verbena/rpc/shard.h"
#include "verbena/rpc/stub.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena {
namespace {

absl::Status NotOnAnExecutor() {
  return absl::FailedPreconditionError(
      "a call was made on a thread that runs no executor of the channel's runtime; use "
      "Runtime::BlockOn(task) or Runtime::Spawn(task)");
}

// UNAVAILABLE when there is none before `deadline`.
Task<absl::StatusOr<ClientLink*>> LinkOf(Connection& connection, Deadline deadline) {
  while (connection.usable_link() == nullptr) {
    absl::Status ready = co_await WithDeadline(connection.Ready(), deadline.when());
    if (!ready.ok()) co_return ready;
  }
  co_return connection.usable_link();
}

// A call that moves nothing one-sided, unless it turns out that its messages must.
Task<absl::Status> EagerCall(Channel& channel, const MethodDescriptor& method,
                             const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite& reply, Deadline deadline,
                             CallInfo* info) {
  Connection* connection = channel.ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotSent);
  ClientLink* link = connection->usable_link();
  if (link == nullptr) {
    absl::StatusOr<ClientLink*> found = co_await LinkOf(*connection, deadline);
    if (!found.ok()) co_return WithOutcome(found.status(), Outcome::kNotSent);
    link = *found;
  }
  const size_t request_bytes = request.ByteSizeLong();
  if (request_bytes > link->link()->max_body_bytes()) {
    co_return co_await BulkCall(*connection, method, request, reply,
                                {.deadline = deadline, .info = info});
  }
  ClientCall call(*link, connection->shard().executor(), method, request, reply, deadline, info,
                  request_bytes);
  absl::Status status = co_await call;
  if (!call.landing_needed()) co_return status;
  co_return co_await FinishInLanding(call, reply, deadline, info);
}

Task<absl::Status> PayloadCall(Channel& channel, const MethodDescriptor& method,
                               const google::protobuf::MessageLite& request,
                               google::protobuf::MessageLite& reply, CallOptions options) {
  Connection* connection = channel.ConnectionHere();
  if (connection == nullptr) co_return WithOutcome(NotOnAnExecutor(), Outcome::kNotSent);
  co_return co_await BulkCall(*connection, method, request, reply, std::move(options));
}

}  // namespace

Channel::Channel(Runtime& runtime, std::string target, ChannelOptions options)
    : runtime_(runtime),
      target_(std::move(target)),
      options_(options),
      connections_(runtime.executors()) {}

Connection* Channel::ConnectionHere() {
  Shard* shard = runtime_.CurrentShard();
  if (shard == nullptr) return nullptr;
  Connection*& connection = connections_[shard->index()];
  if (connection == nullptr) {
    const uint32_t server_executor = options_.server_executor >= 0
                                         ? static_cast<uint32_t>(options_.server_executor)
                                         : shard->index();
    connection = &shard->ConnectionTo(target_, server_executor);
  }
  return connection;
}

Task<absl::Status> Channel::Connect() {
  Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return NotOnAnExecutor();
  co_return co_await connection->Ready();
}

Task<absl::StatusOr<Buffer>> Channel::AllocateBuffer(size_t bytes) {
  Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return NotOnAnExecutor();
  absl::StatusOr<ClientLink*> link = co_await LinkOf(*connection, {});
  if (!link.ok()) co_return link.status();
  const PayloadMemory& memory = (*link)->link()->endpoint().memory();
  co_return co_await AllocateUntil(memory.send(), bytes, kNever);
}

Task<absl::StatusOr<Loan>> Channel::Lend(BufferView view, LeaseAccess access) {
  Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return NotOnAnExecutor();
  absl::StatusOr<ClientLink*> link = co_await LinkOf(*connection, {});
  if (!link.ok()) co_return link.status();
  co_return co_await internal::LendOver(*(*link)->link(), view, access);
}

absl::StatusOr<RemoteMemory> Channel::Remote(const RemoteMemoryHandle& handle) {
  Connection* connection = ConnectionHere();
  if (connection == nullptr) return NotOnAnExecutor();
  ClientLink* link = connection->usable_link();
  if (link == nullptr) {
    return absl::FailedPreconditionError("the link that the memory was lent over is lost");
  }
  return internal::RemoteOver(*link->link(), handle);
}

namespace internal {

Task<absl::Status> UnaryCall(Channel& channel, const MethodDescriptor& method,
                             const google::protobuf::MessageLite& request,
                             google::protobuf::MessageLite& reply, CallOptions&& options) {
  if (WantsBulk(method, options)) {
    return PayloadCall(channel, method, request, reply, std::move(options));
  }
  return EagerCall(channel, method, request, reply, options.deadline, options.info);
}

}  // namespace internal
}  // namespace verbena
