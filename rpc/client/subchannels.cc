#include "verbena/rpc/client/subchannels.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/rpc/client/picker.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

// The calls of one server since the last judgement.
struct Interval {
  uint64_t calls = 0;
  uint64_t failed = 0;
  uint64_t in_a_row = 0;  // failures without an answer in between, also of earlier intervals
  uint64_t timed = 0;
  double mean_us = 0;

  double failed_percent() const {
    return 100.0 * static_cast<double>(failed) / static_cast<double>(calls);
  }
};

Interval IntervalOf(const JudgedServer& server) {
  const CallTally& now = *server.tally;
  const CallTally& before = server.record->before;
  Interval since{
      .failed = now.failed - before.failed,
      .in_a_row = now.failed - std::max(now.failed_before_answer, server.record->forgiven),
      .timed = now.timed - before.timed};
  since.calls = since.failed + now.answered - before.answered;
  if (since.timed > 0) {
    since.mean_us = std::chrono::duration_cast<Microseconds>(now.time - before.time).count() /
                    static_cast<double>(since.timed);
  }
  return since;
}

// The lower one of the middle two; 0 if there are none.
double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How the set did, to which each server is compared.
struct Middle {
  double failed_percent = 0;
  double mean_us = 0;
  bool answers = false;  // at least half of the servers have answered a call, or had none
};

Middle MiddleOf(const EjectionOptions& options, const std::vector<Interval>& intervals) {
  std::vector<double> failed;
  std::vector<double> means;
  size_t silent = 0;
  for (const Interval& each : intervals) {
    if (each.calls >= options.min_calls) failed.push_back(each.failed_percent());
    if (each.timed >= kLeastTimed) means.push_back(each.mean_us);
    if (each.in_a_row > 0 && each.failed == each.calls) ++silent;
  }
  return {.failed_percent = Median(std::move(failed)),
          .mean_us = Median(std::move(means)),
          .answers = silent * 2 <= intervals.size()};
}

// "": it goes on.
std::string Verdict(const EjectionOptions& options, const Interval& own, const Middle& middle) {
  if (options.consecutive_failures > 0 && own.in_a_row >= options.consecutive_failures &&
      middle.answers) {
    return fmt::format("{} calls in a row failed", own.in_a_row);
  }
  if (options.failure_percent > 0 && own.calls >= options.min_calls &&
      own.failed_percent() >= options.failure_percent &&
      middle.failed_percent * 2 < options.failure_percent) {
    return fmt::format("{} of {} calls failed", own.failed, own.calls);
  }
  if (options.latency_factor > 0 && own.timed >= kLeastTimed &&
      own.mean_us > options.latency_factor * middle.mean_us) {
    return fmt::format(
        "its calls took {:.0f} us on average, and {:.0f} us is the median of the set", own.mean_us,
        middle.mean_us);
  }
  return "";
}

Duration LengthOf(const EjectionOptions& options, uint32_t times) {
  // Divided, since the product may be beyond a Duration.
  return options.longest_ejection / times < options.first_ejection ? options.longest_ejection
                                                                   : options.first_ejection * times;
}

void Eject(const EjectionOptions& options, TimePoint now, std::string why, OutlierRecord& record) {
  record.ejected = true;
  record.times = std::min(record.times + 1, 1'000'000u);
  record.until = SaturatingAdd(now, LengthOf(options, record.times));
  record.why = std::move(why);
}

void Readmit(TimePoint now, const JudgedServer& server) {
  OutlierRecord& record = *server.record;
  record.ejected = false;
  record.changed = now;
  record.before = *server.tally;
  record.forgiven = server.tally->failed;
}

// Rounded down, a small percentage would eject nobody of a small set.
size_t MostEjected(const EjectionOptions& options, size_t servers) {
  constexpr size_t kSmallestSet = 3;
  const size_t least = servers >= kSmallestSet ? 1 : 0;
  return std::max(servers * options.max_ejected_percent / 100, least);
}

