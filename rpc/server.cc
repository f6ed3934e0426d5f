#include "verbena/rpc/server.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/method_table.h"
#include "verbena/rpc/server_shard.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/coro/task_scope.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// Handshakes under way; a flood of connections beyond it is dropped.
constexpr size_t kMaxHandshakes = 256;
// How long a client may take to make its offer.
constexpr Duration kOfferTimeout = std::chrono::seconds(10);
// Before accepting again after accept itself failed (no descriptors left, for one).
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

// The parts that live on executors are made, used and destroyed there; executor 0 accepts.
class Server::Impl {
 public:
  explicit Impl(Runtime& runtime) : runtime_(runtime) {}

  absl::Status Start(const std::vector<Service*>& services, const ServerOptions& options) {
    for (Service* service : services) {
      if (absl::Status status = methods_.Add(*service); !status.ok()) return status;
    }
    absl::StatusOr<std::unique_ptr<MessageListener>> listener =
        runtime_.shard(0).bootstrap().Listen(options.address);
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    address_ = listener_->address();
    for (int i = 0; i < runtime_.executors(); ++i) {
      shards_.push_back(
          std::make_unique<ServerShard>(runtime_.shard(i), methods_, options.max_concurrent_calls));
    }
    accepting_ = std::make_unique<TaskScope>(runtime_.shard(0).executor());
    runtime_.BlockOn(StartAccepting());
    return absl::OkStatus();
  }

  void Shutdown(Duration grace) {
    if (listener_ == nullptr) return;
    // After this nobody hands links to the shards any more.
    runtime_.BlockOn(StopAccepting());
    for (int i = 0; i < runtime_.executors(); ++i) {
      runtime_.BlockOn(shards_[i]->Shutdown(grace), i);
    }
    listener_.reset();
  }

  const std::string& address() const { return address_; }

  ServerStats stats() {
    ServerStats sum;
    sum.handshakes_failed = handshakes_failed_;
    for (int i = 0; i < runtime_.executors(); ++i) {
      const ServerShardStats stats = runtime_.BlockOn(ReadStats(*shards_[i]), i);
      sum.calls += stats.calls;
      sum.failures += stats.failures;
      sum.refused += stats.refused;
      sum.payloads_written += stats.payloads_written;
      sum.granted_bytes += stats.granted_bytes;
    }
    return sum;
  }

 private:
  static Task<ServerShardStats> ReadStats(ServerShard& shard) { co_return shard.stats(); }

  Task<void> StartAccepting() {
    accepting_->Spawn(AcceptLoop());
    co_return;
  }

  Task<void> StopAccepting() {
    listener_->Close();
    accepting_->RequestCancel();
    co_await accepting_->Join();
    accepting_.reset();
  }

  Task<void> AcceptLoop() {
    while (true) {
      absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener_->Accept();
      if (absl::IsCancelled(stream.status())) co_return;
      if (!stream.ok()) {
        Log(LogLevel::kWarning,
            fmt::format("accepting at {}: {}", address_, stream.status().ToString()));
        if (!(co_await Sleep(kAcceptPause)).ok()) co_return;
        continue;
      }
      if (accepting_->size() > kMaxHandshakes) {
        Log(LogLevel::kWarning, fmt::format("{} is dropped: {} handshakes are under way",
                                            (*stream)->peer(), kMaxHandshakes));
        continue;
      }
      accepting_->Spawn(Welcome(*std::move(stream)));
    }
  }

  // Reads the offer here, and passes it on to the executor that it asks for.
  Task<void> Welcome(std::unique_ptr<MessageStream> stream) {
    Executor& here = runtime_.shard(0).executor();
    absl::StatusOr<LinkParameters> offer = co_await WithDeadline(
        ReceiveOffer(*stream, {.executor_count = kMaxExecutors}), here.now() + kOfferTimeout);
    if (!offer.ok()) {
      ++handshakes_failed_;
      co_return;
    }
    // A client does not know how many executors there are; it asks for one of as many as there can
    // be.
    const size_t index = offer->executor_index % shards_.size();
    ServerShard* shard = shards_[index].get();
    if (index == 0) {
      shard->Serve(std::move(stream), *std::move(offer));
    } else {
      shard->executor().PostFunction(
          [shard, stream = std::move(stream), offer = *std::move(offer)]() mutable {
            shard->Serve(std::move(stream), std::move(offer));
          });
    }
  }

  Runtime& runtime_;
  MethodTable methods_;
  std::string address_;
  std::unique_ptr<MessageListener> listener_;
  std::vector<std::unique_ptr<ServerShard>> shards_;
  std::unique_ptr<TaskScope> accepting_;
  uint64_t handshakes_failed_ = 0;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Runtime& runtime,
                                                      const std::vector<Service*>& services,
                                                      const ServerOptions& options) {
  auto impl = std::make_unique<Impl>(runtime);
  if (absl::Status status = impl->Start(services, options); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Shutdown(Duration::zero()); }
const std::string& Server::address() const { return impl_->address(); }
void Server::Shutdown(Duration grace) { impl_->Shutdown(grace); }
ServerStats Server::stats() const { return impl_->stats(); }

}  // namespace verbena
