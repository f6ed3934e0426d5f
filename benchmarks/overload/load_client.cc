#include "verbena/benchmarks/overload/load_client.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "verbena/benchmarks/harness/drive.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/turn_pacer.h"

namespace verbena::benchmarks {
namespace {

// The part of a slice before anything counts.
constexpr double kWarmUp = 0.2;

constexpr Duration kPauseAfterGivingUp = std::chrono::milliseconds(1);

}  // namespace

LoadClient::LoadClient(std::unique_ptr<Runtime> runtime, const std::string& address, uint64_t seed)
    : runtime_(std::move(runtime)), channel_(*runtime_, address), stub_(channel_), random_(seed) {}

absl::StatusOr<std::unique_ptr<LoadClient>> LoadClient::Connect(const std::string& address,
                                                                uint64_t seed) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Runtime::Start({.mode = ExecutorMode::kBusy, .threads = false});
  if (!runtime.ok()) return runtime.status();
  std::unique_ptr<LoadClient> client(new LoadClient(*std::move(runtime), address, seed));
  absl::Status connected = client->runtime_->BlockOn(client->channel_.Connect());
  if (!connected.ok()) return connected;
  return client;
}

void LoadClient::Start(const Load& load, uint64_t count_from, uint64_t count_until) {
  load_ = load;
  count_from_ = count_from;
  count_until_ = count_until;
  sample_ = {};
  stop_ = false;
  done_ = false;
  runtime_->Spawn(Main());
}

void LoadClient::Poll() { runtime_->executor(0).Poll(); }

Task<void> LoadClient::Main() {
  TaskScope scope(co_await CurrentContext());
  for (int i = 0; i < load_.in_flight; ++i) scope.Spawn(CallAgainAndAgain());
  if (load_.per_s > 0) co_await Arrivals(scope);
  co_await scope.Join();
  done_ = true;
}

// At random times, as those of many independent callers are.
Task<void> LoadClient::Arrivals(TaskScope& scope) {
  internal::TurnPacer turns(runtime_->executor(0), 1);
  std::exponential_distribution<double> pause(load_.per_s / 1e9);
  double due = static_cast<double>(NowNs()) + pause(random_);
  while (!stop_) {
    (void)co_await turns.Pass();
    for (const auto now = static_cast<double>(NowNs()); due <= now; due += pause(random_)) {
      if (Counts(static_cast<uint64_t>(due))) ++sample_.offered;
      scope.Spawn(CallAt(static_cast<uint64_t>(due)));
    }
  }
}

Task<void> LoadClient::CallAt(uint64_t due) { Note(due, co_await Call()); }

Task<void> LoadClient::CallAgainAndAgain() {
  while (!stop_) {
    const uint64_t due = NowNs();
    if (Counts(due)) ++sample_.offered;
    absl::Status status = co_await Call();
    Note(due, status);
    if (auto delay = RetryAfterOf(status)) (void)co_await Sleep(*delay);
    if (absl::IsDeadlineExceeded(status)) (void)co_await Sleep(kPauseAfterGivingUp);
  }
}

Task<absl::Status> LoadClient::Call() {
  bench::WorkRequest request;
  request.set_work_us(load_.work_us);
  bench::WorkReply reply;
  if (load_.deadline == Duration::zero()) {
    co_return co_await stub_.Work(request, reply, {.priority = load_.priority});
  }
  request.set_late_from_ns(NowNs() + static_cast<uint64_t>(load_.deadline.count()));
  co_return co_await stub_.Work(request, reply,
                                {.deadline = load_.deadline, .priority = load_.priority});
}

Task<absl::StatusOr<Starts>> LoadClient::AskForStarts() {
  bench::StartsReply reply;
  absl::Status status = co_await stub_.Starts(bench::StartsRequest(), reply);
  if (!status.ok()) co_return status;
  co_return Starts{.all = reply.all(), .late = reply.late()};
}

absl::StatusOr<Starts> LoadClient::ReadStarts() { return runtime_->BlockOn(AskForStarts()); }

void LoadClient::Note(uint64_t due, const absl::Status& status) {
  const uint64_t now = NowNs();
  if (status.ok() && due >= first_from_ && first_ns_ == 0) first_ns_ = now - due;
  if (!Counts(now)) return;
  if (status.ok()) {
    sample_.served.Record(now - due);
  } else if (absl::IsResourceExhausted(status)) {
    ++sample_.refused;
  } else if (load_.deadline != Duration::zero() && absl::IsDeadlineExceeded(status)) {
    ++sample_.given_up;
  } else {
    ++sample_.failed;
  }
}

void RunLoads(const std::vector<std::unique_ptr<LoadClient>>& clients,
              const std::vector<Load>& loads, double seconds, const std::function<void()>& then) {
  const uint64_t begin = NowNs();
  const auto slice = static_cast<uint64_t>(seconds * 1e9);
  const auto warm = static_cast<uint64_t>(seconds * 1e9 * kWarmUp);
  const uint64_t end = begin + warm + slice;
  for (size_t i = 0; i < loads.size(); ++i) clients[i]->Start(loads[i], begin + warm, end);
  bool busy = true;
  for (bool stopped = false; busy;) {
    busy = false;
    for (size_t i = 0; i < loads.size(); ++i) {
      clients[i]->Poll();
      busy |= !clients[i]->done();
    }
    then();
    if (stopped || NowNs() < end) continue;
    stopped = true;
    for (size_t i = 0; i < loads.size(); ++i) clients[i]->Stop();
  }
}

}  // namespace verbena::benchmarks
