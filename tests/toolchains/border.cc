// Has Tasks, exceptions, cancellations and ends of coroutines cross between a program and a
// libverbena.so that another compiler made.
//
// Proves that both agree on frames of coroutines and on how they are resumed, unwound and
// destroyed: each compiler resumes and destroys frames of the other. Prints a line for each check,
// then the counts; exits with 1 if one fails.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "border.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace border {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using verbena::Channel;
using verbena::Runtime;
using verbena::Server;
using verbena::Task;

// Counts the checks, and prints a line for each.
class Checks {
 public:
  void Add(const std::string& what, bool holds) {
    std::cout << (holds ? "holds   " : "FAILED  ") << what << std::endl;
    ++(holds ? held_ : failed_);
  }
  int Report() const {
    std::cout << held_ << " checks hold, " << failed_ << " failed" << std::endl;
    return failed_ == 0 ? 0 : 1;
  }

 private:
  int held_ = 0;
  int failed_ = 0;
};

// How many Witnesses live: one in each frame whose destruction is checked.
std::atomic<int> witnesses{0};

class Witness {
 public:
  Witness() { ++witnesses; }
  Witness(Witness&&) noexcept { ++witnesses; }
  Witness& operator=(Witness&&) = delete;
  ~Witness() { --witnesses; }
};

