#include "verbena/rpc/client/connections.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/internal/shard.h"

namespace verbena::internal {

Connections::Connections(Shard& shard)
    : shard_(shard), gate_(std::make_shared<ExecutorGate>(shard.executor())) {}

Connection& Connections::To(const std::string& target, const ExecutorWish& wish) {
  FreeEnded();
  std::unique_ptr<Connection>& connection = connections_[fmt::format(
      "{}#{}#{}#{}", target, static_cast<int>(wish.choice), wish.number, wish.key)];
  if (connection == nullptr) connection = std::make_unique<Connection>(shard_, target, wish);
  connection->AddUser();
  return *connection;
}

void Connections::Release(Connection& gone) {
  FreeEnded();
  auto found = std::find_if(connections_.begin(), connections_.end(),
                            [&gone](const auto& each) { return each.second.get() == &gone; });
  if (found == connections_.end() || !found->second->RemoveUser()) return;
  released_.push_back(std::move(found->second));
  connections_.erase(found);
  gone.Close();
}

void Connections::FreeEnded() {
  std::erase_if(released_, [](const auto& each) { return each->ended(); });
}

void Connections::Clear() {
  // No channel posts a release any more, and those that are posted find the gate closed.
  gate_->Close();
  connections_.clear();
  released_.clear();
}

}  // namespace verbena::internal
