#include "verbena/rpc/client/subchannels.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/route_table.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {
namespace {

// A set takes at most three quarters of an executor's links, so that other channels find some.
// (start)
size_t ShareOfLinks(uint32_t max_links) { return std::max<size_t>(size_t{max_links} * 3 / 4, 1); }

}  // namespace

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
  // Servers that fail stay open, and as many others take their place. A client that reaches nobody
  // does not knock at the whole set.
  const size_t most_of_group = is_first ? ranking_.size() : 2 * wanted;
  const size_t most = std::max<size_t>(ShareOfLinks(setup_.max_links) / executors_, 1);
  struct Room {
    size_t wanted;
    size_t most;
  };
  std::array<Room, 2> rooms;
  rooms.fill({wanted, most_of_group});
  size_t open = 0;
  bool refused = false;
  for (const uint32_t server : ranking_) {
    Room& room = rooms[static_cast<size_t>(GroupOf(First(server).server()))];
    const bool is_wanted = room.wanted > 0 && room.most > 0;
    if (!is_wanted || open >= most) {
      refused |= is_wanted;
      CloseServer(server, caller, is_wanted ? Refusal(most) : absl::OkStatus());
      continue;
    }
    OpenServer(server);
    ++open;
    --room.most;
    // A server that has not failed makes one behind it superfluous.
    if (!Failed(server)) --room.wanted;
  }
  if (refused && !refused_) Log(LogLevel::kWarning, std::string(Refusal(most).message()));
  refused_ = refused;
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
  for (size_t server = 0; server < ranking_.size(); ++server) {
    const Subchannel& first = First(server);
    if (first.connection() == nullptr) continue;
    if (!Failed(server)) return absl::OkStatus();
    const absl::Status& error = first.error();
    code = failed == 0 || code == error.code() ? error.code() : absl::StatusCode::kUnavailable;
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
  return absl::Status(
      code, fmt::format("none of {} of {} can be reached: {}", those, setup_.target, text));
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
