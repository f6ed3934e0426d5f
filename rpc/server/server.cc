#include "verbena/rpc/server.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/dedupe.h"
#include "verbena/rpc/server/handshake_gate.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/shard.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/served.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/run_on.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena {
namespace {

// How long a client may take to make its offer.
constexpr Duration kOfferTimeout = std::chrono::seconds(10);
// Before accepting again after accept itself failed (no descriptors left, for one).
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
// How long a shutdown waits for the directory that the server is registered in.
constexpr Duration kRemovalPatience = std::chrono::milliseconds(500);

void Add(ServerMemory& sum, const ServerMemory& memory) {
  sum.budget += memory.budget;
  sum.in_use += memory.in_use;
  sum.granted += memory.granted;
  sum.in_transfers += memory.in_transfers;
  sum.waiting += memory.waiting;
  sum.waits += memory.waits;
  sum.by_handlers = sum.in_use - std::min(sum.in_use, sum.granted + sum.in_transfers);
}

void Add(ServerRefusals& sum, const ServerRefusals& refusals) {
  sum.executor += refusals.executor;
  sum.client += refusals.client;
  sum.source += refusals.source;
  sum.method += refusals.method;
  sum.bytes += refusals.bytes;
  sum.queue += refusals.queue;
  sum.age += refusals.age;
}

// `stats` are those of one executor's calls.
void Add(ServerStats& sum, const ServerStats& stats) {
  sum.calls += stats.calls;
  sum.failures += stats.failures;
  sum.refused += stats.refused;
  Add(sum.refusals, stats.refusals);
  sum.queued += stats.queued;
  sum.given_up += stats.given_up;
  sum.memory_refused += stats.memory_refused;
  sum.payloads_written += stats.payloads_written;
  sum.granted_bytes += stats.granted_bytes;
  sum.idle_calls += stats.idle_calls;
  Add(sum.receive_memory, stats.receive_memory);
  Add(sum.send_memory, stats.send_memory);
}

}  // namespace

// A shard is used on its executor only, but made by Start() and destroyed by the destructor, on the
// caller's thread. Executor 0 accepts.
class Server::Impl final : private internal::EarlierAttempts, private internal::ServerView {
 public:
  explicit Impl(Runtime& runtime) : runtime_(internal::CoreOf(runtime)) { runtime_.AddServer(); }
  ~Impl() { runtime_.RemoveServer(); }

