// EtcdClient: keys, transactions, leases and watches of an etcd (3.4 or newer), over its JSON
// gateway. A lease here is always etcd's, a time to live of keys, and no lease of memory.
//
// For programs that keep their own state in etcd, such as the members and epochs of a replicated
// store. Channels to etcd:// targets and ServerOptions::registration use it, too. A program that
// names this class, or an etcd:// target, links Verbena::etcd (CMake), verbena-etcd (pkg-config) or
// @verbena//rpc:etcd (Bazel), and with it OpenSSL; others link neither.
//
// Any thread may share a client; it must outlive its Tasks and watches. Tasks may be awaited on any
// executor. All clients of a process share one thread, which starts with the first one and stays,
// and one that reads files and large answers, which starts when it is needed.
// If one of them uses TLS, the thread stands still as soon as exit() begins, since OpenSSL then
// frees its memory. A request that begins later fails with UNAVAILABLE, and one that is under way
// never ends by itself. Each request has a connection of its own: it tries the endpoints one after
// another, beginning with the one that answered last, until one takes it. Each client has an order
// of its own, at random, so that clients share out the endpoints. Errors name the endpoint.
// They have an Outcome: kNotExecuted if no etcd took the request, or etcd says that it changed
// nothing, otherwise kMaybeExecuted. Nothing is sent twice, but for a request that etcd refused
// since it took the client's token no more (EtcdOptions::user).
//
//   VERBENA_CO_ASSIGN_OR_RETURN(const EtcdLease lease, co_await etcd->GrantLease(10s));
//   EtcdTxn txn = EtcdTxn().IfModRevision("shard/epoch", seen).Put("shard/epoch", "8", lease.id);
//   VERBENA_CO_ASSIGN_OR_RETURN(const EtcdTxnResult moved, co_await etcd->Commit(std::move(txn)));
//   if (!moved.succeeded) …  // somebody else was first
//
//   precondition                                how it is checked   test
//   EtcdOptions are complete                    INVALID_ARGUMENT    http_wire_test
//   it outlives its Tasks and watches           not checked
//   no request is begun by TLS after exit()     UNAVAILABLE

#ifndef VERBENA_RPC_ETCD_H_
#define VERBENA_RPC_ETCD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {
class EtcdCore;
class EtcdExchange;
}  // namespace internal

struct EtcdOptions {
  // The members of one etcd, 1 to 16 of them: "10.0.0.7:2379", "etcd-1:2379", "[::1]:2379".
  std::vector<std::string> endpoints = {};
  // How long a request may take from its connection to its answer. Connecting may take as long,
  // shared out among the endpoints. 10 ms to 1 min.
  Duration timeout = std::chrono::seconds(2);
  // Encrypts connections, and checks that each endpoint's certificate is for its host. False
  // connects in the clear; then the files must not be given.
  bool tls = false;
  // Paths of PEM files: the authorities that sign the endpoints' certificates ("": the system's),
  // and this client's certificate and key ("": none). The client reads them when it starts, and
  // again after each request that failed without an answer. So replace them before they run out.
  std::string ca_file = "";
  std::string certificate_file = "";
  std::string key_file = "";
  // For an etcd that demands a login: the user's name, and the path of a file whose first line is
  // the password. The client reads the file each time that it needs a new token. It logs in before
  // its first request or watch, and again when etcd takes its token no more. Without TLS the
  // password travels in the clear. "": none, and then etcd sees a certificate's owner as nobody:
  // its JSON gateway does not take the name in a certificate for a user's.
  std::string user = "";
  std::string password_file = "";
};

// A key with its value.
struct EtcdEntry {
  std::string key;
  std::string value;
  int64_t create_revision = 0;
  int64_t mod_revision = 0;
  int64_t version = 0;  // how often it was put since it was created
  int64_t lease = 0;    // EtcdLease::id; 0: none
};

// Keys as of one revision.
struct EtcdRange {
  int64_t revision = 0;  // of the whole store
  std::vector<EtcdEntry> entries;
  int64_t count = 0;  // of all keys that match, if entries are only some of them
};

// A time to live that etcd gives to keys: it deletes them unless KeepAlive() comes in time.
struct EtcdLease {
  int64_t id = 0;
  Duration ttl = Duration::zero();
};

// A transaction: if all conditions hold, etcd makes all changes, otherwise none. A value.
class VERBENA_EXPORT EtcdTxn {
 public:
  EtcdTxn& IfAbsent(std::string key);
  EtcdTxn& IfModRevision(std::string key, int64_t revision);
  EtcdTxn& IfValue(std::string key, std::string value);
  EtcdTxn& IfLease(std::string key, int64_t lease);
  // The key lives as long as the lease. 0: until somebody deletes it.
  EtcdTxn& Put(std::string key, std::string value, int64_t lease = 0);
  EtcdTxn& Delete(std::string key);
  // Reads the key in the same step, if a condition does not hold.
  EtcdTxn& OrGet(std::string key);

