#include "verbena/rpc/naming/etcd/directory.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/rpc/naming/etcd/messages.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

// Enters etcd into the programs that link //rpc:etcd (rpc/naming/registrar.h).

static_assert(EtcdTarget::kMaxEndpoints == EtcdClient::kMaxEndpoints);

EtcdOptions OptionsOf(EtcdTarget& target) {
  return {.endpoints = std::move(target.endpoints),
          .tls = target.tls,
          .ca_file = std::move(target.ca_file),
          .certificate_file = std::move(target.certificate_file),
          .key_file = std::move(target.key_file),
          .user = std::move(target.user),
          .password_file = std::move(target.password_file)};
}

class EtcdDirectory final : public Directory {
 public:
  std::shared_ptr<Resolver> MakeResolver(EtcdTarget target) const override {
    EtcdOptions options = OptionsOf(target);
    return std::make_shared<EtcdResolver>(std::move(options), std::move(target.prefix));
  }
  std::unique_ptr<Registrar> MakeRegistrar(EtcdTarget target, ServerEntry entry,
                                           Duration ttl) const override {
    EtcdOptions options = OptionsOf(target);
    return std::make_unique<EtcdRegistrar>(std::move(options), target.prefix + entry.server.name,
                                           EncodeServerValue(entry), ttl);
  }
};

[[maybe_unused]] const bool entered = [] {
  Directory::Enter(*new EtcdDirectory());
  return true;
}();

constexpr Duration kFirstRegistrationPause = std::chrono::milliseconds(100);
// Short beside the time to live, so that a short loss of etcd costs no lease.
Duration LongestRegistrationPause(Duration ttl) {
  return std::min<Duration>(std::chrono::seconds(2), ttl / 6);
}

EtcdOptions ForRegistration(EtcdOptions options, Duration ttl) {
  options.timeout = std::min(options.timeout, RegistrationTimeout(ttl));
  return options;
}

// Between a watch that is lost and the next one: etcd's other clients have lost theirs, too.
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestResolverPause = std::chrono::seconds(5);

// A set takes over no more, so that it comes in good time however fast changes come.
constexpr size_t kMostEventsOfASet = 4096;

bool IsStopped(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Duration RegistrationTimeout(Duration ttl) {
  return std::min<Duration>(EtcdOptions().timeout, ttl / 6);
}

EtcdRegistrar::EtcdRegistrar(EtcdOptions options, std::string key, std::string value, Duration ttl)
    : options_(ForRegistration(std::move(options), ttl)),
      key_(std::move(key)),
      value_(std::move(value)),
      ttl_(ttl),
      period_(ttl / 3, ttl / 3),
      pause_(kFirstRegistrationPause, LongestRegistrationPause(ttl)) {}

EtcdRegistrar::EtcdRegistrar(std::unique_ptr<EtcdClient> client, std::string key, std::string value,
                             Duration ttl, Random& random)
    : key_(std::move(key)),
      value_(std::move(value)),
      ttl_(ttl),
      client_(std::move(client)),
      period_(ttl / 3, ttl / 3, random),
      pause_(kFirstRegistrationPause, LongestRegistrationPause(ttl), random) {}

Task<void> EtcdRegistrar::Run() {
  for (;;) {
    absl::Status status = co_await Register();
    if (status.ok()) {
      pause_.Reset();
      last_failure_.clear();
      NoteHolder(true);
      status = co_await Keep();
      registered_ = false;
      if (absl::IsNotFound(status)) {
        VERBENA_LOG_LINE(kNaming, kWarning,
                         fmt::format("etcd's lease of {} has ended: register again", key_),
                         {{"server", key_}});
        continue;
      }
    }
    if (!co_await Pause(status)) co_return;
  }
}

Task<bool> EtcdRegistrar::Pause(const absl::Status& failure) {
  const CancelScope* cancel = (co_await CurrentContext()).cancel;
  if (cancel != nullptr && cancel->requested()) co_return false;
  std::string why(failure.message());
  if (why != last_failure_) {
    VERBENA_LOG_LINE(kNaming, kWarning, fmt::format("{} is not kept in etcd: {}", key_, why),
                     {{"server", key_}});
    last_failure_ = std::move(why);
  }
  co_return (co_await Sleep(pause_.Next())).ok();
}

Task<absl::Status> EtcdRegistrar::Register() {
  if (client_ == nullptr) {
    VERBENA_CO_ASSIGN_OR_RETURN(client_, co_await EtcdCore::StartClient(options_));
  }
  // A lease whose key could not be put is used again. If etcd has ended it, the next one is new.
  if (lease_ == 0) {
    const TimePoint asked = (co_await CurrentContext()).scheduler->now();
    VERBENA_CO_ASSIGN_OR_RETURN(const EtcdLease lease, co_await client_->GrantLease(ttl_));
    lease_ = lease.id;
    lease_end_ = SaturatingAdd(asked, lease.ttl);
  }
  const absl::Status put = (co_await client_->Commit(EtcdTxn().Put(key_, value_, lease_))).status();
  if (absl::IsNotFound(put)) lease_ = 0;
  co_return put;
}

Task<absl::Status> EtcdRegistrar::Keep() {
  const Scheduler& scheduler = *(co_await CurrentContext()).scheduler;
  for (;;) {
    VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(period_.Next()));
    for (;;) {
      const absl::Status kept = co_await KeepOnce();
      if (kept.ok()) break;
      if (absl::IsNotFound(kept)) {
        lease_ = 0;
        co_return kept;
      }
      CheckLease(scheduler.now());
      if (!co_await Pause(kept)) co_return kept;
      CheckLease(scheduler.now());
    }
    pause_.Reset();
    last_failure_.clear();
  }
}