// Ejections whose time is over, and those beyond `most`, which end when servers leave the set.
bool ReadmitDue(TimePoint now, const std::vector<JudgedServer>& servers, size_t most) {
  std::vector<const JudgedServer*> ejected;
  for (const JudgedServer& each : servers) {
    if (each.record->ejected) ejected.push_back(&each);
  }
  std::sort(ejected.begin(), ejected.end(), [](const JudgedServer* a, const JudgedServer* b) {
    return a->record->until < b->record->until;
  });
  bool any = false;
  for (size_t i = 0; i < ejected.size(); ++i) {
    const bool is_due = ejected[i]->record->until <= now;
    if (!is_due && ejected.size() - i <= most) continue;
    Readmit(now, *ejected[i]);
    any = true;
  }
  return any;
}

// With kPickFirst: at so many servers that fail a client knocks while one behind them serves. It
// returns to the first one that is back among these. (start)
constexpr size_t kKnocked = 4;

// A set takes at most three quarters of an executor's links, so that other channels find some.
// (start)
size_t ShareOfLinks(uint32_t max_links) { return std::max<size_t>(size_t{max_links} * 3 / 4, 1); }

}  // namespace

bool JudgeServers(const EjectionOptions& options, TimePoint now,
                  const std::vector<JudgedServer>& servers) {
  const size_t most = MostEjected(options, servers.size());
  bool changed = ReadmitDue(now, servers, most);
  std::vector<JudgedServer> judged;
  std::vector<Interval> intervals;
  for (const JudgedServer& each : servers) {
    if (each.record->ejected) continue;
    judged.push_back(each);
    intervals.push_back(IntervalOf(each));
  }
  size_t ejected = servers.size() - judged.size();
  const Middle middle = MiddleOf(options, intervals);
  for (size_t i = 0; i < judged.size(); ++i) {
    OutlierRecord& record = *judged[i].record;
    std::string why = Verdict(options, intervals[i], middle);
    if (!why.empty() && ejected < most) {
      Eject(options, now, std::move(why), record);
      ++ejected;
      changed = true;
    } else if (record.times > 0 && why.empty() &&
               now - record.changed >= LengthOf(options, record.times)) {
      --record.times;
      record.changed = now;
    }
    record.before = *judged[i].tally;
  }
  return changed;
}

Subchannel::Subchannel(SubchannelOwner& owner, Connections& connections, ResolvedServer server,
                       uint32_t id, uint32_t executor)
    : owner_(owner),
      connections_(connections),
      server_(std::move(server)),
      id_(id),
      executor_(executor),
      hash_(executor == 0 ? StableHash(server_.name)
                          : MixBits(StableHash(server_.name) + executor)),
      flap_backoff_(Connection::kInitialBackoff, connections.longest_pause()) {}

Subchannel::~Subchannel() {
  VERBENA_CHECK(connection_ == nullptr) << server_.name << " is destroyed while it is open";
}

void Subchannel::Open(const ExecutorWish& wish) {
  if (connection_ != nullptr) return;
  refusal_ = absl::OkStatus();
  late_ = false;
  const std::vector<std::string> others(server_.addresses.begin() + 1, server_.addresses.end());
  connection_ = &connections_.To(server_.addresses.front(), wish, others);
  connection_->AddListener(*this);
  outlier_ = {};
  // Other channels may have used the connection for long.
  if (const CallTally* past = connection_->tally()) {
    outlier_.before = *past;
    outlier_.forgiven = past->failed;
  }
  task_ = KeepConnected();
  task_.StartLater(connection_->shard().executor(), nullptr, this);
  // Another channel may have connected already.
  owner_.OnReadiness();
}

void Subchannel::Close(Connections::End end) {
  if (connection_ == nullptr) return;
  task_ = {};
  connection_->RemoveListener(*this);
  connections_.Release(*std::exchange(connection_, nullptr), end);
  owner_.OnReadiness();
}

