#include "verbena/rpc/server/state.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/shard/shard_device.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace {

// A refusal for overload, which says when to come again.
template <typename... Values>
absl::Status Overload(const ServerLimits& limits, fmt::format_string<Values...> text,
                      Values&&... values) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(fmt::format(text, std::forward<Values>(values)...)),
      limits.admission.retry_after);
}

// Short: they are encoded for the smallest frame. In the order of RefusalReason.
std::array<absl::Status, kRefusalReasons> RefusalStatuses(const ServerLimits& limits) {
  const AdmissionOptions& admission = limits.admission;
  const auto age_us =
      std::chrono::duration_cast<std::chrono::microseconds>(admission.max_queue_age).count();
  return {absl::UnavailableError("the server is shutting down"),
          absl::UnimplementedError("this server has no such method: give its service to "
                                   "Server::Start(), or build both sides from one .proto"),
          Overload(limits,
                   "the server's executor runs {} calls, its most: retry later, or raise "
                   "ServerOptions::max_concurrent_calls",
                   limits.max_concurrent_calls),
          Overload(limits,
                   "the server's executor runs {} calls of this client, its most: retry later, or "
                   "raise ServerOptions::max_calls_per_client",
                   limits.client.calls),
          Overload(limits,
                   "the server's executor runs {} calls of this source, its most: retry later, or "
                   "raise ServerOptions::max_calls_per_source",
                   limits.source.calls),
          Overload(limits,
                   "the server's executor has as many calls of this method as it may: retry later, "
                   "or raise its max_calls in AdmissionOptions::methods"),
          Overload(limits,
                   "the server's executor has requests of {} bytes, its most: retry later, or "
                   "raise AdmissionOptions::max_pinned_bytes",
                   admission.max_pinned_bytes),
          Overload(limits,
                   "the server's executor has requests of this client of {} bytes, its most: retry "
                   "later, or raise AdmissionOptions::max_pinned_bytes_per_client",
                   admission.max_pinned_bytes_per_client),
          Overload(limits,
                   "the server's executor has requests of this method of as many bytes as it may: "
                   "retry later, or raise its max_pinned_bytes in AdmissionOptions::methods"),
          Overload(limits,
                   "of the {} calls that may wait at the server's executor, none is left to this "
                   "client: retry later, or raise AdmissionOptions::max_queued",
                   admission.max_queued),
          Overload(limits,
                   "the server is overloaded, and the call would wait longer than {} us: retry "
                   "later, or raise AdmissionOptions::max_queue_age",
                   age_us),
          absl::ResourceExhaustedError(
              fmt::format("the server takes {} bytes of metadata with a call: send less, or raise "
                          "ServerOptions::max_metadata_bytes",
                          limits.max_metadata_bytes)),
          absl::UnimplementedError("this server's method of that name sends a stream where the "
                                   "caller's sends one message, or the reverse: build both sides "
                                   "from one .proto")};
}

// Short enough for every frame.
std::array<std::string, kRefusalReasons> Encoded(
    const std::array<absl::Status, kRefusalReasons>& refusals) {
  std::array<std::string, kRefusalReasons> bodies;
  for (size_t i = 0; i < kRefusalReasons; ++i) {
    bodies[i] = EncodeStatusBody(refusals[i], MaxBodyBytes(kMinEagerBytes));
  }
  return bodies;
}

ClientBounds SourceBounds(const ServerOptions& options, const LinkLimits& link,
                          const ClientBounds& client, bool names_source) {
  const size_t bytes = SourceShare(options.max_bytes_per_source, link.memory.receive_bytes,
                                   client.bytes, names_source);
  return {
      .calls = static_cast<uint32_t>(SourceShare(
          options.max_calls_per_source, options.max_concurrent_calls, client.calls, names_source)),
      .bytes = bytes,
      // No less than what one client may have.
      .granted = std::max(bytes / 2, client.granted),
      .responses = SourceShare(options.max_response_bytes_per_source, link.memory.send_bytes,
                               client.responses, names_source)};
}

// As operators see it: the bounds of bytes are one.
RefusalBound BoundOf(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kTooManyCalls:
      return RefusalBound::kExecutor;
    case RefusalReason::kTooManyOfAClient:
      return RefusalBound::kClient;
    case RefusalReason::kTooManyOfASource:
      return RefusalBound::kSource;
    case RefusalReason::kTooManyOfAMethod:
      return RefusalBound::kMethod;
    case RefusalReason::kTooManyBytes:
    case RefusalReason::kTooManyBytesOfAClient:
    case RefusalReason::kTooManyBytesOfAMethod:
      return RefusalBound::kBytes;
    case RefusalReason::kQueueFull:
      return RefusalBound::kQueue;
    case RefusalReason::kQueueTooOld:
      return RefusalBound::kAge;
    case RefusalReason::kTooMuchMetadata:
      return RefusalBound::kMetadata;
    case RefusalReason::kNoSuchMethod:
      return RefusalBound::kUnknownMethod;
    case RefusalReason::kStreamsOtherwise:
      return RefusalBound::kShape;
    case RefusalReason::kShuttingDown:
      break;
  }
  return RefusalBound::kShutdown;
}

}  // namespace