Task<absl::Status> EtcdRegistrar::KeepOnce() {
  const TimePoint asked = (co_await CurrentContext()).scheduler->now();
  VERBENA_CO_ASSIGN_OR_RETURN(const EtcdLease lease, co_await client_->KeepAlive(lease_));
  lease_end_ = SaturatingAdd(asked, lease.ttl);
  VERBENA_CO_ASSIGN_OR_RETURN(
      const EtcdTxnResult put,
      co_await client_->Commit(EtcdTxn().IfAbsent(key_).Put(key_, value_, lease_).OrGet(key_)));
  NoteHolder(put.succeeded ||
             std::any_of(put.read.begin(), put.read.end(),
                         [this](const EtcdEntry& each) { return each.lease == lease_; }));
  co_return absl::OkStatus();
}

void EtcdRegistrar::CheckLease(TimePoint now) {
  if (now >= lease_end_) registered_ = false;
}

void EtcdRegistrar::NoteHolder(bool is_ours) {
  const bool was_registered = registered_.exchange(is_ours);
  if (is_ours && !was_registered) {
    VERBENA_LOG_LINE(kNaming, kInfo, fmt::format("registered in etcd as {}", key_),
                     {{"server", key_}});
  }
  if (!is_ours && !taken_over_) {
    VERBENA_LOG_LINE(
        kNaming, kWarning,
        fmt::format("somebody else has put {} in etcd, such as another server with this name, and "
                    "clients go by that (RegistrationOptions::name)",
                    key_),
        {{"server", key_}});
  }
  taken_over_ = !is_ours;
}

Task<absl::Status> EtcdRegistrar::Remove() {
  registered_ = false;
  // Nothing was put, as far as is known; a key that was put nevertheless goes with its lease.
  if (lease_ == 0) co_return absl::OkStatus();
  const absl::Status revoked = co_await client_->Revoke(std::exchange(lease_, 0));
  co_return absl::IsNotFound(revoked) ? absl::OkStatus() : revoked;
}

EtcdResolver::EtcdResolver(EtcdOptions options, std::string prefix)
    : options_(std::move(options)),
      prefix_(std::move(prefix)),
      random_(Random::Real()),
      look_(kPeriod, kLongestPeriod),
      pause_(kFirstPause, kLongestResolverPause) {}

EtcdResolver::EtcdResolver(std::unique_ptr<EtcdClient> client, std::string prefix, Random& random)
    : prefix_(std::move(prefix)),
      client_(std::move(client)),
      random_(random),
      look_(kPeriod, kLongestPeriod, random),
      pause_(kFirstPause, kLongestResolverPause, random) {}

