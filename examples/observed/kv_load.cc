// kv_load: reads from several kv_servers at a steady pace until SIGINT or SIGTERM, and counts by
// server how long its reads wait.
//
// Verbena's own metrics have no label for peers, since a process may have thousands of them. This
// program has a few and knows them, so it adds a histogram of its own with a label for each.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/help.h"
#include "examples/common/signals.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/metrics.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(std::vector<std::string>, servers, {}, "Hosts and ports of the servers.");
ABSL_FLAG(std::string, admin, "127.0.0.1:0", "Host and port of the admin server.");
ABSL_FLAG(uint32_t, calls_per_s, 500, "Reads from each server in a second.");

namespace observed {

using examples::StopSignals;
using kv::v1::KeyValue;
using verbena::Clock;
using verbena::Duration;
using verbena::Task;
using verbena::TimePoint;

namespace {

constexpr char kHelp[] = R"(usage: kv_load --servers=HOST:PORT,… [options]

Stores a value of 1 KiB in each server, then reads it from each at a steady pace. Prints "status at URL"
once it does. SIGINT (Ctrl-C) or SIGTERM ends it.

  --servers=LIST       hosts and ports of the servers, with commas between them
  --admin=HOST:PORT    where to serve /metrics, /status and the like over HTTP (default: a free port)
  --calls_per_s=N      reads from each server in a second, 1 to 100000 (default 500)
  --help               this text
)";

constexpr char kKey[] = "observed";
constexpr size_t kValueBytes = 1024;
// Reads from one server at once. Those that are due beyond it wait, and their wait counts.
constexpr int kReaders = 64;
constexpr Duration kDeadline = std::chrono::seconds(2);

struct Target {
  Target(verbena::Runtime& runtime, const std::string& address) : channel(runtime, address) {}

  verbena::Channel channel;
  verbena::MetricHistogram* waits = nullptr;
  verbena::MetricCounter* failures = nullptr;
};

// When reads are due. Written before the readers run, but for `ends`.
struct Pace {
  TimePoint start;
  Duration interval;
  std::atomic<bool> ends{false};  // any thread
};

// 0.25 ms to 4.1 s, each twice the one before.
std::vector<double> Bounds() {
  std::vector<double> bounds;
  for (double bound = 0.25e-3; bound < 5; bound *= 2) bounds.push_back(bound);
  return bounds;
}

absl::Status AddMetrics(verbena::Metrics& metrics, const std::string& server, Target& target) {
  VERBENA_ASSIGN_OR_RETURN(
      target.waits,
      metrics.AddHistogram("kv_load_read_seconds",
                           "Reads by server, from when they were due until their end.", Bounds(),
                           {{"server", server}}));
  VERBENA_ASSIGN_OR_RETURN(
      target.failures, metrics.AddCounter("kv_load_failed_reads_total", "Reads that have failed.",
                                          {{"server", server}}));
  return absl::OkStatus();
}

Task<absl::Status> Store(Target& target) {
  VERBENA_CO_ASSIGN_OR_RETURN(verbena::Buffer value,
                              co_await target.channel.AllocateBuffer(kValueBytes));
  std::memset(value.data(), 'v', kValueBytes);
  kv::v1::PutRequest request;
  request.set_key(kKey);
  kv::v1::PutReply reply;
  co_return co_await KeyValue::Stub(target.channel)
      .Put(request, reply,
           {.deadline = std::chrono::seconds(10), .request_payload = std::move(value)});
}

// One of the readers of `target`. They take turns: each has every kReaders-th read.
Task<void> ReadAtPace(Target& target, const Pace& pace, int reader) {
  const KeyValue::Stub store(target.channel);
  kv::v1::GetRequest request;
  request.set_key(kKey);
  verbena::WithPayload<kv::v1::GetReply> reply;
  TimePoint due = pace.start + reader * pace.interval;
  while (true) {
    const Duration early = due - Clock::Real().Now();
    // The end of the program cancels either await: what did not wait to its end is not counted.
    if (early > Duration::zero()) (void)co_await verbena::Sleep(early);
    if (pace.ends.load(std::memory_order_relaxed)) break;
    const absl::Status status = co_await store.Get(request, reply, {.deadline = kDeadline});
    if (pace.ends.load(std::memory_order_relaxed)) break;
    const std::chrono::duration<double> waited = Clock::Real().Now() - due;
    target.waits->Observe(waited.count());
    if (!status.ok()) target.failures->Add();
    due += kReaders * pace.interval;
  }
}

absl::Status Load() {
  const std::vector<std::string> servers = absl::GetFlag(FLAGS_servers);
  const uint32_t calls_per_s = absl::GetFlag(FLAGS_calls_per_s);
  if (servers.empty()) return absl::InvalidArgumentError("--servers names no server");
  if (calls_per_s < 1 || calls_per_s > 100000) {
    return absl::InvalidArgumentError(
        fmt::format("--calls_per_s is {}, but must be 1 to 100000", calls_per_s));
  }
  // Before there are other threads, so that none of them takes the signal.
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::Block());
  VERBENA_ASSIGN_OR_RETURN(
      const std::unique_ptr<verbena::Runtime> runtime,
      verbena::Runtime::Start({.executors = 1, .mode = verbena::ExecutorMode::kEvent}));
  VERBENA_ASSIGN_OR_RETURN(
      const std::unique_ptr<verbena::Admin> admin,
      verbena::Admin::Start(*runtime, {.address = absl::GetFlag(FLAGS_admin), .servers = 0}));

  std::vector<std::unique_ptr<Target>> targets;
  for (const std::string& server : servers) {
    targets.push_back(std::make_unique<Target>(*runtime, server));
    VERBENA_RETURN_IF_ERROR(AddMetrics(runtime->metrics(), server, *targets.back()));
    if (absl::Status stored = runtime->BlockOn(Store(*targets.back())); !stored.ok()) {
      return absl::Status(stored.code(),
                          fmt::format("{}: {}", server, std::string(stored.message())));
    }
  }

  Pace pace{.start = Clock::Real().Now(),
            .interval = std::chrono::nanoseconds(1'000'000'000 / calls_per_s)};
  std::vector<verbena::JoinHandle<void>> readers;
  for (const std::unique_ptr<Target>& target : targets) {
    for (int reader = 0; reader < kReaders; ++reader) {
      readers.push_back(runtime->Spawn(ReadAtPace(*target, pace, reader)));
    }
  }
  fmt::print("status at http://{}/status\n", admin->address());
  std::fflush(stdout);
  signals->WaitForLast();
  pace.ends.store(true, std::memory_order_relaxed);
  // At one read in a second, each reader sleeps for a minute.
  for (verbena::JoinHandle<void>& reader : readers) reader.RequestCancel();
  for (verbena::JoinHandle<void>& reader : readers) reader.Join();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    fmt::print(stderr, "kv_load: '{}' is not an option; see kv_load --help\n", words[1]);
    return 1;
  }
  const absl::Status status = Load();
  if (!status.ok()) fmt::print(stderr, "kv_load: {}\n", std::string(status.message()));
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace observed

int main(int argc, char** argv) { return observed::Main(argc, argv); }
