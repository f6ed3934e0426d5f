// All public headers of Verbena. Programs that do not mind how long they compile include this one.
//
// Each header that it includes is a chapter of its own: docs/guide.md has a table of them.
//
//   #include "verbena/verbena.h"

#ifndef VERBENA_VERBENA_H_
#define VERBENA_VERBENA_H_

#include "verbena/rpc/admin.h"        // IWYU pragma: export
#include "verbena/rpc/call.h"         // IWYU pragma: export
#include "verbena/rpc/channel.h"      // IWYU pragma: export
#include "verbena/rpc/dedupe.h"       // IWYU pragma: export
#include "verbena/rpc/etcd.h"         // IWYU pragma: export
#include "verbena/rpc/file.h"         // IWYU pragma: export
#include "verbena/rpc/interceptor.h"  // IWYU pragma: export
#include "verbena/rpc/log.h"          // IWYU pragma: export
#include "verbena/rpc/memory.h"       // IWYU pragma: export
#include "verbena/rpc/metrics.h"      // IWYU pragma: export
#include "verbena/rpc/policy.h"       // IWYU pragma: export
#include "verbena/rpc/reflection.h"   // IWYU pragma: export
#include "verbena/rpc/resolver.h"     // IWYU pragma: export
#include "verbena/rpc/runtime.h"      // IWYU pragma: export
#include "verbena/rpc/server.h"       // IWYU pragma: export
#include "verbena/rpc/service.h"      // IWYU pragma: export
#include "verbena/rpc/status.h"       // IWYU pragma: export
#include "verbena/rpc/stream.h"       // IWYU pragma: export
#include "verbena/rpc/task.h"         // IWYU pragma: export
#include "verbena/rpc/version.h"      // IWYU pragma: export

#endif  // VERBENA_VERBENA_H_
