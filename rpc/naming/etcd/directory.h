// etcd as a directory of servers: EtcdRegistrar, which keeps a server's key there, and
// EtcdResolver, which follows the keys under a prefix.
//
// A server owns the first, a channel the second; each runs on one executor. An entry lasts for its
// time to live after the last word of its server.

#ifndef VERBENA_RPC_NAMING_ETCD_DIRECTORY_H_
#define VERBENA_RPC_NAMING_ETCD_DIRECTORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/naming/resolvers.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// How long each request of a registration may take. One member of etcd that is silent costs a third
// of the time to live until the lease is asked for, this, and a short pause: the next member then
// keeps the lease. (EtcdOptions::timeout)
Duration RegistrationTimeout(Duration ttl);

// EtcdRegistrar: keeps a server's key in etcd, under a lease of etcd's that it keeps alive.
//
// The lease is kept alive about three times in its time to live, and the key is put again if
// somebody deleted it. If the lease has ended, because etcd or this server could not be reached for
// too long, the server registers again with a new one. A server with the same name takes the key
// over: this one then says so in the log, is not registered(), and takes the key back when it is
// gone. One executor, but for registered().
class EtcdRegistrar final : public Registrar {
 public:
  EtcdRegistrar(EtcdOptions options, std::string key, std::string value, Duration ttl);
  // For tests: with a client, and pauses that `random`, which outlives it, decides.
  EtcdRegistrar(std::unique_ptr<EtcdClient> client, std::string key, std::string value,
                Duration ttl, Random& random);

  Task<void> Run() override;
  Task<absl::Status> Remove() override;
  bool registered() const override { return registered_; }

 private:
  // Gets a new lease, and puts the key with it.
  Task<absl::Status> Register();
  // Keeps the lease and the key until the lease is lost, or this Task is cancelled.
  Task<absl::Status> Keep();
  Task<absl::Status> KeepOnce();
  // The entry is no longer known to be there once the lease's time is over.
  void CheckLease(TimePoint now);
  // Etcd has said whether the key is under this server's lease.
  void NoteHolder(bool is_ours);
  // Waits before the next attempt after `failure`; false if cancelled.
  Task<bool> Pause(const absl::Status& failure);

  const EtcdOptions options_;
  const std::string key_;
  const std::string value_;
  const Duration ttl_;
  std::unique_ptr<EtcdClient> client_;
  int64_t lease_ = 0;                  // 0: none
  TimePoint lease_end_ = TimePoint();  // etcd keeps the lease until then at least
  bool taken_over_ = false;            // somebody else has put the key
  Backoff period_;                     // from one word to etcd that the server lives to the next
  Backoff pause_;                      // before a request that failed is made again
  std::string last_failure_;           // the last one that was logged
  std::atomic<bool> registered_ = false;
};

// EtcdResolver: the servers that etcd has under a prefix: a range of keys, then a watch from there.
//
// Now and then it compares what the watch has told with the newest key and the number of keys that
// etcd has, on another connection. So it finds within 25 s that a watch is silent or was lost
// without a word, and within seconds if a server of the set cannot be reached meanwhile. A value
// that breaks a rule leaves out its server alone, with a line in the log. A set that becomes empty
// is told after kEmptyGrace, once etcd has been asked again. Serves one channel (resolver.h).
//
// Thousands of clients may have one etcd. All that they do at the same time varies at random: the
// comparisons, the listing after watches were lost, and the member that each asks first.
class EtcdResolver final : public Resolver {
 public:
  // (start) How often the watch is compared, first and after some time. An answer may take twice
  // EtcdOptions::timeout more.
  static constexpr Duration kPeriod = std::chrono::seconds(4);
  static constexpr Duration kLongestPeriod = std::chrono::seconds(16);
  // (start) The longest wait before keys are listed whose watch was lost: all clients may have lost
  // theirs at the same time.
  static constexpr Duration kSpread = std::chrono::seconds(2);
  // (start) How long etcd must have no server before an empty set is told: servers that cannot
  // reach etcd, or whose certificates ran out, still serve those who know them.
  static constexpr Duration kEmptyGrace = std::chrono::seconds(20);
  // (start) How long a watch has for what a comparison knows already.
  static constexpr Duration kLateness = std::chrono::seconds(1);

  // `prefix` ends with a slash. The client starts with the first Next().
  EtcdResolver(EtcdOptions options, std::string prefix);
  // For tests: with a client, and pauses that `random`, which outlives it, decides.
  EtcdResolver(std::unique_ptr<EtcdClient> client, std::string prefix, Random& random);

  Task<absl::StatusOr<std::vector<ResolvedServer>>> Next() override;
  // Compares soon.
  void Refresh() override { look_.Hasten(); }

 private:
  Task<absl::Status> StartClient();
  // Lists the keys, and watches from there.
  Task<absl::Status> List();
  // Waits for changes, and takes them over; false: there was none, and the watch may be silent.
  Task<absl::StatusOr<bool>> Hear();
  absl::Status TakeOver(const EtcdChanges& changes, TimePoint now);
  // Keeps what the watch says in heard_, so that it is not lost when this Task loses its race.
  Task<absl::Status> TakeFromWatch();
  // Compares the watch with etcd, and gives the watch up if it does not tell of keys that etcd has
  // changed.
  Task<absl::Status> Compare();
  void Put(const EtcdEntry& entry, TimePoint now);
  std::vector<ResolvedServer> Servers() const;
  // Whether the channel may hear of the set that is known: not at once if it has become empty.
  bool MayTell(TimePoint now);

  const EtcdOptions options_;
  const std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdWatch> watch_;                  // nullptr: the keys must be listed
  std::optional<absl::StatusOr<EtcdChanges>> heard_;  // from the watch, not yet taken over
  // By key; without a server if the value is wrong or says that it takes no calls.
  std::map<std::string, std::optional<ResolvedServer>> known_;
  Random& random_;
  int64_t revision_ = 0;  // of the store, when known_ was true
  int64_t newest_ = 0;    // the last change below the prefix
  PeriodicLook look_;
  Backoff pause_;                   // before keys are listed again
  bool told_servers_ = false;       // the last set that the channel heard of is not empty
  TimePoint empty_since_ = kNever;  // and the set that is known has been empty since; kNever: no
  bool compacted_ = false;  // the last watch was, and the one that followed has told nothing yet
  ThrottledLog log_{LogComponent::kNaming, {.lines = 4}};
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_DIRECTORY_H_