 private:
  friend class EtcdClient;
  enum class Target : uint8_t { kVersion, kModRevision, kValue, kLease };
  struct Condition {
    std::string key;
    Target target;
    std::string value;  // a number as text, if the target is none
  };
  struct Change {
    std::string key = {};
    std::string value = {};
    int64_t lease = 0;
    bool deletes = false;
  };

  std::string Encode() const;

  std::vector<Condition> conditions_;
  std::vector<Change> changes_;
  std::vector<std::string> reads_;
};

struct EtcdTxnResult {
  bool succeeded = false;  // all conditions held
  int64_t revision = 0;
  std::vector<EtcdEntry> read;  // of OrGet(), without keys that are not there
};

// A key that was put or deleted. Of a deleted key, only its name and mod_revision are known.
struct EtcdEvent {
  bool deleted = false;
  EtcdEntry entry;
};

// Events in the order of their revisions. Several EtcdChanges may share out the events of one
// revision.
struct EtcdChanges {
  int64_t revision = 0;
  std::vector<EtcdEvent> events;
};

// A watch over keys, on a connection of its own to a member that has a leader. One coroutine at a
// time. Destroying it, on any thread, ends the watch.
class VERBENA_EXPORT EtcdWatch {
 public:
  ~EtcdWatch();
  EtcdWatch(const EtcdWatch&) = delete;
  EtcdWatch& operator=(const EtcdWatch&) = delete;

  // The next changes. An await that is cancelled loses none. After an error the watch is useless:
  // OUT_OF_RANGE: etcd has compacted the revisions that the watch needs, so list the keys again.
  // UNAUTHENTICATED, PERMISSION_DENIED: etcd refuses the user, also after a login, or has ended a
  // watch that it had taken. Others, such as UNAVAILABLE: the connection or the leader is lost.
  //
  // A network may swallow a watch without a word. To notice, compare EtcdClient::Newest() with what
  // the watch has told, every few seconds.
  Task<absl::StatusOr<EtcdChanges>> Next();
  // Whether a message has come that Next() has not taken. Some messages have no changes, and Next()
  // passes them by.
  bool HasMore() const;

 private:
  friend class EtcdClient;
  EtcdWatch(internal::EtcdCore& core, std::string body);

  // The next message, perhaps without changes. Begins the watch if it has not begun.
  Task<absl::StatusOr<EtcdChanges>> NextMessage();

  internal::EtcdCore& core_;
  const std::string body_;
  std::unique_ptr<internal::EtcdExchange> exchange_;  // null: a login comes first
  bool may_log_in_ = true;  // again, if etcd refuses the token that the watch begins with
};

// A client of one etcd. The top of this header says how long it must live, on which threads it may
// be used, and how its requests fail.
class VERBENA_EXPORT EtcdClient {
 public:
  // Bytes that an answer, or one message of a watch, may have. A larger one fails the request.
  static constexpr size_t kMaxAnswerBytes = size_t{4} << 20;
  static constexpr size_t kMaxEndpoints = 16;

  // Checks the options and reads the files, but connects nothing. INVALID_ARGUMENT: an endpoint is
  // no host:port, or an option is out of its range. RESOURCE_EXHAUSTED: a thread cannot be started.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Start(const EtcdOptions& options);
  ~EtcdClient();

  // The key, or no entry.
  Task<absl::StatusOr<EtcdRange>> Get(std::string key);
  // The keys that begin with `prefix`, by key, at most `most` of them; the result's count tells of
  // more. 0: all.
  Task<absl::StatusOr<EtcdRange>> List(std::string prefix, size_t most = 0);
  // The key with that prefix that changed last, without its value, and how many there are. While
  // both stay the same, no key with that prefix was put or deleted.
  Task<absl::StatusOr<EtcdRange>> Newest(std::string prefix);
  Task<absl::StatusOr<EtcdTxnResult>> Commit(EtcdTxn txn);

  // A lease of whole seconds, at least 1. Keys that are put with it vanish when it ends.
  Task<absl::StatusOr<EtcdLease>> GrantLease(Duration ttl);
  // Begins the lease anew. The result's ttl counts from some moment between the call and the
  // answer, so count from before the call. NOT_FOUND: the lease has ended.
  Task<absl::StatusOr<EtcdLease>> KeepAlive(int64_t lease);
  // Ends the lease and deletes its keys. NOT_FOUND: it has ended already.
  Task<absl::Status> Revoke(int64_t lease);

  // Tells of changes to keys that begin with `prefix`, from a revision on. After List() that is
  // EtcdRange::revision + 1. If the client must log in first, the watch begins with Next().
  std::unique_ptr<EtcdWatch> Watch(std::string_view prefix, int64_t from_revision);

 private:
  friend class internal::EtcdCore;
  explicit EtcdClient(std::unique_ptr<internal::EtcdCore> core);

  const std::unique_ptr<internal::EtcdCore> core_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_ETCD_H_
