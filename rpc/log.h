// The log, its levels and its sink; and VERBENA_CHECK, which release builds evaluate, too.
//
// One sink serves the process; it is called on any thread, perhaps on several at once, and must not
// call Verbena. Logging never fails. A check that fails logs, then aborts the process.
//
//   SetLogSink([](LogLevel level, const std::string& message) { MyLog(level, message); });
//   VERBENA_CHECK(offset % kBlockBytes == 0) << "offset " << offset;

#ifndef VERBENA_RPC_LOG_H_
#define VERBENA_RPC_LOG_H_

#include "verbena/transport/base/check.h"  // IWYU pragma: export
#include "verbena/transport/base/log.h"    // IWYU pragma: export

#endif  // VERBENA_RPC_LOG_H_
