// Subchannels: the servers of one channel's set, on one executor, and which of them are connected.
//
// Decides by set, policy and failures which subchannels are open: all of them, or the first that
// can be reached (Balancing::kPickFirst), or a subset. A subset is chosen by rendezvous: each
// client ranks the servers by hashes of its own id and of their names, and takes the first ones. So
// the servers are covered evenly, each change of the set moves few links, and all executors of a
// client agree. While a server of the subset cannot be reached, the next one in the ranking takes
// its place. No set takes more than a share of the links that an executor may have.
//
// Owned by a Balancer; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_SUBCHANNELS_H_
#define VERBENA_RPC_CLIENT_SUBCHANNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/balancing.h"
#include "verbena/rpc/client/connections.h"
#include "verbena/rpc/client/server_feed.h"
#include "verbena/rpc/client/subchannel.h"
#include "verbena/transport/connect/link_parameters.h"

namespace verbena::internal {

struct SubchannelsSetup {
  std::string target;  // for messages
  Balancing policy = Balancing::kRoundRobin;
  std::string zone;
  ExecutorWish wish;
  uint32_t subset_size = 0;           // 0: all
  uint32_t executors_per_server = 1;  // more: `wish` is not used
  // Random, and the same on all executors of a client.
  uint64_t client = 0;
  // The most links that an executor may have.
  uint32_t max_links = 1024;
};

// How high a client places a server in its ranking. The highest come first.
uint64_t SubsetRank(uint64_t client, uint64_t server_hash);

class Subchannels {
 public:
  Subchannels(SubchannelOwner& owner, Connections& connections, SubchannelsSetup setup);
  // Call before it is destroyed.
  void CloseAll();

  // A new set. Servers that stay keep their links; those of servers that left drain. Call Open()
  // next.
  void Set(const ServerSet& set);
  // Opens the connections that are wanted, and drains those that are not, but for `caller`, whose
  // Task calls this: its next attempt, or that of one before it, calls again.
  void Open(const Subchannel* caller);

  // Whether a failure or a success of one may open or close others.
  bool depends_on_failures() const;
  // The ones that calls may go to: ready and, if there are such, of the own zone. In the order of
  // the set.
  std::vector<Subchannel*> Callable() const;
  // One that is ready; nullptr: none is.
  const Subchannel* AnyReady() const;
  // The reason why none is ready; OK while an attempt may yet succeed.
  absl::Status Obstacle() const;
  // In the order of the set, each server once.
  std::vector<ChannelServer> Describe() const;

 private:
  // Servers of one group take each other's place.
  enum class Group : uint8_t { kNear, kFar };

  Group GroupOf(const ResolvedServer& server) const;
  // The server's first subchannel; the rest follows it.
  Subchannel& First(size_t server) const { return *all_[server * executors_]; }
  bool Failed(size_t server) const;
  void OpenServer(size_t server);
  void CloseServer(size_t server, const Subchannel* caller, const absl::Status& refusal);
  void Rank();
  absl::Status Refusal(size_t most) const;

  SubchannelOwner& owner_;
  Connections& connections_;
  const SubchannelsSetup setup_;
  const size_t executors_;
  // As many for each server, in the order of the set.
  std::vector<std::unique_ptr<Subchannel>> all_;
  std::vector<uint32_t> ranking_;  // of servers
  bool refused_ = false;           // the log says that the set takes too many links
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_SUBCHANNELS_H_
