// Connection: one executor's way to one executor of a server, through links that come and go.
//
// The first call connects, over the first of the runtime's devices on which both sides reach each
// other (connect_order.h); a link that is lost is replaced at the next call, with exponential
// backoff while the server cannot be reached, during which calls fail at once with the last error.
// A server that goes away gracefully says so: new calls then take a new link, and the old one
// closes when its last call has ended.
//
// Owned by its Shard, on that executor's thread.

#ifndef VERBENA_RPC_CONNECTION_H_
#define VERBENA_RPC_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/client_link.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class Shard;

class Connection final : private ClientLink::Owner {
 public:
  static constexpr Duration kInitialBackoff = std::chrono::milliseconds(10);
  static constexpr Duration kMaxBackoff = std::chrono::seconds(2);

  Connection(Shard& shard, std::string target, uint32_t server_executor);
  ~Connection() override;

  // The link that a call takes, or nullptr: then Ready() first.
  ClientLink* usable_link() const {
    return current_ != nullptr && current_->usable() ? current_.get() : nullptr;
  }
  // Waits until there is a usable link. UNAVAILABLE when connecting fails, or failed a moment ago.
  Task<absl::Status> Ready();

  Shard& shard() const { return shard_; }
  uint64_t late_responses() const;

 private:
  Task<void> Attempt();
  Task<absl::Status> TryConnect();
  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> OpenStream();
  Task<absl::Status> ConnectOver(size_t device, std::unique_ptr<MessageStream> stream);
  void OnClientLinkDown(ClientLink& link, const absl::Status& reason) override;
  void OnClientLinkDraining(ClientLink& link) override;
  void OnClientLinkIdle(ClientLink& link) override;

  Shard& shard_;
  const std::string target_;
  const uint32_t server_executor_;
  std::unique_ptr<ClientLink> current_;
  // Draining, or down but perhaps still on the stack of a call: freed at the next attempt.
  std::vector<std::unique_ptr<ClientLink>> retired_;
  bool connecting_ = false;
  Event attempt_ended_;
  absl::Status last_error_;
  Duration backoff_ = kInitialBackoff;
  TimePoint next_attempt_{};
  uint64_t late_responses_ = 0;  // of links that are gone
};

}  // namespace verbena

#endif  // VERBENA_RPC_CONNECTION_H_