Task<absl::StatusOr<std::vector<ResolvedServer>>> EtcdResolver::Next() {
  VERBENA_CO_RETURN_IF_ERROR(co_await StartClient());
  const Scheduler& scheduler = *(co_await CurrentContext()).scheduler;
  for (;;) {
    if (watch_ == nullptr) {
      VERBENA_CO_RETURN_IF_ERROR(co_await List());
      if (MayTell(scheduler.now())) co_return Servers();
    }
    const absl::StatusOr<bool> changed = co_await Hear();
    if (changed.ok() && *changed) {
      if (MayTell(scheduler.now())) co_return Servers();
      continue;
    }
    if (changed.ok()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Compare());
      // Etcd has said again that it has none.
      const bool is_still_empty =
          empty_since_ != kNever && watch_ != nullptr && !heard_.has_value();
      if (is_still_empty && MayTell(scheduler.now())) co_return Servers();
      continue;
    }
    VERBENA_CO_RETURN_IF_ERROR(IsStopped(changed.status()) ? changed.status() : absl::OkStatus());
    watch_ = nullptr;
    const TimePoint now = scheduler.now();
    VERBENA_LOG_THROTTLED(log_, kInfo, now,
                          fmt::format("a watch of {} is lost, and its keys are listed again: {}",
                                      prefix_, std::string(changed.status().message())),
                          {{"target", prefix_}});
    // Compaction costs one list. Twice in a row, etcd compacts faster than it is listed.
    const bool compacted = absl::IsOutOfRange(changed.status());
    const bool again = std::exchange(compacted_, compacted);
    if (compacted && !again) continue;
    const Duration spread(random_.Below(static_cast<uint64_t>(Duration(kSpread).count())));
    VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(pause_.Next() + spread));
  }
}

Task<absl::Status> EtcdResolver::StartClient() {
  if (client_ != nullptr) co_return absl::OkStatus();
  VERBENA_CO_ASSIGN_OR_RETURN(client_, co_await EtcdCore::StartClient(options_));
  co_return absl::OkStatus();
}

Task<absl::Status> EtcdResolver::List() {
  // One more shows that there are too many.
  VERBENA_CO_ASSIGN_OR_RETURN(const EtcdRange range,
                              co_await client_->List(prefix_, kMaxServers + 1));
  if (range.entries.size() > kMaxServers) {
    co_return absl::ResourceExhaustedError(
        fmt::format("etcd has {} keys below {}, but a set may have {}: give each service a prefix "
                    "of its own",
                    range.count, prefix_, size_t{kMaxServers}));
  }
  const TimePoint now = (co_await CurrentContext()).scheduler->now();
  look_.NoteLook(now);
  known_.clear();
  heard_.reset();
  newest_ = 0;
  revision_ = range.revision;
  for (const EtcdEntry& entry : range.entries) Put(entry, now);
  watch_ = client_->Watch(prefix_, range.revision + 1);
  co_return absl::OkStatus();
}

Task<absl::Status> EtcdResolver::TakeFromWatch() {
  if (heard_.has_value()) co_return absl::OkStatus();
  absl::StatusOr<EtcdChanges> changes = co_await watch_->Next();
  VERBENA_CO_RETURN_IF_ERROR(IsStopped(changes.status()) ? changes.status() : absl::OkStatus());
  heard_ = std::move(changes);
  co_return absl::OkStatus();
}

Task<absl::StatusOr<bool>> EtcdResolver::Hear() {
  auto first = co_await WhenAny(TakeFromWatch(), look_.Due());
  if (!heard_.has_value()) {
    VERBENA_CO_RETURN_IF_ERROR(first.index() == 0 ? std::get<0>(first) : std::get<1>(first));
    co_return false;
  }
  const TimePoint now = (co_await CurrentContext()).scheduler->now();
  // The channel takes its time over each set. So all that has come makes one: otherwise a key that
  // changes all the time would keep the sets further and further behind.
  size_t events = 0;
  do {
    const absl::StatusOr<EtcdChanges> changes = *std::exchange(heard_, std::nullopt);
    VERBENA_CO_RETURN_IF_ERROR(changes.status());
    events += changes->events.size();
    VERBENA_CO_RETURN_IF_ERROR(TakeOver(*changes, now));
    if (events >= kMostEventsOfASet || !watch_->HasMore()) break;
    (void)co_await WhenAny(TakeFromWatch(), Yield());
  } while (heard_.has_value());
  co_return true;
}

