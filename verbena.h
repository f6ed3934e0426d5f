// All public headers of Verbena. Programs that do not mind how long they compile include this one.
//
// The smaller headers that it includes are one for each area: docs/guide.md has a table of them.
//
//   #include "verbena/verbena.h"

#ifndef VERBENA_VERBENA_H_
#define VERBENA_VERBENA_H_

#include "verbena/rpc/admission.h"         // IWYU pragma: export
#include "verbena/rpc/annotate.h"          // IWYU pragma: export
#include "verbena/rpc/balancing.h"         // IWYU pragma: export
#include "verbena/rpc/bootstrap.h"         // IWYU pragma: export
#include "verbena/rpc/buffer.h"            // IWYU pragma: export
#include "verbena/rpc/call_context.h"      // IWYU pragma: export
#include "verbena/rpc/call_options.h"      // IWYU pragma: export
#include "verbena/rpc/channel.h"           // IWYU pragma: export
#include "verbena/rpc/client_stream.h"     // IWYU pragma: export
#include "verbena/rpc/deadline.h"          // IWYU pragma: export
#include "verbena/rpc/dedupe.h"            // IWYU pragma: export
#include "verbena/rpc/etcd.h"              // IWYU pragma: export
#include "verbena/rpc/executor.h"          // IWYU pragma: export
#include "verbena/rpc/file.h"              // IWYU pragma: export
#include "verbena/rpc/handshake_limits.h"  // IWYU pragma: export
#include "verbena/rpc/interceptor.h"       // IWYU pragma: export
#include "verbena/rpc/limits.h"            // IWYU pragma: export
#include "verbena/rpc/loan.h"              // IWYU pragma: export
#include "verbena/rpc/log.h"               // IWYU pragma: export
#include "verbena/rpc/metadata.h"          // IWYU pragma: export
#include "verbena/rpc/method.h"            // IWYU pragma: export
#include "verbena/rpc/outcome.h"           // IWYU pragma: export
#include "verbena/rpc/payload.h"           // IWYU pragma: export
#include "verbena/rpc/registration.h"      // IWYU pragma: export
#include "verbena/rpc/remote_memory.h"     // IWYU pragma: export
#include "verbena/rpc/reopen_backoff.h"    // IWYU pragma: export
#include "verbena/rpc/resolver.h"          // IWYU pragma: export
#include "verbena/rpc/retry.h"             // IWYU pragma: export
#include "verbena/rpc/retry_after.h"       // IWYU pragma: export
#include "verbena/rpc/runtime.h"           // IWYU pragma: export
#include "verbena/rpc/server.h"            // IWYU pragma: export
#include "verbena/rpc/server_context.h"    // IWYU pragma: export
#include "verbena/rpc/server_stream.h"     // IWYU pragma: export
#include "verbena/rpc/service.h"           // IWYU pragma: export
#include "verbena/rpc/service_config.h"    // IWYU pragma: export
#include "verbena/rpc/stats.h"             // IWYU pragma: export
#include "verbena/rpc/stream_awaits.h"     // IWYU pragma: export
#include "verbena/rpc/stream_interface.h"  // IWYU pragma: export
#include "verbena/rpc/sync.h"              // IWYU pragma: export
#include "verbena/rpc/task.h"              // IWYU pragma: export
#include "verbena/rpc/time.h"              // IWYU pragma: export
#include "verbena/rpc/unary_call.h"        // IWYU pragma: export
#include "verbena/rpc/version.h"           // IWYU pragma: export
#include "verbena/rpc/with_payload.h"      // IWYU pragma: export

#endif  // VERBENA_VERBENA_H_