ServerLimits LimitsOf(const ServerOptions& options, const LinkLimits& link, DedupeTable& dedupe,
                      EarlierAttempts& earlier_attempts) {
  const uint32_t calls = options.max_concurrent_calls;
  const ClientBounds client{
      .calls = options.max_calls_per_client != 0 ? options.max_calls_per_client : calls - calls / 2,
      .bytes = ClientShare(options.max_bytes_per_client, link.memory.receive_bytes),
      .granted = link.leases.granted_bytes_per_client,
      .responses = ClientShare(options.max_response_bytes_per_client, link.memory.send_bytes)};
  return {.max_concurrent_calls = calls,
          .client = client,
          .source = SourceBounds(options, link, client, /*names_source=*/true),
          .nameless_source = SourceBounds(options, link, client, /*names_source=*/false),
          .memory_wait = options.memory_wait,
          .response_grace = options.response_grace,
          .max_metadata_bytes = options.max_metadata_bytes,
          .interceptors = options.interceptors,
          .admission = options.admission,
          .dedupe = &dedupe,
          .earlier_attempts = &earlier_attempts};
}

ServerState::ServerState(Shard& shard, const MethodTable& methods, const ServerLimits& limits)
    : shard_(shard),
      executor_(shard.executor()),
      methods_(methods),
      limits_(limits),
      refusals_(RefusalStatuses(limits)),
      refusal_bodies_(Encoded(refusals_)),
      admission_(HasBounds(limits.admission)
                     ? std::make_unique<Admission>(shard.executor(), methods, limits.admission)
                     : nullptr),
      backlog_(shard.executor(), /*is_always_asked=*/admission_ != nullptr) {}

void ServerState::WatchLag() {
  if (admission_ != nullptr && admission_->queues()) {
    admission_->Watch();
  } else {
    backlog_.Watch();
  }
}

void ServerState::Look() {
  until_look_ = kCallsPerLook;
  executor_.CheckLag();
}

void ServerState::RefuseWaiting(RefusalReason reason) {
  if (admission_ != nullptr) admission_->RefuseAll(reason);
  backlog_.RefuseAll(reason);
}

void ServerState::Stop() {
  if (admission_ != nullptr) admission_->Stop();
  backlog_.Stop();
}

const Endpoint* ServerState::AnyEndpoint() const {
  for (const std::unique_ptr<ShardDevice>& device : shard_.devices()) {
    if (device->endpoint() != nullptr) return device->endpoint();
  }
  return nullptr;
}

void ServerState::NoteRefused(RefusalReason reason) {
  ++counts_.refused;
  if (ExecutorCounts* counts = executor_counts()) {
    counts->refusals[static_cast<size_t>(BoundOf(reason))].Add(1);
  }
  switch (reason) {
    case RefusalReason::kTooManyCalls:
      ++counts_.refusals.executor;
      break;
    case RefusalReason::kTooManyOfAClient:
      ++counts_.refusals.client;
      break;
    case RefusalReason::kTooManyOfASource:
      ++counts_.refusals.source;
      break;
    case RefusalReason::kTooManyOfAMethod:
      ++counts_.refusals.method;
      break;
    case RefusalReason::kTooManyBytes:
    case RefusalReason::kTooManyBytesOfAClient:
    case RefusalReason::kTooManyBytesOfAMethod:
      ++counts_.refusals.bytes;
      break;
    case RefusalReason::kQueueFull:
      ++counts_.refusals.queue;
      break;
    case RefusalReason::kQueueTooOld:
      ++counts_.refusals.age;
      break;
    case RefusalReason::kShuttingDown:
    case RefusalReason::kNoSuchMethod:
    case RefusalReason::kTooMuchMetadata:
    case RefusalReason::kStreamsOtherwise:
      break;
  }
}

ServerStats ServerState::stats() const {
  ServerStats stats = counts_;
  stats.granted_bytes = receive_->grants;
  stats.queued = backlog_.waiting() + (admission_ != nullptr ? admission_->waiting() : 0);
  const auto add = [](ServerMemory& sum, const BufferPool& pool) {
    const BufferPoolStats pooled = pool.stats();
    sum.budget += pooled.budget_bytes;
    sum.in_use += pooled.bytes_in_use;
    sum.waiting += pooled.waiting;
    sum.waits += pooled.waits;
  };
  for (const std::unique_ptr<ShardDevice>& device : shard_.devices()) {
    const Endpoint* endpoint = device->endpoint();
    if (endpoint == nullptr) continue;
    add(stats.receive_memory, endpoint->memory().receive());
    add(stats.send_memory, endpoint->memory().send());
  }
  stats.receive_memory.granted = receive_->grants;
  stats.receive_memory.in_transfers = receive_->transfers;
  stats.send_memory.granted = send_.grants;
  stats.send_memory.in_transfers = send_.transfers;
  return stats;
}

void ServerState::LogThrown(const char* method, const char* what) {
  VERBENA_LOG_THROTTLED(thrown_, kError, executor().now(),
                        fmt::format("the handler of {} threw: {}", method, what),
                        {{"method", method}});
}

// The exception's text goes to the log only: it may hold what the callers must not see.
absl::Status ServerState::Thrown(const char* method) {
  try {
    throw;
  } catch (const std::exception& error) {
    LogThrown(method, error.what());
  } catch (...) {
    LogThrown(method, "something unknown");
  }
  return absl::InternalError(
      fmt::format("the handler of {} threw an exception: see the server's log", method));
}

const absl::Status& ServerState::UnlessLeft(const absl::Status& ended,
                                            const CancelScope& cancel) const {
  const bool is_left =
      draining_ && absl::IsCancelled(ended) && cancel.reason() == absl::StatusCode::kCancelled;
  return is_left ? RefusalStatus(RefusalReason::kShuttingDown) : ended;
}

absl::Status NoTask(const char* method) {
  return absl::InternalError(
      fmt::format("the handler of {} returned an empty Task: make the handler a coroutine "
                  "(co_return), or return a Task that has not been awaited or moved from",
                  method));
}

}  // namespace verbena::internal
