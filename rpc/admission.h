// AdmissionOptions: which calls a server starts, and when, if more come than it can serve.
//
// Owned by the caller of Server::Start(), which copies it. Each bound holds on each executor by
// itself. Without any bound set, each call starts when it arrives, and pays nothing.
//
// With max_running, calls that arrive wait in a queue. The executor starts a few of them, polls for
// more calls, and starts the next few. So it sees how long its queue is, even if handlers never
// suspend. Source addresses take turns, each with one call, and so do the clients of each. Calls of
// the priorities control, normal and background wait in queues of their own. A call that has waited
// for longer than max_queue_age is refused. A call that would wait for longer is refused when it
// arrives. So an overloaded server answers what it can in good time, and refuses the other calls at
// once.
//
// A refusal is RESOURCE_EXHAUSTED with a retry_after (retry_after.h) and the outcome not_executed.
// A refusal never closes a link. ServerStats counts refusals by their bound.
//
//   Server::Start(runtime, {&kv}, {.admission = {.max_running = 64,
//                                                .max_queue_age = 2ms,
//                                                .methods = {{"kv.Kv/Scan", {.max_calls = 4}}}}});

#ifndef VERBENA_RPC_ADMISSION_H_
#define VERBENA_RPC_ADMISSION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "verbena/transport/base/clock.h"

namespace verbena {

// Bounds of one method; 0 is no bound. A call counts from its arrival to its end.
struct MethodLimits {
  uint32_t max_calls = 0;
  // Bytes of the calls' requests: payloads, and messages that do not fit a frame. A larger request
  // is accepted while no other one counts.
  size_t max_pinned_bytes = 0;
};

struct AdmissionOptions {
  // Handlers that run at once; further calls wait in the queue. 0, the default: no queue. If no
  // handler ever suspends, one runs at a time anyway, and any number will do. A stream waits in the
  // queue, but does not count once its handler runs. Control calls do not count. The next four need
  // max_running: setting one of them without it is INVALID_ARGUMENT.
  uint32_t max_running = 0;
  // Handlers of one client that run at once. 0, the default: half of max_running, rounded up.
  uint32_t max_running_per_client = 0;
  // Handlers of all clients of one source address that run at once. 0, the default: three quarters
  // of max_running, rounded up, or max_running_per_client if that is more; no bound for clients of
  // a FileBootstrap.
  uint32_t max_running_per_source = 0;
  // Places in the queue, 1 to 65536. Background calls take half of them at most. A client gets a
  // further place while it has fewer places than are free. The clients of one source have three
  // quarters of the places at most; clients of a FileBootstrap have this bound only if
  // max_running_per_source is set. So neither a client nor a source fills the queue.
  uint32_t max_queued = 1024;
  // The longest wait of a call in the queue, at least 1 us. (start)
  Duration max_queue_age = std::chrono::milliseconds(5);
  // Bytes of the requests of one client, and of all clients, counted as in MethodLimits. 0, the
  // default: no bound. A call beyond them is refused at once. A call within them may still wait for
  // memory, as ServerOptions says.
  size_t max_pinned_bytes_per_client = 0;
  size_t max_pinned_bytes = 0;
  // Places for control calls beyond all bounds of calls except their method's. As in the queue, a
  // client gets a further place while it has fewer than are free, and one source has three quarters
  // at most. Further control calls count as normal ones. With 0, all do. Has an effect only if some
  // other bound is set. Control streams count as normal ones.
  uint32_t control_places = 64;
  // The wait that refusals ask of their callers. Holds for refusals by the bounds of calls in
  // ServerOptions, too.
  Duration retry_after = std::chrono::milliseconds(10);
  // By full name, "package.Service/Method". Server::Start() fails with NOT_FOUND if it serves no
  // such method.
  std::map<std::string, MethodLimits> methods = {};
};

}  // namespace verbena

#endif  // VERBENA_RPC_ADMISSION_H_