absl::Status EtcdResolver::TakeOver(const EtcdChanges& changes, TimePoint now) {
  pause_.Reset();
  compacted_ = false;
  for (const EtcdEvent& event : changes.events) {
    if (!event.entry.key.starts_with(prefix_)) continue;
    newest_ = std::max(newest_, event.entry.mod_revision);
    if (!event.deleted) {
      Put(event.entry, now);
    } else {
      known_.erase(event.entry.key);
    }
  }
  revision_ = std::max(revision_, changes.revision);
  if (known_.size() <= kMaxServers) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("etcd has more than {} keys below {}, the most that a set may have: give each "
                  "service a prefix of its own",
                  size_t{kMaxServers}, prefix_));
}

Task<absl::Status> EtcdResolver::Compare() {
  const absl::StatusOr<EtcdRange> newest = co_await client_->Newest(prefix_);
  // The channel hears that etcd is gone, and keeps its servers. Then they are listed anew.
  if (!newest.ok() && !IsStopped(newest.status())) watch_ = nullptr;
  VERBENA_CO_RETURN_IF_ERROR(newest.status());
  // Keys as old as those that are known, and as many, are the same. A store whose revision is
  // behind is another one, such as an old copy.
  const bool is_older = newest->revision < revision_;
  const bool is_same =
      !is_older && newest->count == static_cast<int64_t>(known_.size()) &&
      std::all_of(newest->entries.begin(), newest->entries.end(),
                  [this](const EtcdEntry& each) { return each.mod_revision <= newest_; });
  if (is_same) {
    pause_.Reset();
    compacted_ = false;
    co_return absl::OkStatus();
  }
  // Word of the change may be on its way through the watch.
  if (!is_older) (void)co_await WithDeadline(TakeFromWatch(), kLateness);
  if (heard_.has_value()) co_return absl::OkStatus();
  const CancelScope* cancel = (co_await CurrentContext()).cancel;
  if (cancel != nullptr && cancel->requested()) co_return cancel->status();
  VERBENA_LOG_LINE(
      kNaming, kWarning,
      fmt::format("etcd has changed keys below {}, but its watch is silent: list them again",
                  prefix_),
      {{"target", prefix_}});
  watch_ = nullptr;
  co_return absl::OkStatus();
}

void EtcdResolver::Put(const EtcdEntry& entry, TimePoint now) {
  newest_ = std::max(newest_, entry.mod_revision);
  const std::string_view key = entry.key;
  std::optional<ResolvedServer>& known = known_[entry.key];
  known.reset();
  absl::StatusOr<ServerEntry> read =
      DecodeServerValue(key.substr(std::min(prefix_.size(), key.size())), entry.value);
  if (read.ok()) {
    // Somebody drains a server of weight 0.
    if (read->server.weight > 0) known = std::move(read->server);
  } else {
    VERBENA_LOG_THROTTLED(log_, kWarning, now,
                          fmt::format("the server that etcd has as {} is left out: {}",
                                      Shown(entry.key), std::string(read.status().message())),
                          {{"target", prefix_}, {"server", Shown(entry.key)}});
  }
}

std::vector<ResolvedServer> EtcdResolver::Servers() const {
  std::vector<ResolvedServer> servers;
  servers.reserve(known_.size());
  for (const auto& [key, server] : known_) {
    if (server.has_value()) servers.push_back(*server);
  }
  return servers;
}

bool EtcdResolver::MayTell(TimePoint now) {
  const bool is_empty = std::none_of(known_.begin(), known_.end(),
                                     [](const auto& each) { return each.second.has_value(); });
  if (is_empty && told_servers_) {
    if (empty_since_ == kNever) {
      empty_since_ = now;
      VERBENA_LOG_LINE(
          kNaming, kWarning,
          fmt::format("etcd has no server below {} any more: the last ones stay for some {} s",
                      prefix_,
                      std::chrono::duration_cast<std::chrono::seconds>(kEmptyGrace).count()),
          {{"target", prefix_}});
    }
    if (now < SaturatingAdd(empty_since_, kEmptyGrace)) return false;
  }
  told_servers_ = !is_empty;
  empty_since_ = kNever;
  return true;
}

}  // namespace verbena::internal
