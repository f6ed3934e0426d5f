// The BAD and GOOD pairs of docs/guide.md. They compile; nothing calls the BAD ones.

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace guide {

using namespace std::chrono_literals;
using verbena::Channel;
using verbena::ClientReader;
using verbena::Runtime;
using verbena::Task;
using verbena::TaskScope;

std::string MakeName() { return "block"; }
std::string ReadWholeFile(const std::string& path) { return path; }

Task<absl::StatusOr<v1::StatReply>> Stat(Channel& channel, const std::string& name) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(name);
  co_return co_await blocks.Stat(request);
}

namespace bad_argument {
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdangling"
// BAD: MakeName() returns a string that dies at the semicolon, before the Task begins.
Task<void> Start(Channel& channel) {
  Task<absl::StatusOr<v1::StatReply>> task = Stat(channel, MakeName());
  (void)co_await std::move(task);
}
#pragma clang diagnostic pop
}  // namespace bad_argument

namespace good_argument {
// GOOD: a temporary lives until the co_await that it is part of ends.
Task<void> Start(Channel& channel) { (void)co_await Stat(channel, MakeName()); }
}  // namespace good_argument

namespace bad_rvalue {
// NOLINTBEGIN(rvalues)
// BAD: `name` is still the variable of Start(), which dies first. No compiler warns.
Task<void> StatLater(Channel& channel, std::string&& name) {
  if (!(co_await verbena::Sleep(1ms)).ok()) co_return;
  (void)co_await Stat(channel, name);
}
void Start(TaskScope& scope, Channel& channel, std::string name) {
  scope.Spawn(StatLater(channel, std::move(name)));
}
// NOLINTEND(rvalues)
}  // namespace bad_rvalue

namespace good_rvalue {
// GOOD: the coroutine owns its name.
Task<void> StatLater(Channel& channel, std::string name) {
  if (!(co_await verbena::Sleep(1ms)).ok()) co_return;
  (void)co_await Stat(channel, name);
}
void Start(TaskScope& scope, Channel& channel, std::string name) {
  scope.Spawn(StatLater(channel, std::move(name)));
}
}  // namespace good_rvalue

namespace bad_request {
template <typename Call>
concept MaySpawn = requires(Runtime& runtime, verbena::Executor& executor, Call call) {
  runtime.Spawn(std::move(call));
  verbena::Spawn(executor, std::move(call));
};
template <typename Request>
using StatOf = decltype(std::declval<const v1::Blocks::Stub&>().Stat(std::declval<Request>()));
using StatInto = decltype(std::declval<const v1::Blocks::Stub&>().Stat(
    std::declval<const v1::StatRequest&>(), std::declval<v1::StatReply&>()));
static_assert(MaySpawn<StatOf<v1::StatRequest>>);
static_assert(!MaySpawn<StatOf<v1::StatRequest&>> && !MaySpawn<StatInto>);
#if 0
// BAD: the call borrows `request`, which dies when Start() returns. Spawn() does not compile.
void Start(Runtime& runtime, const v1::Blocks::Stub& blocks, std::string name) {
  v1::StatRequest request;
  request.set_name(std::move(name));
  (void)runtime.Spawn(blocks.Stat(request));
}
#endif
}  // namespace bad_request

namespace good_request {
// GOOD: the call owns its request.
void Start(Runtime& runtime, const v1::Blocks::Stub& blocks, std::string name) {
  v1::StatRequest request;
  request.set_name(std::move(name));
  (void)runtime.Spawn(blocks.Stat(std::move(request)));
}
}  // namespace good_request

namespace bad_read {
// BAD: the first await begins the stream, which takes over the deadline: all of it has one second.
Task<absl::Status> Watch(const v1::Names::Stub& names, std::vector<std::string>& seen) {
  ClientReader<v1::Name> reader = names.List({});
  v1::Name name;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                                co_await verbena::WithDeadline(reader.TryRead(name), 1s));
    if (!read) co_return co_await reader.Finish();
    seen.push_back(name.name());
  }
}
}  // namespace bad_read

namespace good_read {
// GOOD: the stream takes over nothing, and each Read has one second.
Task<absl::Status> Watch(const v1::Names::Stub& names, std::vector<std::string>& seen) {
  ClientReader<v1::Name> reader = names.List({}, {.inherit = verbena::Inherit::kNothing});
  v1::Name name;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                                co_await verbena::WithDeadline(reader.TryRead(name), 1s));
    if (!read) co_return co_await reader.Finish();
    seen.push_back(name.name());
  }
}
}  // namespace good_read

namespace bad_capture {
// BAD: the lambda and its captures die when Start() returns. The coroutine still uses them.
void Start(TaskScope& scope, Channel& channel, std::string name) {
  auto stat = [&channel, name]() -> Task<void> {
    if (!(co_await verbena::Sleep(1ms)).ok()) co_return;
    (void)co_await Stat(channel, name);
  };
  scope.Spawn(stat());
}
}  // namespace bad_capture

namespace good_capture {
// GOOD: the scope keeps the lambda until the coroutine has ended.
void Start(TaskScope& scope, Channel& channel, std::string name) {
  scope.Spawn([&channel, name]() -> Task<void> {
    if (!(co_await verbena::Sleep(1ms)).ok()) co_return;
    (void)co_await Stat(channel, name);
  });
}
}  // namespace good_capture

namespace handing_on {
Task<absl::StatusOr<v1::StatReply>> StatOfCopy(Channel& channel, std::string name) {
  co_return co_await Stat(channel, name + ".copy");
}

// No coroutine: whatever `name` refers to must outlive the Task.
VERBENA_CORO_WRAPPER Task<absl::StatusOr<v1::StatReply>> StatOf(const std::string& name,
                                                                Channel& channel) {
  return Stat(channel, name);
}
}  // namespace handing_on

namespace bad_reference {
// BAD: another coroutine may add to `names` during the co_await, which moves its strings.
Task<void> StatAll(Channel& channel, std::vector<std::string>& names) {
  for (const std::string& name : names) {
    (void)co_await Stat(channel, name);
  }
}
}  // namespace bad_reference

namespace good_reference {
// GOOD: look again after each co_await, and keep a copy across it.
Task<void> StatAll(Channel& channel, std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i];
    (void)co_await Stat(channel, name);
  }
}
}  // namespace good_reference

namespace bad_blocking {
// BAD: all calls of this executor wait for the disk. After some seconds peers close its links.
Task<std::string> Load(std::string path) { co_return ReadWholeFile(path); }
}  // namespace bad_blocking

namespace good_blocking {
// GOOD: a thread of the pool waits for the disk.
Task<std::string> Load(std::string path) {
  co_return co_await verbena::RunBlocking([&] { return ReadWholeFile(path); });
}
}  // namespace good_blocking

}  // namespace guide
