// Sets of servers: where a channel finds them, and how a server enters itself.
//
//   Resolver              gives a channel its set; users may write their own
//   RegistrationOptions   a server's entry in a directory
//
//   Channel channel(*runtime, "volumes", {.resolver = std::make_shared<MyResolver>()});

#ifndef VERBENA_RPC_RESOLVER_H_
#define VERBENA_RPC_RESOLVER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {
class ServerFeed;
}  // namespace internal

// One server of a set. Its name, zone and addresses are of at most 255 bytes each: printable ASCII,
// without blanks.
struct ResolvedServer {
  static constexpr size_t kMaxAddresses = 8;
  static constexpr uint32_t kMaxWeight = 1000;

  // Ways to the same server, 1 to kMaxAddresses, as RuntimeOptions::use_bootstrap takes them
  // ("10.0.0.7:4000"). A connection tries them in this order, and takes the first that answers.
  std::vector<std::string> addresses = {};
  // The server's identity: a server that keeps its name and addresses keeps its connection, and
  // Balancing::kRouteKey places keys by names. "": the first address.
  std::string name = {};
  // How many calls it gets in proportion to other servers, if the policy looks at weights
  // (Balancing): 1 to kMaxWeight.
  uint32_t weight = 1;
  // Its zone, as in ChannelOptions::zone; "": none.
  std::string zone = {};

  bool operator==(const ResolvedServer&) const = default;
};

// Resolver: tells a channel which servers stand behind its target, and when that changes.
//
// Channels make one by themselves for targets static:, dns:, file: and etcd: (channel.h); those of
// one runtime to the same target share it. A program that finds its servers elsewhere implements
// Resolver and gives it to ChannelOptions::resolver. A resolver of a program serves one channel,
// which shares its ownership; a check aborts if it is given to a second one. One executor of the
// channel's runtime calls it, and never has two Tasks of Next() at once; the others hear of each
// set from there. It may be destroyed on any thread, after its last Task has ended.
//
//   class Directory final : public Resolver {
//    public:
//     Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override {
//       const uint64_t revision = co_await client_.Changed(seen_);   // at once the first time
//       seen_ = revision;
//       co_return std::vector<ResolvedServer>{
//           {.addresses = {"10.0.0.7:4000"}, .name = "storage-7", .zone = "a"}};
//     }
//     ...
//   };
//
//   precondition                           how it is checked    test
//   given to one channel                   a check aborts       resolved_set_test
//   at most kMaxServers servers in a set   the set is refused   resolved_set_test
//   texts of at most 255 bytes             the set is refused   resolved_set_test
class Resolver {
 public:
  // The most servers in a set.
  static constexpr size_t kMaxServers = 1024;

  virtual ~Resolver() = default;

  // The set of servers: the first time as soon as it is known, later when it may have changed. The
  // Task is cancelled when the channel is destroyed, and should then end soon. The channel asks
  // again 100 ms after it got a set, so it hears of the newest one by then. After an error the
  // channel keeps the last good set, and asks again after a pause of 100 ms that grows to 10 s. A
  // set that breaks a bound above, or names a server twice, counts as an error. An empty one does
  // not: it leaves no server to call, so be sure that the servers are gone, and not only unknown.
  virtual Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() = 0;
  // Called when a server of the set cannot be reached, and often while it is down. A resolver that
  // looks from time to time may look now. Does nothing by default.
  virtual void Refresh() {}

 private:
  friend internal::ServerFeed;
  std::atomic<bool> taken_ = false;  // by a channel
};

// RegistrationOptions: a server's entry in a directory, where channels find it.
//
// A wrong field fails Server::Start() with INVALID_ARGUMENT. etcd that cannot be reached does not:
// the server registers when it can (ServerStats::registered).
//
//   Server::Start(*runtime, {&store},
//                 {.address = "10.0.0.7:4000",
//                  .registration = {.target = "etcd://10.0.0.1:2379/storage",
//                                   .name = "storage-7"}});
struct RegistrationOptions {
  // "etcd://host:port[,host:port]/prefix", as for a Channel: the server writes the key prefix/name,
  // and the program links the client of etcd (etcd.h). "", the default: the server does not
  // register.
  std::string target = "";
  // The server's identity (ResolvedServer::name): unique below the prefix, and the same after a
  // restart. "": the first address.
  std::string name = "";
  // Ways by which clients reach it, at most ResolvedServer::kMaxAddresses. Empty:
  // Server::address(), which must then name a host, not a wildcard such as 0.0.0.0.
  std::vector<std::string> addresses = {};
  // As ResolvedServer::zone, "" for none, and ResolvedServer::weight, 1 to
  // ResolvedServer::kMaxWeight.
  std::string zone = "";
  uint32_t weight = 1;
  // How long the entry outlives a server that dies: 2 s to 10 min, in whole seconds. The server
  // says about three times in this time that it lives, and gives each request to etcd a sixth of
  // it, 2 s at most.
  Duration ttl = std::chrono::seconds(10);
};

}  // namespace verbena

#endif  // VERBENA_RPC_RESOLVER_H_
