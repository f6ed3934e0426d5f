#include "verbena/rpc/client/channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/lending.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/balancer.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/dedupe.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/client/subchannels.h"
#include "verbena/rpc/naming/resolvers.h"
#include "verbena/rpc/naming/service_config.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena {
namespace internal {
namespace {

ExecutorWish WishOf(const ChannelOptions& options) {
  if (options.server_executor >= 0) {
    return {.choice = ExecutorChoice::kNumber,
            .number = static_cast<uint32_t>(options.server_executor) % kMaxExecutors};
  }
  if (options.server_key != 0) return {.choice = ExecutorChoice::kKey, .key = options.server_key};
  return {};
}

void CheckEjection(const EjectionOptions& ejection) {
  using std::chrono::duration_cast;
  using std::chrono::hours;
  using std::chrono::milliseconds;
  using Ms = std::chrono::milliseconds;
  if (ejection.interval == Duration::zero()) return;
  VERBENA_CHECK(ejection.interval >= milliseconds(1) && ejection.interval <= hours(1))
      << "ejection.interval is " << duration_cast<Ms>(ejection.interval).count()
      << " ms, its range 1 ms to 1 h, or 0";
  VERBENA_CHECK(ejection.failure_percent <= 100)
      << "ejection.failure_percent is " << ejection.failure_percent << ", its range 0 to 100";
  VERBENA_CHECK(ejection.min_calls >= 1) << "ejection.min_calls is 0, and must be at least 1";
  VERBENA_CHECK(ejection.latency_factor == 0 ||
                (ejection.latency_factor >= 1.5 && ejection.latency_factor <= 1000))
      << "ejection.latency_factor is " << ejection.latency_factor
      << ", its range 1.5 to 1000, or 0";
  VERBENA_CHECK(ejection.first_ejection >= milliseconds(1) &&
                ejection.first_ejection <= ejection.longest_ejection &&
                ejection.longest_ejection <= hours(24))
      << "ejection.first_ejection is " << duration_cast<Ms>(ejection.first_ejection).count()
      << " ms and longest_ejection " << duration_cast<Ms>(ejection.longest_ejection).count()
      << " ms, their range 1 ms to 24 h, and the first is at most the second";
  VERBENA_CHECK(ejection.max_ejected_percent >= 1 && ejection.max_ejected_percent <= 50)
      << "ejection.max_ejected_percent is " << ejection.max_ejected_percent
      << ", its range 1 to 50";
}

// Aborts if an option of sets is out of its range.
void CheckSetOptions(const ChannelOptions& options) {
  VERBENA_CHECK(options.subset_size <= Resolver::kMaxServers)
      << "subset_size is " << options.subset_size << ", its range 0 to " << Resolver::kMaxServers;
  VERBENA_CHECK(options.subset_size == 0 || (options.balancing != Balancing::kPickFirst &&
                                             options.balancing != Balancing::kRouteKey))
      << "subset_size is " << options.subset_size
      << ", but kPickFirst needs one server, and kRouteKey all of them: leave it 0";
  VERBENA_CHECK(options.executors_per_server >= 1 && options.executors_per_server <= 64)
      << "executors_per_server is " << options.executors_per_server << ", its range 1 to 64";
  VERBENA_CHECK(options.executors_per_server == 1 ||
                (options.server_executor == -1 && options.server_key == 0))
      << "executors_per_server is " << options.executors_per_server
      << ": leave server_executor and server_key unset";
  CheckEjection(options.ejection);
}

// nullptr: the target is one server.
std::shared_ptr<ServerFeed> FeedOf(ServerFeeds& feeds, const std::string& target,
                                   const std::shared_ptr<Resolver>& resolver) {
  if (resolver != nullptr) {
    return ServerFeeds::Alone(std::make_shared<ServerFeed>(target, resolver));
  }
  absl::StatusOr<Target> parsed = ParseTarget(target);
  if (!parsed.ok()) return std::make_shared<ServerFeed>(target, parsed.status());
  if (std::holds_alternative<PlainTarget>(*parsed)) return nullptr;
  return feeds.To(target, [&target, &parsed] {
    absl::StatusOr<std::shared_ptr<Resolver>> made = MakeResolver(*std::move(parsed));
    return made.ok() ? std::make_shared<ServerFeed>(target, *std::move(made))
                     : std::make_shared<ServerFeed>(target, made.status());
  });
}

// nullptr: no method has a policy.
std::unique_ptr<CallPolicies> PoliciesOf(const ServiceConfig& config, int executors) {
  const absl::Status checked = CheckServiceConfig(config);
  VERBENA_CHECK(checked.ok()) << std::string(checked.message());
  if (config.methods.empty()) return nullptr;
  return std::make_unique<CallPolicies>(config, executors);
}

}  // namespace

ClientChannel::ClientChannel(RuntimeCore& runtime, std::string target, ChannelOptions options)
    : runtime_(runtime),
      uses_(runtime.executors()),
      target_(std::move(target)),
      options_(std::move(options)),
      policies_(PoliciesOf(options_.service_config, runtime.executors())),
      plain_(policies_ == nullptr && options_.interceptors.empty()),
      counts_calls_(runtime.counts_calls()),
      feed_(FeedOf(runtime.parts().Get<ServerFeeds>(), target_, options_.resolver)),
      dedupe_clients_(runtime.executors()) {
  VERBENA_CHECK(options_.server_executor >= -1 &&
                (options_.server_executor == -1 || options_.server_key == 0))
      << "server_executor is " << options_.server_executor << " and server_key is "
      << options_.server_key << ": set at most one of them, server_executor to -1 or more";
  CheckSetOptions(options_);
  VERBENA_CHECK(options_.max_metadata_bytes <= Metadata::kMaxBytes)
      << "max_metadata_bytes is " << options_.max_metadata_bytes << ", its range 0 to "
      << Metadata::kMaxBytes;
  for (const auto& interceptor : options_.interceptors) {
    VERBENA_CHECK(interceptor != nullptr) << "one of ChannelOptions::interceptors is null";
  }
}

ClientChannel::~ClientChannel() {
  for (const Use& use : uses_) {
    if (use.gate == nullptr) continue;
    use.gate->Post([use] {
      if (!use.gate->open()) return;
      if (use.balancer != nullptr) {
        use.connections->EndChoice(*use.balancer);
      } else {
        use.connections->Release(*use.connection);
      }
    });
  }
}

Connection* ClientChannel::FirstUse(Shard& shard, std::optional<uint64_t> route_key) {
  if (feed_ != nullptr) return BalancerOn(shard).Pick(route_key);
  Connections& here = Connections::Of(shard);
  Use& use = uses_[shard.index()];
  use = {
      .connection = &here.To(target_, WishOf(options_)), .connections = &here, .gate = here.gate()};
  return use.connection;
}

Connection* ClientChannel::Apart(const TriedServers& tried, std::optional<uint64_t> route_key) {
  if (Connection* home = tried.home()) return home;
  const Shard* shard = ShardHere();
  if (shard == nullptr || tried.empty()) return Here(route_key);
  Balancer* balancer = uses_[shard->index()].balancer;
  return balancer == nullptr ? Here(route_key) : balancer->PickOther(route_key, tried);
}

Balancer& ClientChannel::BalancerOn(Shard& shard) {
  Use& use = uses_[shard.index()];
  if (use.balancer == nullptr) {
    Connections& here = Connections::Of(shard);
    auto balancer = std::make_unique<Balancer>(
        shard, here,
        BalancerSetup{.servers = {.target = target_,
                                  .policy = options_.balancing,
                                  .zone = options_.zone,
                                  .wish = WishOf(options_),
                                  .subset_size = options_.subset_size,
                                  .executors_per_server = options_.executors_per_server},
                      .ejection = options_.ejection},
        feed_);
    use = {.balancer = balancer.get(), .connections = &here, .gate = here.gate()};
    here.Own(std::move(balancer));
  }
  return *use.balancer;
}

const std::shared_ptr<DedupeClient>& ClientChannel::DedupeClientOn(const Shard& shard) {
  std::shared_ptr<DedupeClient>& client = dedupe_clients_[shard.index()];
  if (client == nullptr) {
    client = std::make_shared<DedupeClient>(RuntimeId::Random().bytes);
  }
  return client;
}

Task<absl::StatusOr<ConnectionUse>> ClientChannel::Route(std::optional<uint64_t> route_key,
                                                         Deadline deadline, bool wait_for_ready) {
  Shard* shard = ShardHere();
  if (shard == nullptr) co_return NotOnAnExecutor();
  absl::StatusOr<ConnectionUse> use;
  if (feed_ != nullptr) {
    use = co_await BalancerOn(*shard).AwaitPick(route_key, deadline, wait_for_ready);
  } else {
    use = ConnectionUse(*Here());
    const absl::Status ready = (co_await (*use)->Session(deadline, wait_for_ready)).status();
    if (!ready.ok()) use = ready;
  }
  if (!use.ok()) co_return WithOutcome(use.status(), Outcome::kNotExecuted);
  co_return use;
}

absl::StatusOr<std::vector<ChannelServer>> ClientChannel::Servers() {
  Shard* shard = ShardHere();
  if (shard == nullptr) return NotOnAnExecutor();
  if (feed_ != nullptr) return BalancerOn(*shard).Servers();
  return std::vector<ChannelServer>{
      DescribeConnection(*Here(), {.addresses = {target_}, .name = target_})};
}

Task<absl::StatusOr<uint64_t>> ClientChannel::ServersChanged(uint64_t seen) {
  Shard* shard = ShardHere();
  if (shard == nullptr) co_return NotOnAnExecutor();
  if (feed_ != nullptr) co_return co_await BalancerOn(*shard).AwaitChange(seen);
  const ConnectionUse connection(*Here());
  for (;;) {
    if (connection->revision() != seen) co_return connection->revision();
    if (shard->closing()) co_return absl::UnavailableError("the runtime is being destroyed");
    VERBENA_CO_RETURN_IF_ERROR(co_await connection->StateChanged());
  }
}

absl::Status ClientChannel::CheckOneServer(const char* what) const {
  if (feed_ == nullptr) return absl::OkStatus();
  return WithOutcome(
      absl::FailedPreconditionError(fmt::format(
          "{} belongs to one server, but {} names a set: make a channel to an address of one of "
          "Servers()",
          what, target_)),
      Outcome::kNotExecuted);
}

ClientChannel& CoreOf(const Channel& channel) { return *channel.core_; }

}  // namespace internal