Task<void> Subchannel::KeepConnected() {
  Connection& connection = *connection_;
  const Shard& shard = connection.shard();
  while (!shard.closing()) {
    const absl::Status ready = co_await AwaitReady();
    if (shard.closing()) break;
    if (ready.ok()) {
      const TimePoint opened = shard.executor().now();
      warned_ = false;
      owner_.OnReady(*this);
      if (connection.usable_session() != nullptr) {
        lost_.Reset();
        (void)co_await lost_.Wait();
      }
      const TimePoint next = PauseAfter(opened);
      flapping_.ok() ? owner_.OnReadiness() : owner_.OnFailed(*this);
      (void)co_await SleepUntil(next);
    } else {
      if (!std::exchange(warned_, true)) {
        VERBENA_LOG_LINE(kClient, kWarning,
                         fmt::format("the server {} of a set cannot be reached: {}", server_.name,
                                     std::string(ready.message())),
                         {{"server", server_.name}});
      }
      owner_.OnFailed(*this);
      (void)co_await SleepUntil(connection.next_attempt());
    }
  }
}

Task<absl::Status> Subchannel::AwaitReady() {
  const TimePoint now = connection_->shard().executor().now();
  absl::Status ready = co_await WithDeadline(connection_->Ready(), SaturatingAdd(now, kPatience));
  if (!absl::IsDeadlineExceeded(ready)) co_return ready;
  late_ = true;
  owner_.OnLate(*this);
  ready = co_await connection_->Ready();
  late_ = false;
  co_return ready;
}

TimePoint Subchannel::PauseAfter(TimePoint opened) {
  const TimePoint now = connection_->shard().executor().now();
  if (now - opened >= Connection::kLastingLink) {
    flaps_ = 0;
    flapping_ = absl::OkStatus();
    flap_backoff_.Reset();
    return now;
  }
  // One may be a restart.
  if (++flaps_ > 1) {
    flapping_ = absl::UnavailableError(
        fmt::format("{} lost {} links soon after they opened", server_.name, flaps_));
  }
  return SaturatingAdd(now, flap_backoff_.Next());
}

void Subchannel::OnReadiness(Connection& connection) {
  if (connection.usable_session() == nullptr) lost_.Set();
  owner_.OnReadiness();
}

ChannelServer Subchannel::Describe() const {
  if (connection_ == nullptr) return {.server = server_, .last_error = refusal_};
  ChannelServer described = DescribeConnection(*connection_, server_);
  if (described.state != ChannelServer::State::kReady && !flapping_.ok()) {
    described.state = ChannelServer::State::kFailing;
    described.last_error = flapping_;
  }
  if (described.state == ChannelServer::State::kReady && outlier_.ejected) {
    described.state = ChannelServer::State::kEjected;
    described.last_error = absl::UnavailableError(
        fmt::format("{} takes no calls for a while: {}", server_.name, outlier_.why));
  }
  // Its Task connects.
  if (described.state == ChannelServer::State::kIdle) {
    described.state = ChannelServer::State::kConnecting;
  }
  return described;
}

ChannelServer DescribeConnection(const Connection& connection, ResolvedServer server) {
  using State = ChannelServer::State;
  ChannelServer described{.server = std::move(server),
                          .in_flight = connection.calls_in_flight(),
                          .failures = connection.failures(),
                          .last_error = connection.last_error()};
  if (connection.usable_session() != nullptr) {
    described.state = State::kReady;
  } else if (!connection.last_error().ok()) {
    described.state = State::kFailing;
  } else if (connection.connecting()) {
    described.state = State::kConnecting;
  }
  return described;
}

uint64_t SubsetRank(uint64_t client, uint64_t server_hash) {
  return MixBits(client ^ MixBits(server_hash));
}

Subchannels::Subchannels(SubchannelOwner& owner, Connections& connections, SubchannelsSetup setup)
    : owner_(owner),
      connections_(connections),
      setup_(std::move(setup)),
      executors_(setup_.executors_per_server) {}

void Subchannels::CloseAll() {
  for (const std::unique_ptr<Subchannel>& each : all_) each->Close(Connections::End::kClose);
}