// Waits until no frame with a Witness is left, on a thread of no executor.
bool AllGone(Runtime& runtime) {
  const auto wait = []() -> Task<bool> {
    for (int i = 0; i < 10'000 && witnesses != 0; ++i)
      (void)co_await verbena::Sleep(milliseconds(1));
    co_return witnesses == 0;
  };
  return runtime.BlockOn(wait());
}

Task<void> Throw(std::string text) {
  const Witness witness;
  (void)co_await verbena::Yield();
  throw std::runtime_error(std::move(text));
}

// The text of the std::runtime_error that `function` throws; "" if it throws none.
std::string Thrown(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// --- The program's Tasks, which the library awaits.

class BorderService final : public Border::Service {
 public:
  // How many handlers waited, and how many of these heard that their call was given up.
  std::atomic<int> waited{0};
  std::atomic<int> heard{0};

 private:
  Task<absl::Status> Do(verbena::ServerContext& context, const Order& order,
                        Answer& answer) override {
    const Witness witness;
    if (order.what() == "throw") throw std::runtime_error("a handler's");
    if (order.what() == "throw later") co_await Throw("a handler's, later");
    if (order.what() == "wait" || order.what().starts_with("drop")) {
      ++waited;
      const absl::Status slept = co_await verbena::SleepUntil(verbena::kNever);
      if (!slept.ok() && context.cancelled()) ++heard;
      co_return slept;
    }
    answer.set_text("answered " + order.what());
    co_return absl::OkStatus();
  }
  Task<absl::Status> Count(verbena::ServerContext&, const Order& order,
                           verbena::ServerWriter<Answer>& answers) override {
    const Witness witness;
    Answer answer;
    for (uint32_t i = 0; i < order.messages(); ++i) {
      answer.set_number(i);
      VERBENA_CO_RETURN_IF_ERROR(co_await answers.Write(answer));
    }
    co_return absl::OkStatus();
  }
};

// Does to a call what the text of its order says, as an interceptor of either side.
template <typename Next>
Task<absl::Status> Around(const google::protobuf::MessageLite& request, Next next,
                          std::string side) {
  const Witness witness;
  const auto* order = dynamic_cast<const Order*>(&request);
  if (order == nullptr) co_return co_await next();
  if (order->what() == "throw at the " + side) co_await Throw("an interceptor's");
  if (order->what() == "refuse at the " + side) co_return absl::AbortedError("refused");
  if (order->what() == "drop at the " + side) {
    // Begins the rest of the call, which waits, and cancels it while it runs.
    const auto first = co_await verbena::WhenAny(next(), []() -> Task<absl::Status> {
      co_return co_await verbena::Sleep(milliseconds(5));
    }());
    co_return first.index() == 1 ? absl::AbortedError("dropped")
                                 : absl::InternalError("not dropped");
  }
  co_return co_await next();
}

class AtClient final : public verbena::ClientInterceptor {
  Task<absl::Status> Intercept(verbena::ClientCallView& call, verbena::ClientNext next) override {
    co_return co_await Around(call.request(), next, "client");
  }
};

class AtServer final : public verbena::ServerInterceptor {
  Task<absl::Status> Intercept(verbena::ServerCallView& call, verbena::ServerNext next) override {
    co_return co_await Around(call.request(), next, "server");
  }
};

// --- The checks. `channel` has no interceptors, `intercepted` has.

struct Stage {
  Runtime& runtime;
  Channel& channel;
  Channel& intercepted;
  BorderService& service;
  Checks& checks;
};

Task<absl::StatusOr<Answer>> Do(Channel& channel, std::string what,
                                verbena::CallOptions options = {}) {
  const Witness witness;
  const Border::Stub stub(channel);
  Order order;
  order.set_what(std::move(what));
  if (!options.deadline.is_given()) options.deadline = seconds(60);
  co_return co_await stub.Do(order, std::move(options));
}

absl::StatusCode CodeOf(Stage& stage, Channel& channel, const std::string& what) {
  return stage.runtime.BlockOn(Do(channel, what)).status().code();
}

void CheckCalls(Stage& stage) {
  const auto answered = [&](Channel& channel) {
    const absl::StatusOr<Answer> answer = stage.runtime.BlockOn(Do(channel, "it"));
    return answer.ok() && answer->text() == "answered it";
  };
  stage.checks.Add("the library's Task connects for the program",
                   stage.runtime.BlockOn(stage.channel.Connect()).ok());
  stage.checks.Add("the library awaits a handler", answered(stage.channel));
  stage.checks.Add("the library awaits interceptors, which await its next()",
                   answered(stage.intercepted));
  for (const char* side : {"client", "server"}) {
    const std::string refuse = std::string("refuse at the ") + side;
    stage.checks.Add("an interceptor's own status: " + refuse,
                     CodeOf(stage, stage.intercepted, refuse) == absl::StatusCode::kAborted);
  }
}

Task<absl::StatusOr<uint32_t>> CountTo(Channel& channel, uint32_t messages) {
  const Border::Stub stub(channel);
  Order order;
  order.set_messages(messages);
  verbena::ClientReader<Answer> answers = stub.Count(order, {.deadline = seconds(60)});
  uint32_t counted = 0;
  Answer answer;
  // Both ways to read: an await, and a Task of the library's.
  for (;;) {
    bool is_there = false;
    if (counted % 2 == 0) {
      is_there = co_await answers.Read(answer);
    } else {
      is_there = (co_await answers.TryRead(answer)).value_or(false);
    }
    if (!is_there) break;
    if (answer.number() != counted++) co_return absl::DataLossError("a message is not the next");
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await answers.Finish());
  co_return counted;
}

verbena::Generator<absl::StatusOr<std::string>> Answers(Channel& channel, int count) {
  const Witness witness;
  for (int i = 0; i < count; ++i) {
    const absl::StatusOr<Answer> answer = co_await Do(channel, std::to_string(i));
    if (!answer.ok()) {
      co_yield answer.status();
    } else {
      co_yield answer->text();
    }
  }
}

Task<absl::StatusOr<int>> UseGenerator(Channel& channel, int count, int wanted) {
  verbena::Generator<absl::StatusOr<std::string>> answers = Answers(channel, count);
  int seen = 0;
  while (seen < wanted) {
    const std::optional<absl::StatusOr<std::string>> answer = co_await answers.Next();
    if (!answer.has_value()) break;
    if (!answer->ok()) co_return answer->status();
    if (**answer != "answered " + std::to_string(seen++)) co_return absl::DataLossError(**answer);
  }
  co_return seen;
}

void CheckSequences(Stage& stage) {
  const absl::StatusOr<uint32_t> counted = stage.runtime.BlockOn(CountTo(stage.channel, 10'000));
  stage.checks.Add("a stream's 10,000 messages, written and read by the program",
                   counted.ok() && *counted == 10'000);
  const absl::StatusOr<int> all = stage.runtime.BlockOn(UseGenerator(stage.channel, 100, 1000));
  stage.checks.Add("a Generator of calls, to its end", all.ok() && *all == 100);
  const absl::StatusOr<int> some = stage.runtime.BlockOn(UseGenerator(stage.channel, 100, 10));
  stage.checks.Add("a Generator that is destroyed before its end", some.ok() && *some == 10);
  const auto for_each = [](Channel& channel) -> Task<absl::Status> {
    co_return co_await verbena::ForEach(
        Answers(channel, 100), 8,
        [&](const absl::StatusOr<std::string>& text) -> Task<absl::Status> {
          if (!text.ok()) co_return text.status();
          co_return (co_await Do(channel, *text)).status();
        });
  };
  stage.checks.Add("ForEach over a Generator", stage.runtime.BlockOn(for_each(stage.channel)).ok());
  stage.checks.Add("their frames are destroyed", AllGone(stage.runtime));
}

void CheckExceptions(Stage& stage) {
  Runtime& runtime = stage.runtime;
  for (const char* what : {"throw", "throw later"}) {
    stage.checks.Add(std::string("a handler's exception is the caller's INTERNAL: ") + what,
                     CodeOf(stage, stage.channel, what) == absl::StatusCode::kInternal);
  }
  stage.checks.Add(
      "an interceptor's exception at the server is INTERNAL",
      CodeOf(stage, stage.intercepted, "throw at the server") == absl::StatusCode::kInternal);
  stage.checks.Add("an interceptor's exception at the client comes out of the call", [&] {
    return Thrown([&] { (void)CodeOf(stage, stage.intercepted, "throw at the client"); }) ==
           "an interceptor's";
  }());
  stage.checks.Add("an exception comes out of BlockOn()",
                   Thrown([&] { runtime.BlockOn(Throw("a")); }) == "a");
  stage.checks.Add("an exception comes out of Join()",
                   Thrown([&] { runtime.Spawn(Throw("b")).Join(); }) == "b");
  const auto scope = []() -> Task<void> {
    verbena::TaskScope tasks(co_await verbena::CurrentContext());
    tasks.Spawn(Throw("c"));
    co_await tasks.Join();
  };
  stage.checks.Add("an exception comes out of TaskScope::Join()",
                   Thrown([&] { runtime.BlockOn(scope()); }) == "c");
  const auto blocking = []() -> Task<void> {
    co_await verbena::RunBlocking([]() -> void { throw std::runtime_error("d"); });
  };
  stage.checks.Add("an exception comes out of RunBlocking()",
                   Thrown([&] { runtime.BlockOn(blocking()); }) == "d");
  const auto elsewhere = [](verbena::Executor& other) -> Task<void> {
    co_await verbena::RunOn(other, Throw("e"));
  };
  stage.checks.Add("an exception comes out of RunOn()",
                   Thrown([&] { runtime.BlockOn(elsewhere(runtime.executor(1))); }) == "e");
  stage.checks.Add("their frames are destroyed", AllGone(runtime));
}

// Waits until so many handlers have waited. False if that takes half a minute.
Task<bool> Waited(BorderService& service, int count) {
  for (int i = 0; i < 30'000 && service.waited < count; ++i) {
    (void)co_await verbena::Sleep(milliseconds(1));
  }
  co_return service.waited >= count;
}

// Whether calls that `limited` gives a deadline all end by it. The last one has reached its
// handler.
bool EndsInTime(Stage& stage, const std::function<absl::Status(milliseconds)>& limited) {
  const int before = stage.service.waited;
  for (milliseconds limit(10); limit < seconds(60); limit *= 2) {
    if (!absl::IsDeadlineExceeded(limited(limit))) return false;
    if (stage.service.waited > before) return true;
  }
  return false;
}

void CheckCancellation(Stage& stage) {
  Runtime& runtime = stage.runtime;
  const int before = stage.service.waited;
  verbena::JoinHandle<absl::StatusOr<Answer>> call = runtime.Spawn(Do(stage.channel, "wait"));
  const bool waited = runtime.BlockOn(Waited(stage.service, before + 1));
  call.RequestCancel();
  stage.checks.Add("a spawned call that is cancelled gives CANCELLED",
                   waited && absl::IsCancelled(call.Join().status()));
  stage.checks.Add(
      "WithDeadline() ends a call", EndsInTime(stage, [&](milliseconds limit) {
        return runtime.BlockOn(verbena::WithDeadline(Do(stage.channel, "wait"), limit)).status();
      }));
  stage.checks.Add("a call's own deadline ends it", EndsInTime(stage, [&](milliseconds limit) {
                     verbena::CallOptions options;
                     options.deadline = limit;
                     return runtime.BlockOn(Do(stage.channel, "wait", std::move(options))).status();
                   }));
  const auto wait = []() -> Task<absl::Status> {
    co_return co_await verbena::SleepUntil(verbena::kNever);
  };
  stage.checks.Add(
      "a deadline ends a wait",
      absl::IsDeadlineExceeded(runtime.BlockOn(verbena::WithDeadline(wait(), milliseconds(1)))));
  stage.checks.Add("their frames are destroyed at both sides", AllGone(runtime));
  stage.checks.Add("each handler heard of it", stage.service.heard == stage.service.waited);
}

// Starts calls that never end, and destroys their Tasks while they wait.
Task<bool> Abandon(Channel& channel, BorderService& service) {
  bool waited = false;
  {
    verbena::TaskScope tasks(co_await verbena::CurrentContext());
    const int before = service.waited;
    for (int i = 0; i < 10; ++i) {
      tasks.Spawn([&channel]() -> Task<void> { (void)co_await Do(channel, "wait"); });
    }
    waited = co_await Waited(service, before + 10);
  }
  const auto hold = [](Witness) -> Task<void> { co_return; };
  {
    const Task<void> never_begun = hold(Witness());
    const Task<absl::Status> of_the_library = channel.Connect();
    if (witnesses == 0) co_return false;  // the frame has none: its end would show nothing
  }
  co_return waited;
}

void CheckDestruction(Stage& stage) {
  const bool waited = stage.runtime.BlockOn(Abandon(stage.channel, stage.service));
  stage.checks.Add("Tasks that are destroyed while they wait, or before they begin",
                   waited && AllGone(stage.runtime));
  for (const char* side : {"client", "server"}) {
    const std::string drop = std::string("drop at the ") + side;
    const bool dropped = CodeOf(stage, stage.intercepted, drop) == absl::StatusCode::kAborted;
    stage.checks.Add("an interceptor's WhenAny() over next(): " + drop,
                     dropped && AllGone(stage.runtime));
  }
  std::atomic<bool> begun{false};
  (void)stage.runtime.Spawn([](Channel& channel, std::atomic<bool>& begun) -> Task<void> {
    const Witness witness;
    begun = true;
    (void)co_await Do(channel, "it");
  }(stage.channel, begun));  // nobody takes its result
  while (!begun) stage.runtime.BlockOn([]() -> Task<void> { (void)co_await verbena::Yield(); }());
  stage.checks.Add("a spawned Task without a handle", AllGone(stage.runtime));
}

Task<int> JoinAll(std::vector<verbena::JoinHandle<absl::StatusOr<Answer>>> spawned) {
  int answered = 0;
  for (auto& each : spawned) {
    const absl::StatusOr<Answer> answer = co_await std::move(each);
    answered += answer.ok() ? 1 : 0;
  }
  co_return answered;
}

Task<int> ThereAndBack(Runtime& runtime, Channel& channel) {
  int answered = 0;
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<Answer> answer =
        co_await verbena::RunOn(runtime.executor(i % 2), Do(channel, "it"));
    answered += answer.ok() ? 1 : 0;
  }
  co_return answered;
}

void CheckExecutors(Stage& stage) {
  Runtime& runtime = stage.runtime;
  std::vector<verbena::JoinHandle<absl::StatusOr<Answer>>> handles;
  for (int i = 0; i < 100; ++i) handles.push_back(runtime.Spawn(Do(stage.channel, "it"), i % 2));
  stage.checks.Add("100 spawned calls of two executors, awaited by a coroutine of one",
                   runtime.BlockOn(JoinAll(std::move(handles))) == 100);
  stage.checks.Add("100 calls by RunOn()",
                   runtime.BlockOn(ThereAndBack(runtime, stage.channel)) == 100);
  stage.checks.Add("their frames are destroyed", AllGone(runtime));
}

int Main() {
  Checks checks;
  {
    BorderService service;
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start({.executors = 2});
    if (!runtime.ok()) return std::cerr << runtime.status() << "\n", 1;
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(**runtime, {&service}, {.interceptors = {std::make_shared<AtServer>()}});
    if (!server.ok()) return std::cerr << server.status() << "\n", 1;
    Channel channel(**runtime, (*server)->address());
    Channel intercepted(**runtime, (*server)->address(),
                        {.interceptors = {std::make_shared<AtClient>()}});
    Stage stage{**runtime, channel, intercepted, service, checks};
    CheckCalls(stage);
    CheckSequences(stage);
    CheckExceptions(stage);
    CheckCancellation(stage);
    CheckDestruction(stage);
    CheckExecutors(stage);
  }
  checks.Add("no frame is left when the runtime has ended", witnesses == 0);
  return checks.Report();
}

}  // namespace
}  // namespace border

int main() { return border::Main(); }
