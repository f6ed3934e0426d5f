// The servers of a runtime, as a report on the runtime sees them: ServerView and ServedServers.
//
// A Server (rpc/server/server.cc) enters a view of itself when it has started, and leaves before it
// is destroyed. The RuntimeCore owns the list. Any thread.

#ifndef VERBENA_RPC_SHARD_SERVED_H_
#define VERBENA_RPC_SHARD_SERVED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "verbena/rpc/server.h"

namespace verbena::internal {

// A server's entry in its directory (RegistrationOptions).
enum class DirectoryEntry : uint8_t {
  kNone,     // the server does not register
  kAwaited,  // nobody who asked has seen it there yet
  kThere,
  kLost,  // it was there
};

// One server, for whoever reports on its runtime. Any thread, unless a function says otherwise.
class ServerView {
 public:
  virtual ~ServerView() = default;
  virtual const std::string& address() const = 0;
  // True from the first moment of Server::Shutdown().
  virtual bool shutting_down() const = 0;
  virtual DirectoryEntry entry() const = 0;
  // The counts of the calls of one executor. On that executor's thread.
  virtual ServerStats StatsOn(size_t executor) const = 0;
  // The server's counts. `parts` are results of StatsOn().
  virtual ServerStats Sum(const std::vector<ServerStats>& parts) const = 0;
};

// The servers of one runtime that have started and are not being destroyed, each with a number that
// no other one of the runtime ever has.
class ServedServers {
 public:
  // `server` must Leave() before it ends.
  uint64_t Enter(const ServerView& server) {
    std::lock_guard lock(mutex_);
    servers_.emplace(++last_, &server);
    return last_;
  }
  // Once this returns, nobody uses the view any more.
  void Leave(uint64_t number) {
    std::lock_guard lock(mutex_);
    servers_.erase(number);
  }
  // In the order in which they entered. `use` must neither block nor enter or leave.
  void ForEach(absl::FunctionRef<void(uint64_t number, const ServerView& server)> use) const {
    std::lock_guard lock(mutex_);
    for (const auto& [number, server] : servers_) use(number, *server);
  }

 private:
  mutable std::mutex mutex_;
  // Under mutex_.
  uint64_t last_ = 0;
  std::map<uint64_t, const ServerView*> servers_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_SERVED_H_
