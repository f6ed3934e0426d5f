// The commands that ask a server by calls: call, list, describe and health.
//
// Each makes a runtime of one executor for itself, and returns the exit status of the process. What
// goes wrong is one line of `error`. On the calling thread, which runs no executor.

#ifndef VERBENA_TOOLS_VERBENA_CALLS_H_
#define VERBENA_TOOLS_VERBENA_CALLS_H_

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace verbena::command {

// Exit statuses. A call that fails has kFailedCall and the number of its absl::StatusCode: 69
// (NOT_FOUND), 78 (UNAVAILABLE).
inline constexpr int kNotServing = 1;
inline constexpr int kMistake = 2;  // in the arguments or the JSON: nothing was called
inline constexpr int kFailedCall = 64;

// Where a command reads and writes. Borrowed.
struct Terminal {
  int input = 0;  // a descriptor
  std::ostream& output;
  std::ostream& error;
};

// What all these commands take.
struct ServerArguments {
  std::string target;
  std::string deadline = "10s";  // "none", or a number and us, ms, s, m or h
  std::string device = "auto";   // RuntimeOptions::device
};

struct CallArguments : ServerArguments {
  std::string method;
  std::string json = "{}";            // JSON, "-" or "@FILE"; JSON lines if the client streams
  std::vector<std::string> metadata;  // "key=value"; base64 for keys that end in "-bin"
  std::vector<std::string> payloads;  // files, one for each message of the client
  std::string payload_out;            // a file
  bool wait = false;                  // until a server is ready
  bool pretty = false;
  bool defaults = false;
  bool verbose = false;
};

int RunCall(const CallArguments& arguments, Terminal& terminal);

struct ListArguments : ServerArguments {
  bool methods = false;
};

int RunList(const ListArguments& arguments, Terminal& terminal);

struct NameArguments : ServerArguments {
  std::string name;
};

int RunDescribe(const NameArguments& arguments, Terminal& terminal);
int RunHealth(const NameArguments& arguments, Terminal& terminal);

// For the commands of other files.

// The deadline that `text` says. The failure, a Mistake(), names the text.
absl::StatusOr<Deadline> ParseDeadline(const std::string& text);
// RuntimeOptions::device. The failure is a Mistake(): nothing has been called.
absl::StatusOr<std::unique_ptr<Runtime>> StartRuntime(const std::string& device);
// Writes a failure in one line, Printable(), and returns its exit status.
int Fail(const absl::Status& status, Terminal& terminal);

// Runs `command` on a runtime of its own against the server of `arguments`, which are
// ServerArguments or more. Returns the exit status that the Task gives, or that of the failure that
// it prints.
template <typename Arguments>
int RunOnChannel(const Arguments& arguments, Terminal& terminal,
                 Task<absl::StatusOr<int>> (*command)(Channel&, const Arguments&, Deadline,
                                                      Terminal&)) {
  const absl::StatusOr<Deadline> deadline = ParseDeadline(arguments.deadline);
  if (!deadline.ok()) return Fail(deadline.status(), terminal);
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = StartRuntime(arguments.device);
  if (!runtime.ok()) return Fail(runtime.status(), terminal);
  Channel channel(**runtime, arguments.target);
  const absl::StatusOr<int> exit =
      (*runtime)->BlockOn(command(channel, arguments, *deadline, terminal));
  return exit.ok() ? *exit : Fail(exit.status(), terminal);
}

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_CALLS_H_
