#include "verbena/rpc/shard.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace verbena {

Shard::Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index)
    : executor_(executor),
      bootstrap_(bootstrap),
      index_(index),
      tasks_(executor),
      roots_(executor) {}

absl::Status Shard::Init(const std::vector<DeviceContext*>& contexts, const LinkLimits& limits,
                         uint32_t shards) {
  contexts_ = contexts;
  for (const DeviceContext* context : contexts) kinds_.push_back(context->address().kind);
  endpoints_.resize(contexts.size());
  limits_ = limits;
  shards_ = shards;
  return contexts.size() == 1 ? EndpointOn(0).status() : absl::OkStatus();
}

absl::StatusOr<Endpoint*> Shard::EndpointOn(size_t device) {
  std::unique_ptr<Endpoint>& endpoint = endpoints_[device];
  if (endpoint == nullptr) {
    absl::StatusOr<std::unique_ptr<Endpoint>> made =
        Endpoint::Create(executor_, *contexts_[device], limits_, index_, shards_);
    if (!made.ok()) return made.status();
    endpoint = *std::move(made);
  }
  return endpoint.get();
}

absl::StatusOr<Endpoint*> Shard::EndpointFor(LinkKind kind) {
  auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  if (found != kinds_.end()) return EndpointOn(found - kinds_.begin());
  std::vector<std::string> names;
  names.reserve(contexts_.size());
  for (const DeviceContext* context : contexts_) {
    names.push_back(
        fmt::format("{} ({})", context->device().name(), LinkKindName(context->address().kind)));
  }
  return absl::FailedPreconditionError(
      fmt::format("there is no {} device here, only {}: choose the same kind of device on both "
                  "sides",
                  LinkKindName(kind), fmt::join(names, ", ")));
}

std::vector<DeviceStats> Shard::stats() const {
  std::vector<DeviceStats> all;
  for (const std::unique_ptr<Endpoint>& endpoint : endpoints_) {
    if (endpoint != nullptr) all.push_back({endpoint->device_name(), endpoint->stats()});
  }
  return all;
}

Task<void> Shard::Shutdown() {
  tasks_.RequestCancel();
  for (const std::unique_ptr<Endpoint>& endpoint : endpoints_) {
    if (endpoint != nullptr) co_await endpoint->Shutdown();
  }
  co_await tasks_.Join();
  connections_.clear();
  endpoints_.clear();
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
