// Connections: the connections that one executor has to servers.
//
// Channels to the same executor of a target share one. A part of the executor's Shard; used on its
// thread.

#ifndef VERBENA_RPC_CLIENT_CONNECTIONS_H_
#define VERBENA_RPC_CLIENT_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/shard/parts.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

class Shard;

// A channel's choice among the connections to a set of servers. The channel knows the real type and
// its functions; Connections only destroys it in time.
class ConnectionChoice {
 public:
  virtual ~ConnectionChoice() = default;
};

class Connections final : public Part {
 public:
  // `shard` outlives it.
  explicit Connections(Shard& shard);
  ~Connections() override;

  // Returns the connections of the executor of `shard`.
  static Connections& Of(Shard& shard);

  // The connection to one executor of `target`, shared by all channels to that executor. The
  // channel that calls this is a user of the connection until Release().
  // `others` are further addresses of the server.
  Connection& To(const std::string& target, const ExecutorWish& wish,
                 const std::vector<std::string>& others = {});
  enum class End : uint8_t { kClose, kDrain };
  // A channel uses `connection` no more. Without other users, its links close: at once, or with
  // kDrain when the calls on them have ended.
  void Release(Connection& connection, End end = End::kClose);
  // Owns `choice`, which uses connections of this object, until EndChoice() or Clear().
  void Own(std::unique_ptr<ConnectionChoice> choice) { choices_.push_back(std::move(choice)); }
  void EndChoice(ConnectionChoice& choice);
  // Open as long as there are connections, for channels that outlive them.
  const std::shared_ptr<ExecutorGate>& gate() const { return gate_; }
  // LinkLimits::longest_reconnect_pause.
  Duration longest_pause() const;
  // Destroys all choices and connections, whose links are down already, and closes the gate.
  void Clear() override;

 private:
  // Frees those of released_ that have ended. Looks only when released_ is twice as long as the
  // last look left it, so that many ends in a row cost few looks.
  void FreeEnded();

  Shard& shard_;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_;
  // Without users; freed some time after their links are down, when a channel comes or goes.
  std::vector<std::unique_ptr<Connection>> released_;
  size_t left_ = 0;  // by the last look
  std::vector<std::unique_ptr<ConnectionChoice>> choices_;
  const std::shared_ptr<ExecutorGate> gate_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CONNECTIONS_H_