void Subchannels::Set(const ServerSet& set) {
  std::vector<std::unique_ptr<Subchannel>> before = std::exchange(all_, {});
  std::vector<bool> taken;
  absl::flat_hash_map<std::string, size_t> by_name;  // where its first one is
  for (size_t i = 0; i < before.size(); ++i) {
    const uint32_t id = before[i]->id();
    if (taken.size() <= id) taken.resize(id + 1);
    taken[id] = true;
    if (i % executors_ == 0) by_name.emplace(before[i]->server().name, i);
  }
  size_t lowest = 0;
  const auto free_id = [&taken, &lowest] {
    while (lowest < taken.size() && taken[lowest]) ++lowest;
    return static_cast<uint32_t>(lowest++);
  };
  for (const ResolvedServer& server : set) {
    const auto same = by_name.find(server.name);
    const bool stays = same != by_name.end() && before[same->second]->Is(server);
    for (size_t executor = 0; executor < executors_; ++executor) {
      if (stays) {
        all_.push_back(std::move(before[same->second + executor]));
        all_.back()->set_server(server);
      } else {
        all_.push_back(std::make_unique<Subchannel>(owner_, connections_, server, free_id(),
                                                    static_cast<uint32_t>(executor)));
      }
    }
  }
  for (const std::unique_ptr<Subchannel>& left : before) {
    if (left != nullptr) left->Close(Connections::End::kDrain);
  }
  ForgetTired();
  Rank();
}

void Subchannels::Rank() {
  ranking_.resize(all_.size() / executors_);
  std::iota(ranking_.begin(), ranking_.end(), 0);
  if (setup_.policy == Balancing::kPickFirst) return;
  // Clients must agree on the servers of keys.
  const uint64_t client = setup_.policy == Balancing::kRouteKey ? 0 : setup_.client;
  std::vector<uint64_t> ranks;
  ranks.reserve(ranking_.size());
  for (size_t server = 0; server < ranking_.size(); ++server) {
    ranks.push_back(SubsetRank(client, First(server).hash()));
  }
  std::sort(ranking_.begin(), ranking_.end(), [&ranks](uint32_t a, uint32_t b) {
    return ranks[a] != ranks[b] ? ranks[a] > ranks[b] : a < b;
  });
}

bool Subchannels::depends_on_failures() const {
  return setup_.policy == Balancing::kPickFirst || setup_.subset_size != 0;
}

Subchannels::Group Subchannels::GroupOf(const ResolvedServer& server) const {
  const bool far =
      setup_.policy != Balancing::kPickFirst && !setup_.zone.empty() && server.zone != setup_.zone;
  return far ? Group::kFar : Group::kNear;
}

bool Subchannels::Failed(size_t server) const {
  for (size_t i = 0; i < executors_; ++i) {
    if (!all_[server * executors_ + i]->failed()) return false;
  }
  return true;
}

bool Subchannels::Serves(size_t server) const {
  for (size_t i = 0; i < executors_; ++i) {
    if (all_[server * executors_ + i]->ready()) return true;
  }
  return false;
}

bool Subchannels::Late(size_t server) const {
  for (size_t i = 0; i < executors_; ++i) {
    if (all_[server * executors_ + i]->late()) return true;
  }
  return false;
}

void Subchannels::OpenServer(size_t server) {
  for (size_t i = 0; i < executors_; ++i) {
    ExecutorWish wish = setup_.wish;
    if (executors_ > 1) {
      wish = {.choice = ExecutorChoice::kNumber, .number = static_cast<uint32_t>(i)};
    }
    all_[server * executors_ + i]->Open(wish);
  }
}

void Subchannels::CloseServer(size_t server, const Subchannel* caller,
                              const absl::Status& refusal) {
  for (size_t i = 0; i < executors_; ++i) {
    Subchannel& each = *all_[server * executors_ + i];
    if (&each == caller) continue;
    each.Close(Connections::End::kDrain);
    each.set_refusal(refusal);
  }
}

