// Deduplication: calls that a server runs at most once, however often they are repeated.
//
// A method that its .proto marks with `option (verbena.method) = { dedupe: true }` gives each call
// a name, the same in each attempt: random bits of the channel, and a number. The server keeps the
// results of recent calls (DedupeOptions). A repeated request gets the kept result, payload
// included, or waits for the call that runs. A call runs until its handler has ended, and no change
// of a file goes on that an await of the handler has left. If a good result was lost on its way,
// for example for lack of memory, the caller hears kMaybeExecuted, and may repeat the call. A
// server that has dropped the result, has restarted since, or may have forgotten the client cannot
// prove that the call has not run. It refuses the request with ABORTED and Outcome::kMaybeExecuted,
// unless the service stores names with its data (DedupeStore).
//
// A call that is given no token has one of its own, which all attempts of a RetryPolicy (policy.h)
// share. A caller who repeats a call by hand gives all its attempts one token:
//
//   DedupeToken token;
//   absl::Status status;
//   for (int attempt = 0; attempt < 3; ++attempt) {
//     status = co_await stub.Add(request, reply, {.deadline = 1s, .dedupe = &token});
//     if (!absl::IsUnavailable(status)) break;
//   }

#ifndef VERBENA_RPC_DEDUPE_H_
#define VERBENA_RPC_DEDUPE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {
class DedupeAttempt;
class DedupeClient;
}  // namespace internal

// One logical call, for all its attempts. They must have the same request, and go through the same
// channel on the same executor; others fail with INVALID_ARGUMENT. The token belongs to the caller,
// on that executor's thread, and must outlive the attempts. Its destruction tells the server, with
// a later call of the channel, that nobody needs the result any more.
//
//   precondition                   how it is checked   test
//   one request for all attempts   INVALID_ARGUMENT    dedupe_test
//   the method is deduplicated     INVALID_ARGUMENT    dedupe_test
//   outlives its attempts          not checked
class VERBENA_EXPORT DedupeToken {
 public:
  DedupeToken() = default;
  DedupeToken(const DedupeToken&) = delete;
  DedupeToken& operator=(const DedupeToken&) = delete;
  ~DedupeToken();

  // The call's name. None before the first attempt has found a link.
  std::optional<RequestId> id() const;
  // Whether an attempt may have run the call, or may still do so. Once it is true, it becomes false
  // only when servers say that they have not run it.
  bool may_have_run() const { return unsent_ > 0 || unknown_ || !sent_.empty(); }

 private:
  friend class internal::DedupeAttempt;

  // A server that may have run the call.
  struct Place {
    uint64_t incarnation = 0;
    uint32_t attempts = 0;
  };
  // More servers than this count as unknown ones.
  static constexpr size_t kMaxPlaces = 8;

  std::shared_ptr<internal::DedupeClient> client_;  // null before the first attempt
  uint64_t number_ = 0;                             // 0: none yet
  uint32_t unsent_ = 0;                             // attempts that have begun and were not sent
  bool unknown_ = false;                            // it may have run at a server without a name
  absl::InlinedVector<Place, 1> sent_;
};

// A result that a service has stored with its data.
struct DedupeResult {
  // The serialized reply.
  std::string reply;
  // The response's payload, if it had one.
  std::optional<std::string> payload = {};
};

// The names of calls that a service keeps with its data, so that a call is not run twice even if
// the server restarts in between. The handler writes name, reply and data in one atomic batch:
//
//   batch.Put(key, value);
//   batch.Put(NameKey(*context.dedupe_id()), reply.SerializeAsString());
//   … delete the names of that client below context.dedupe_acknowledged_below() …
//   VERBENA_CO_RETURN_IF_ERROR(co_await Commit(std::move(batch)));
//
// A store that is bounded removes names which nobody has acknowledged, too. Once it has done so, it
// cannot tell a new client from one that it has forgotten: of a client that it does not know, calls
// up to context.dedupe_highest() may have run. Calls with higher numbers come since, if each client
// that was forgotten had been idle for 2 * DedupeOptions::keep_for, longer than a request takes.
// Otherwise, and if the number is 0, any call of the client may have run. That ends with the first
// request that tells a number and comes 2 * keep_for after the last activity of all clients that
// the store had forgotten when this client came. Then only calls up to that number may have run.
//
// A handler that cannot tell whether its commit has taken effect returns
// ServerContext::MaybeExecuted(), or throws, so that a repeated request asks the store.
// A store is implemented by users, given to ServerOptions::dedupe, and must outlive the server. It
// is called on each executor, possibly at once.
//
//   precondition                         how it is checked   test
//   outlives the server                  not checked
//   safe on several executors at once    not checked
class DedupeStore {
 public:
  virtual ~DedupeStore() = default;
  // The result of the call with that name, or none if no such call has committed: then the handler
  // runs. The server asks only for repeated requests whose result it does not have in memory;
  // meanwhile no other request with that name runs, and no change of a file goes on that an earlier
  // run at this server has left. A failed Status means that the store cannot tell, for example
  // because the name is older than those that it keeps: the caller hears kMaybeExecuted. If several
  // servers share the data, the handler's commit itself must refuse a name that is there already,
  // since another server may run the same call.
  virtual Task<absl::StatusOr<std::optional<DedupeResult>>> Lookup(RequestId id) = 0;
};

// The results of deduplicated calls that a server keeps, over all its executors. When a bound is
// reached, the table takes the source address that has the most of them, of its clients the one
// that has the most, and drops that one's oldest results. So no client pushes out the results of
// those that have less.
struct DedupeOptions {
  // Results of calls that have ended, 1 to 16777216.
  size_t max_results = 65536;
  // Bytes of the results' replies, payloads, metadata and failures, max_result_bytes or more.
  // Payloads that running handlers write in pieces may take as much again. A result whose payload
  // finds no room there is not kept, just as one that is too large.
  size_t max_bytes = size_t{64} << 20;
  // The server keeps no larger result, but only that the call has run: a repeated request fails
  // with RESOURCE_EXHAUSTED and Outcome::kExecuted. At most max_bytes.
  size_t max_result_bytes = size_t{1} << 20;
  // A result that nobody acknowledged is dropped after this long: more than 0. The server takes for
  // granted that no request is longer on its way from its client.
  Duration keep_for = std::chrono::minutes(5);
  // The names that the service stores with its data; null: it stores none.
  DedupeStore* store = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_RPC_DEDUPE_H_