namespace {

// LinkWish says what a caller of a channel waits for, and how long, before it has a link.
struct LinkWish {
  std::optional<uint64_t> route_key = {};
  Deadline deadline = {};
  bool wait_for_ready = false;
};

LinkWish WishOf(const CallOptions& options, const ChannelOptions& channel) {
  return {.route_key = options.route_key,
          .deadline = options.deadline.is_given() ? options.deadline : channel.default_deadline,
          .wait_for_ready = options.wait_for_ready};
}

// The deadline of the Task that asks for memory, or for a loan.
TimePoint AmbientDeadline(const TaskContext& context) { return context.deadline(); }

Task<absl::Status> ConnectFor(internal::ClientChannel& channel, LinkWish wish) {
  const internal::Shard* shard = channel.ShardHere();
  if (shard == nullptr) co_return internal::NotOnAnExecutor();
  const Deadline deadline = wish.deadline.At(shard->executor());
  co_return (co_await channel.Route(wish.route_key, deadline, wish.wait_for_ready)).status();
}

Task<absl::StatusOr<Buffer>> AllocateFor(internal::ClientChannel& channel, size_t bytes,
                                         LinkWish wish) {
  const internal::Shard* shard = channel.ShardHere();
  if (shard == nullptr) co_return internal::NotOnAnExecutor();
  const TimePoint deadline =
      std::min(wish.deadline.At(shard->executor()), AmbientDeadline(co_await CurrentContext()));
  VERBENA_CO_ASSIGN_OR_RETURN(
      const internal::ConnectionUse connection,
      co_await channel.Route(wish.route_key, deadline, wish.wait_for_ready));
  // The link may have been lost since.
  absl::StatusOr<internal::ClientSession*> session =
      co_await connection->Session(deadline, wish.wait_for_ready);
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  const internal::Endpoint& endpoint = (*session)->link()->endpoint();
  absl::StatusOr<Buffer> buffer = co_await internal::AllocateUntil(
      endpoint, endpoint.memory().send(), bytes, {.deadline = deadline});
  if (!buffer.ok()) co_return WithOutcome(buffer.status(), Outcome::kNotExecuted);
  co_return buffer;
}

}  // namespace

