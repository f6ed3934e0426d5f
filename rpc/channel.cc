#include "verbena/rpc/channel.h"

#include <utility>

#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/shard.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/executor/executor_gate.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

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

// The deadline of the Task that asks for memory, or for a loan.
TimePoint AmbientDeadline(const TaskContext& context) {
  return VERBENA_MUTANT(kMemoryOutwaitsTheTask) ? kNever : context.deadline();
}

}  // namespace

Channel::Channel(Runtime& runtime, std::string target, ChannelOptions options)
    : runtime_(runtime),
      target_(std::move(target)),
      options_(std::move(options)),
      uses_(runtime.executors()) {
  VERBENA_CHECK(options_.server_executor >= -1 &&
                (options_.server_executor == -1 || options_.server_key == 0))
      << "server_executor is " << options_.server_executor << " and server_key is "
      << options_.server_key << ": set at most one of them, server_executor to -1 or more";
  VERBENA_CHECK(options_.max_metadata_bytes <= Metadata::kMaxBytes)
      << "max_metadata_bytes is " << options_.max_metadata_bytes << ", its range 0 to "
      << Metadata::kMaxBytes;
  for (const auto& interceptor : options_.interceptors) {
    VERBENA_CHECK(interceptor != nullptr) << "one of ChannelOptions::interceptors is null";
  }
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
  if (connection == nullptr) co_return internal::NotOnAnExecutor();
  absl::Status ready = co_await connection->Ready();
  if (!ready.ok()) co_return WithOutcome(std::move(ready), Outcome::kNotExecuted);
  co_return ready;
}

Task<absl::StatusOr<Buffer>> Channel::AllocateBuffer(size_t bytes) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return internal::NotOnAnExecutor();
  const TimePoint deadline = AmbientDeadline(co_await CurrentContext());
  absl::StatusOr<internal::ClientSession*> session = co_await connection->Session(deadline);
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  const internal::Endpoint& endpoint = (*session)->endpoint();
  absl::StatusOr<Buffer> buffer =
      co_await AllocateUntil(endpoint, endpoint.memory().send(), bytes, {.deadline = deadline});
  if (!buffer.ok()) co_return WithOutcome(buffer.status(), Outcome::kNotExecuted);
  co_return buffer;
}

Task<absl::StatusOr<std::string>> Channel::DeviceName() {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return internal::NotOnAnExecutor();
  absl::StatusOr<internal::ClientSession*> session = co_await connection->Session({});
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  co_return (*session)->endpoint().device_name();
}

Task<absl::StatusOr<Loan>> Channel::Lend(BufferView view, LeaseAccess access) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) co_return internal::NotOnAnExecutor();
  const TimePoint deadline = AmbientDeadline(co_await CurrentContext());
  absl::StatusOr<internal::ClientSession*> session = co_await connection->Session(deadline);
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  absl::StatusOr<Loan> loan =
      co_await internal::LendOver(*(*session)->link(), view, access, deadline);
  if (!loan.ok()) co_return WithOutcome(loan.status(), Outcome::kNotExecuted);
  co_return loan;
}

absl::StatusOr<RemoteMemory> Channel::Remote(const RemoteMemoryHandle& handle) {
  internal::Connection* connection = ConnectionHere();
  if (connection == nullptr) return internal::NotOnAnExecutor();
  internal::ClientSession* session = connection->usable_session();
  if (session == nullptr) {
    return absl::FailedPreconditionError(
        "the link that the memory was lent over is lost, or its server is shutting down");
  }
  absl::StatusOr<RemoteMemory> memory = internal::RemoteOver(*session->link(), handle);
  if (memory.ok()) session->NoteRemoteMemory();
  return memory;
}

}  // namespace verbena