void Subchannels::Open(const Subchannel* caller) {
  const bool is_first = setup_.policy == Balancing::kPickFirst;
  const size_t wanted = is_first                  ? 1
                        : setup_.subset_size != 0 ? setup_.subset_size
                                                  : ranking_.size();
  // Servers that fail stay open, and as many others take their place. A subset has at most so many
  // open at once that nobody reaches: LookOn() goes through the others one by one.
  const size_t most_of_group = !is_first               ? 2 * wanted
                               : AnyReady() != nullptr ? kKnocked
                                                       : ranking_.size();
  const size_t most = std::max<size_t>(ShareOfLinks(setup_.max_links) / executors_, 1);
  if (setup_.subset_size != 0) {
    if (AnyReady() != nullptr) {
      ForgetTired();
    } else {
      const size_t room = std::min(most_of_group, most);
      LookOn(Group::kNear, caller, room);
      LookOn(Group::kFar, caller, room);
    }
  }
  struct Room {
    size_t wanted;   // servers that have not failed
    size_t most;     // servers
    size_t serving;  // servers that are ready
  };
  std::array<Room, 2> rooms;
  rooms.fill({.wanted = wanted, .most = most_of_group, .serving = wanted});
  // The loop leaves links to so many behind the server that it has come to.
  size_t to_keep = ReadyToKeep(wanted, most);
  size_t open = 0;
  bool refused = false;
  for (const uint32_t server : ranking_) {
    Room& room = rooms[static_cast<size_t>(GroupOf(First(server).server()))];
    const bool serves = Serves(server);
    // Only servers that are ready replace one that is.
    const bool stays = serves && room.serving > 0;
    const bool is_wanted = (room.wanted > 0 && room.most > 0 && !First(server).tired()) || stays;
    if (stays && to_keep > 0) --to_keep;
    if (!is_wanted || open + (stays ? 0 : to_keep) >= most) {
      refused |= is_wanted;
      CloseServer(server, caller, is_wanted ? Refusal(most) : absl::OkStatus());
      continue;
    }
    OpenServer(server);
    ++open;
    if (room.most > 0) --room.most;
    if (stays) --room.serving;
    // A server that has not failed makes one behind it superfluous.
    const bool may_serve = !Failed(server) && (wanted > 1 || !Late(server));
    if (may_serve && room.wanted > 0) --room.wanted;
  }
  if (refused && !refused_)
    VERBENA_LOG_LINE(kClient, kWarning, std::string(Refusal(most).message()));
  refused_ = refused;
}

size_t Subchannels::ReadyToKeep(size_t wanted, size_t most) const {
  if (!depends_on_failures()) return 0;
  size_t to_keep = 0;
  std::array<size_t, 2> serving = {};
  for (const uint32_t server : ranking_) {
    const auto group = static_cast<size_t>(GroupOf(First(server).server()));
    if (Serves(server) && ++serving[group] <= wanted) ++to_keep;
  }
  return std::min(to_keep, std::max<size_t>(most, 2) - 1);
}

void Subchannels::LookOn(Group group, const Subchannel* caller, size_t room) {
  std::vector<Subchannel*> tired;
  // The caller cannot be closed now, but only at another one's attempt.
  const auto gives_way_before = [caller](const Subchannel& one, const Subchannel& other) {
    const auto is_callers = [caller](const Subchannel& each) {
      return caller != nullptr && caller->server().name == each.server().name;
    };
    if (is_callers(one) != is_callers(other)) return is_callers(other);
    return one.connection()->next_attempt() > other.connection()->next_attempt();
  };
  Subchannel* next_tired = nullptr;
  size_t open = 0;
  bool any_under_way = false;
  bool any_left = false;
  for (const uint32_t server : ranking_) {
    Subchannel& first = First(server);
    if (GroupOf(first.server()) != group) continue;
    if (first.tired()) {
      tired.push_back(&first);
    } else if (first.connection() == nullptr) {
      any_left = true;
    } else {
      ++open;
      if (!Failed(server)) {
        if (!Late(server)) return;
        any_under_way = true;
      } else if (next_tired == nullptr || gives_way_before(first, *next_tired)) {
        next_tired = &first;
      }
    }
  }
  if (open < room || next_tired == nullptr) return;
  // Beginning anew would close those that may yet succeed.
  if (!any_left && any_under_way) return;
  const TimePoint now = next_tired->connection()->shard().executor().now();
  Look& look = looks_[static_cast<size_t>(group)];
  if (now < look.next) return;
  look.next = SaturatingAdd(now, look.backoff.Next());
  if (any_left) {
    next_tired->set_tired(true);
  } else {
    for (Subchannel* each : tired) each->set_tired(false);
  }
}