Channel::Channel(Runtime& runtime, std::string target, ChannelOptions options)
    : core_(std::make_unique<internal::ClientChannel>(internal::CoreOf(runtime), std::move(target),
                                                      std::move(options))) {}

Channel::~Channel() = default;

const std::string& Channel::target() const { return core_->target(); }

const ChannelOptions& Channel::options() const { return core_->options(); }

Task<absl::Status> Channel::Connect() { return ConnectFor(*core_, {}); }

Task<absl::Status> Channel::Connect(const CallOptions& options) {
  return ConnectFor(*core_, WishOf(options, core_->options()));
}

Task<absl::StatusOr<Buffer>> Channel::AllocateBuffer(size_t bytes) {
  return AllocateFor(*core_, bytes, {});
}

Task<absl::StatusOr<Buffer>> Channel::AllocateBuffer(size_t bytes, const CallOptions& options) {
  return AllocateFor(*core_, bytes, WishOf(options, core_->options()));
}

absl::StatusOr<std::vector<ChannelServer>> Channel::Servers() { return core_->Servers(); }

Task<absl::StatusOr<uint64_t>> Channel::ServersChanged(uint64_t seen) {
  return core_->ServersChanged(seen);
}

RetryStats Channel::retry_stats() const {
  const internal::CallPolicies* policies = core_->policies();
  return policies == nullptr ? RetryStats() : policies->stats();
}

