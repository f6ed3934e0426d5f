#include "verbena/rpc/shard.h"

#include <utility>

#include "fmt/format.h"

namespace verbena {

Shard::Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index)
    : executor_(executor),
      bootstrap_(bootstrap),
      index_(index),
      tasks_(executor),
      roots_(executor) {}

absl::Status Shard::Init(DeviceContext& context, const LinkLimits& limits, uint32_t shards) {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint =
      Endpoint::Create(executor_, context, limits, index_, shards);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = *std::move(endpoint);
  return absl::OkStatus();
}

Task<void> Shard::Shutdown() {
  tasks_.RequestCancel();
  co_await endpoint_->Shutdown();
  co_await tasks_.Join();
  connections_.clear();
  endpoint_.reset();
}

Connection& Shard::ConnectionTo(const std::string& target, uint32_t server_executor) {
  std::unique_ptr<Connection>& connection =
      connections_[fmt::format("{}#{}", target, server_executor)];
  if (connection == nullptr) {
    connection = std::make_unique<Connection>(*this, target, server_executor);
  }
  return *connection;
}

}  // namespace verbena