  absl::Status Start(const std::vector<Service*>& services, const ServerOptions& options) {
    VERBENA_RETURN_IF_ERROR(internal::CheckLimits(options.handshakes));
    if (options.drain_delay < Duration::zero()) {
      return absl::InvalidArgumentError(
          fmt::format("ServerOptions::drain_delay is {} ns: it must be 0 or more",
                      options.drain_delay.count()));
    }
    drain_delay_ = options.drain_delay;
    if (options.max_metadata_bytes > Metadata::kMaxBytes) {
      return absl::InvalidArgumentError(
          fmt::format("ServerOptions::max_metadata_bytes is {}: its range is 0 to {}",
                      options.max_metadata_bytes, Metadata::kMaxBytes));
    }
    for (size_t i = 0; i < options.interceptors.size(); ++i) {
      if (options.interceptors[i] != nullptr) continue;
      return absl::InvalidArgumentError(fmt::format("ServerOptions::interceptors[{}] is null", i));
    }
    for (size_t i = 0; i < services.size(); ++i) {
      if (services[i] == nullptr) {
        return absl::InvalidArgumentError(
            fmt::format("services[{}] of Server::Start() is null: give it a service", i));
      }
      VERBENA_RETURN_IF_ERROR(methods_.Add(*services[i]));
    }
    VERBENA_RETURN_IF_ERROR(internal::CheckAdmission(options.admission, methods_));
    VERBENA_RETURN_IF_ERROR(internal::CheckDedupe(options.dedupe));
    dedupe_ = std::make_unique<internal::DedupeTable>(options.dedupe);
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<MessageListener> listener,
                             runtime_.shard(0).bootstrap().Listen(options.address));
    listener_ = std::move(listener);
    address_ = listener_->address();
    VERBENA_ASSIGN_OR_RETURN(
        registrar_,
        internal::MakeRegistrar(options.registration,
                                {.address = address_,
                                 .devices = runtime_.device_names(),
                                 .executors = static_cast<uint32_t>(runtime_.executors())}));
    internal::ServerLimits limits =
        internal::LimitsOf(options, runtime_.shard(0).wanted_limits(), *dedupe_, *this);
    limits.leaves = &shutting_down_;
    for (int i = 0; i < runtime_.executors(); ++i) {
      shards_.push_back(
          std::make_unique<internal::ServerShard>(runtime_.shard(i), methods_, limits));
    }
    std::vector<Executor*> executors;
    executors.reserve(shards_.size());
    for (const auto& shard : shards_) executors.push_back(&shard->executor());
    gate_ = std::make_unique<internal::HandshakeGate>(options.handshakes, std::move(executors),
                                                      LinksPerExecutor());
    accepting_ = std::make_unique<TaskScope>(runtime_.shard(0).executor());
    runtime_.BlockOn(StartAccepting());
    if (registrar_ != nullptr) runtime_.BlockOn(StartRegistering());
    number_ = runtime_.served().Enter(*this);
    return absl::OkStatus();
  }

  // Any thread.
  void OnShutdown() { shutting_down_.store(true, std::memory_order_relaxed); }

  // Once this returns, no report uses the server any more. Call it before AwaitHandlers(), which
  // lets the reports end that are under way.
  void LeaveReports() {
    if (number_ != 0) runtime_.served().Leave(number_);
  }

  // Serves on for `drain_delay` first, if it still accepts.
  std::vector<RunningHandler> Shutdown(Duration drain_delay, Duration grace) {
    // First, so that clients choose other servers while this one still takes their calls.
    if (registering_ != nullptr) runtime_.BlockOn(StopRegistering());
    if (listener_ != nullptr) {
      if (drain_delay > Duration::zero()) runtime_.BlockOn(ServeFor(drain_delay));
      // After this nobody hands links to the shards any more.
      runtime_.BlockOn(StopAccepting());
      listener_.reset();
    }
    const internal::RunningHandlers running = runtime_.BlockOn(ShutdownShards(grace));
    std::vector<RunningHandler> all;
    for (const auto& [method, count] : running) all.push_back({method, count});
    return all;
  }

  void AwaitHandlers() {
    runtime_.BlockOn(OnEveryShard(
        [](internal::ServerShard& shard) -> Task<void> { co_await shard.AwaitHandlers(); }));
  }

  const std::string& address() const override { return address_; }
  Duration drain_delay() const { return drain_delay_; }

  ServerStats stats() {
    std::vector<ServerStats> parts;
    parts.reserve(static_cast<size_t>(runtime_.executors()));
    for (int i = 0; i < runtime_.executors(); ++i) parts.push_back(StatsOf(i));
    return Sum(parts);
  }

 private:
  bool shutting_down() const override { return shutting_down_.load(std::memory_order_relaxed); }

  internal::DirectoryEntry entry() const override {
    if (registrar_ == nullptr) return internal::DirectoryEntry::kNone;
    if (registrar_->registered()) {
      was_registered_.store(true, std::memory_order_relaxed);
      return internal::DirectoryEntry::kThere;
    }
    return was_registered_.load(std::memory_order_relaxed) ? internal::DirectoryEntry::kLost
                                                           : internal::DirectoryEntry::kAwaited;
  }

  ServerStats StatsOn(size_t executor) const override { return shards_[executor]->stats(); }

  ServerStats Sum(const std::vector<ServerStats>& parts) const override {
    ServerStats sum;
    sum.handshakes_failed = handshakes_failed_;
    const internal::HandshakeStats handshakes = gate_->stats();
    sum.handshakes_evicted = handshakes.evicted_silent + handshakes.evicted_pending;
    sum.links_refused = handshakes.refused;
    for (const ServerStats& part : parts) Add(sum, part);
    const internal::DedupeTableStats dedupe = dedupe_->stats();
    sum.dedupe = {.results = dedupe.results,
                  .bytes = dedupe.bytes,
                  .repeated = dedupe.repeated,
                  .unproven = dedupe.unproven};
    sum.registered = registrar_ != nullptr && registrar_->registered();
    return sum;
  }

  // All executors have the same devices and limits.
  uint32_t LinksPerExecutor() { return runtime_.BlockOn(LinksOf(runtime_.shard(0)), 0); }

  static Task<uint32_t> LinksOf(const internal::Shard& shard) { co_return shard.max_links(); }

  static Task<ServerStats> ReadStats(internal::ServerShard& shard) {
    shard.PublishStats();
    co_return shard.stats();
  }

  ServerStats StatsOf(int index) {
    internal::ServerShard& shard = *shards_[index];
    Scheduler* current = Scheduler::Current();
    if (current == &shard.executor()) return shard.stats();
    if (current == nullptr) return runtime_.BlockOn(ReadStats(shard), index);
    // An executor waits for no other. The shard outlives the function: ~Server later runs a task on
    // each executor and waits for it.
    shard.executor().PostFunction([&shard] { shard.PublishStats(); });
    return shard.published_stats();
  }

  // Runs what `start` makes of each shard, on its executor and all at once, to the end of the last.
  template <typename Start>
  Task<void> OnEveryShard(Start start) {
    TaskScope scope(co_await CurrentContext());
    for (const std::unique_ptr<internal::ServerShard>& shard : shards_) {
      scope.Spawn(RunOn(shard->executor(), start(*shard)));
    }
    co_await scope.Join();
  }

  // One deadline for all: an executor that is done early does not wait for the others' handlers.
  Task<internal::RunningHandlers> ShutdownShards(Duration grace) {
    const TimePoint deadline = SaturatingAdd(runtime_.shard(0).executor().now(), grace);
    // OnEveryShard() keeps the lambda until all have ended.
    co_await OnEveryShard(
        // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines)
        [deadline](internal::ServerShard& shard) -> Task<void> {
          co_await shard.Shutdown(deadline);
        });
    internal::RunningHandlers running;
    for (const std::unique_ptr<internal::ServerShard>& shard : shards_) {
      co_await RunOn(shard->executor(), Count(*shard, running));
    }
    co_return running;
  }

  // The tasks that call this run one after another.
  static Task<void> Count(internal::ServerShard& shard, internal::RunningHandlers& running) {
    shard.CountRunning(running);
    co_return;
  }

  Task<void> StartAccepting() {
    accepting_->Spawn(AcceptLoop());
    co_return;
  }

  static Task<void> ServeFor(Duration delay) { (void)co_await Sleep(delay); }

  Task<void> StopAccepting() {
    listener_->Close();
    accepting_->RequestCancel();
    co_await internal::JoinLogged(*accepting_, "the acceptor");
    accepting_.reset();
  }

  Task<void> StartRegistering() {
    registering_ = std::make_unique<TaskScope>(runtime_.shard(0).executor());
    registering_->Spawn(registrar_->Run());
    co_return;
  }

  // The shards are made before the first call, and outlive the last.
  Task<absl::Status> End(const internal::RuntimeId& client,
                         internal::EarlierAttempt attempt) override {
    if (attempt.executor >= shards_.size()) co_return absl::OkStatus();
    internal::ServerShard& shard = *shards_[attempt.executor];
    co_return co_await RunOn(shard.executor(), shard.EndAttempt(client, attempt));
  }

  Task<void> StopRegistering() {
    registering_->RequestCancel();
    co_await internal::JoinLogged(*registering_, "the registration");
    registering_.reset();
    const absl::Status removed = co_await WithDeadline(registrar_->Remove(), kRemovalPatience);
    if (removed.ok()) co_return;
    VERBENA_LOG_LINE(kServer, kWarning,
                     fmt::format("the registration of {} stays until its time is over: {}",
                                 address_, removed.ToString()),
                     {{"server", address_}});
  }

  Task<void> AcceptLoop() {
    while (true) {
      absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await AcceptNext();
      if (absl::IsCancelled(stream.status())) co_return;
      if (!stream.ok()) {
        VERBENA_LOG_THROTTLED(
            accept_log_, kWarning, runtime_.shard(0).executor().now(),
            fmt::format("accepting at {}: {}", address_, stream.status().ToString()),
            {{"server", address_}});
        if (!(co_await Sleep(kAcceptPause)).ok()) co_return;
        continue;
      }
      accepting_->Spawn(Welcome(*std::move(stream)));
    }
  }

  // The bootstrap may be the program's, and throw where ours fail.
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> AcceptNext() {
    try {
      VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream,
                                  co_await listener_->Accept());
      co_return gate_->Admit(std::move(stream));
    } catch (const std::exception& error) {
      co_return absl::InternalError(fmt::format("the bootstrap threw: {}", error.what()));
    } catch (...) {
      co_return absl::InternalError("the bootstrap threw");
    }
  }

  Task<void> Welcome(std::unique_ptr<MessageStream> stream) {
    std::string reason;
    try {
      co_await PlaceOffer(std::move(stream));
      co_return;
    } catch (const std::exception& error) {
      reason = error.what();
    } catch (...) {
      reason = "no std::exception";
    }
    ++handshakes_failed_;
    VERBENA_LOG_THROTTLED(accept_log_, kWarning, runtime_.shard(0).executor().now(),
                          fmt::format("a handshake at {} threw: {}", address_, reason),
                          {{"server", address_}});
  }

  // Reads the offer here, and passes it on to the executor that the gate chooses.
  Task<void> PlaceOffer(std::unique_ptr<MessageStream> stream) {
    absl::StatusOr<internal::LinkParameters> offer = co_await WithDeadline(
        internal::ReceiveOffer(*stream, {.executor_count = internal::kMaxExecutors}),
        SaturatingAdd(runtime_.shard(0).executor().FreshNow(), kOfferTimeout));
    if (!offer.ok()) {
      ++handshakes_failed_;
      co_return;
    }
    absl::StatusOr<size_t> index = gate_->Place(*stream, *offer);
    if (!index.ok()) {
      ++handshakes_failed_;
      (void)co_await WithDeadline(internal::RefuseOffer(*stream, index.status()), kOfferTimeout);
      co_return;
    }
    internal::ServerShard* shard = shards_[*index].get();
    if (*index == 0) {
      shard->Serve(std::move(stream), *std::move(offer));
    } else {
      shard->executor().PostFunction(
          [shard, stream = std::move(stream), offer = *std::move(offer)]() mutable {
            shard->Serve(std::move(stream), std::move(offer));
          });
    }
  }

  internal::RuntimeCore& runtime_;
  internal::MethodTable methods_;
  std::string address_;
  std::unique_ptr<MessageListener> listener_;
  std::unique_ptr<internal::HandshakeGate> gate_;
  internal::ThrottledLog accept_log_{LogComponent::kServer, {.lines = 2}};
  std::unique_ptr<internal::DedupeTable> dedupe_;  // outlives the shards
  std::vector<std::unique_ptr<internal::ServerShard>> shards_;
  std::unique_ptr<TaskScope> accepting_;
  std::unique_ptr<internal::Registrar> registrar_;  // nullptr: the server does not register
  std::unique_ptr<TaskScope> registering_;
  std::atomic<uint64_t> handshakes_failed_ = 0;  // counted on executor 0, read by any thread
  Duration drain_delay_ = Duration::zero();
  uint64_t number_ = 0;  // among those that the runtime serves; 0: it has not started
  std::atomic<bool> shutting_down_ = false;
  mutable std::atomic<bool> was_registered_ = false;  // as entry() has seen
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Runtime& runtime,
                                                      const std::vector<Service*>& services,
                                                      const ServerOptions& options) {
  internal::CheckMayBlock("Server::Start");
  auto impl = std::make_unique<Impl>(runtime);
  VERBENA_RETURN_IF_ERROR(impl->Start(services, options));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() {
  impl_->OnShutdown();
  internal::CheckMayBlock("~Server");
  impl_->Shutdown(Duration::zero(), Duration::zero());
  impl_->LeaveReports();
  impl_->AwaitHandlers();
}
const std::string& Server::address() const { return impl_->address(); }
std::vector<RunningHandler> Server::Shutdown(Duration grace) {
  impl_->OnShutdown();
  internal::CheckMayBlock("Server::Shutdown");
  return impl_->Shutdown(impl_->drain_delay(), grace);
}
ServerStats Server::stats() const { return impl_->stats(); }

}  // namespace verbena