void Subchannels::ForgetTired() {
  for (const std::unique_ptr<Subchannel>& each : all_) each->set_tired(false);
  looks_ = {};
}

absl::Status Subchannels::Refusal(size_t most) const {
  return absl::ResourceExhaustedError(fmt::format(
      "{} stands for {} servers, but one set takes at most {} of the {} links of an executor "
      "(three "
      "quarters), so {} servers are connected here: set ChannelOptions::subset_size, or raise "
      "LinkLimits::max_links",
      setup_.target, ranking_.size(), ShareOfLinks(setup_.max_links), setup_.max_links, most));
}

std::vector<Subchannel*> Subchannels::Callable() const {
  std::vector<Subchannel*> callable;
  bool in_zone = false;
  for (const std::unique_ptr<Subchannel>& each : all_) {
    if (!each->ready()) continue;
    const bool near = !setup_.zone.empty() && each->server().zone == setup_.zone;
    if (near && !in_zone) {
      in_zone = true;
      callable.clear();
    }
    if (in_zone && !near) continue;
    callable.push_back(each.get());
  }
  return callable;
}

const Subchannel* Subchannels::AnyReady() const {
  for (const std::unique_ptr<Subchannel>& each : all_) {
    if (each->ready()) return each.get();
  }
  return nullptr;
}

absl::Status Subchannels::Obstacle() const {
  if (all_.empty()) {
    return absl::UnavailableError(
        fmt::format("the set of {} is empty: add a server to it, or let calls wait for one "
                    "(CallOptions::wait_for_ready)",
                    setup_.target));
  }
  constexpr size_t kNamed = 3;
  size_t failed = 0;
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;
  Duration wait = Duration::max();  // the shortest that a server has named
  for (size_t server = 0; server < ranking_.size(); ++server) {
    const Subchannel& first = First(server);
    if (first.connection() == nullptr) continue;
    if (!Failed(server)) return absl::OkStatus();
    const absl::Status& error = first.error();
    code = failed == 0 || code == error.code() ? error.code() : absl::StatusCode::kUnavailable;
    wait = std::min(wait, ReadRetryAfter(error).value_or(Duration::max()));
    if (++failed > kNamed) continue;
    text += fmt::format("{}{}: {}", failed == 1 ? "" : "; ", first.server().name,
                        std::string(error.message()));
  }
  if (failed == 0) return absl::OkStatus();
  if (failed > kNamed) text += fmt::format("; and {} more", failed - kNamed);
  const std::string those = failed == ranking_.size()
                                ? fmt::format("the {} servers", failed)
                                : fmt::format("the {} servers that this client tries, of the {}",
                                              failed, ranking_.size());
  absl::Status obstacle(
      code, fmt::format("none of {} of {} can be reached: {}", those, setup_.target, text));
  if (wait != Duration::max()) SetRetryAfter(obstacle, wait);
  return obstacle;
}

std::vector<ChannelServer> Subchannels::Describe() const {
  std::vector<ChannelServer> servers;
  servers.reserve(ranking_.size());
  for (size_t server = 0; server < ranking_.size(); ++server) {
    ChannelServer described = First(server).Describe();
    for (size_t i = 1; i < executors_; ++i) {
      const ChannelServer another = all_[server * executors_ + i]->Describe();
      described.in_flight += another.in_flight;
      described.failures = std::max(described.failures, another.failures);
      // The server is as ready as its last executor.
      if (described.state != ChannelServer::State::kReady) continue;
      described.state = another.state;
      described.last_error = another.last_error;
    }
    servers.push_back(std::move(described));
  }
  return servers;
}

}  // namespace verbena::internal
