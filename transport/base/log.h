// Log: the one place where Verbena says something that no caller asked for.
//
// Messages are rare (set-up, teardown, refused peers), never one per call. The default sink writes
// a line to standard error; an embedding program sets its own. Safe from any thread.
//
//   Log(LogLevel::kWarning, fmt::format("SRQ shrunk to {} receives: …", depth));

#ifndef VERBENA_TRANSPORT_BASE_LOG_H_
#define VERBENA_TRANSPORT_BASE_LOG_H_

#include <string>

namespace verbena {

enum class LogLevel { kInfo, kWarning, kError };

// Called from any thread, perhaps from several at once; must not call back into Verbena.
using LogSink = void (*)(LogLevel level, const std::string& message);

// nullptr restores the default sink, which prints kWarning and worse (all, when VERBENA_LOG=info is
// set).
void SetLogSink(LogSink sink);

// From any thread. An exception of the sink is dropped: nothing that fails may fail because of its
// log line.
void Log(LogLevel level, const std::string& message) noexcept;

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_BASE_LOG_H_
