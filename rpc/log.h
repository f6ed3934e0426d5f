// The log: its levels, its components and its sink; and VERBENA_CHECK, which release builds
// evaluate, too.
//
// Verbena logs rarely: what is set up or ends, peers that are refused, devices that fail. Each line
// is a sentence, with a level, the component that writes it, and fields to filter by. Components
// log from "warning" on, unless SetLogLevels() or the environment variable VERBENA_LOG says
// otherwise; the levels may change while the process runs. Lines go to standard error, or to the
// sink that the program sets. It is called on any thread, perhaps on several at once, and must not
// call Verbena. Logging never fails. A check that fails logs, then aborts the process.
//
//   SetLogSink([&my_log](const LogRecord& record) {
//     my_log.Write(LogLevelName(record.level), LogComponentName(record.component), record.text);
//   });
//   absl::Status set = SetLogLevels("warning,link=debug");
//   VERBENA_CHECK(offset % kBlockBytes == 0) << "offset " << offset;

#ifndef VERBENA_RPC_LOG_H_
#define VERBENA_RPC_LOG_H_

#include <string>

#include "verbena/transport/base/check.h"  // IWYU pragma: export
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/log.h"  // IWYU pragma: export

namespace verbena {

// Writes a line of the program itself, as component kApplication. From any thread; an exception of
// the sink is dropped.
VERBENA_EXPORT void Log(LogLevel level, const std::string& text) noexcept;

}  // namespace verbena

#endif  // VERBENA_RPC_LOG_H_