Task<absl::StatusOr<std::string>> Channel::DeviceName() {
  VERBENA_CO_ASSIGN_OR_RETURN(const internal::ConnectionUse connection,
                              co_await core_->Route({}, {}, /*wait_for_ready=*/false));
  absl::StatusOr<internal::ClientSession*> session = co_await connection->Session({});
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  co_return (*session)->link()->endpoint().device_name();
}

Task<absl::StatusOr<Loan>> Channel::Lend(BufferView view, LeaseAccess access) {
  VERBENA_CO_RETURN_IF_ERROR(core_->CheckOneServer("a loan"));
  internal::Connection* connection = core_->Here();
  if (connection == nullptr) co_return internal::NotOnAnExecutor();
  const TimePoint deadline = AmbientDeadline(co_await CurrentContext());
  absl::StatusOr<internal::ClientSession*> session = co_await connection->Session(deadline);
  if (!session.ok()) co_return WithOutcome(session.status(), Outcome::kNotExecuted);
  absl::StatusOr<Loan> loan =
      co_await internal::Lending::Lend(*(*session)->link(), view, access, deadline);
  if (!loan.ok()) co_return WithOutcome(loan.status(), Outcome::kNotExecuted);
  co_return loan;
}

absl::StatusOr<RemoteMemory> Channel::Remote(const RemoteMemoryHandle& handle) {
  VERBENA_RETURN_IF_ERROR(core_->CheckOneServer("memory that a server lends"));
  internal::Connection* connection = core_->Here();
  if (connection == nullptr) return internal::NotOnAnExecutor();
  internal::ClientSession* session = connection->usable_session();
  if (session == nullptr) {
    return absl::FailedPreconditionError(
        "the link that the memory was lent over is lost, or its server is shutting down: ask a "
        "server for a new handle by another call");
  }
  absl::StatusOr<RemoteMemory> memory = internal::Lending::Remote(*session->link(), handle);
  if (memory.ok()) session->NoteRemoteMemory();
  return memory;
}

}  // namespace verbena
