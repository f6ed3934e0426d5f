#include "verbena/rpc/client/connections.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/rpc/shard/shard.h"

namespace verbena::internal {

Connections::Connections(Shard& shard)
    : shard_(shard), gate_(std::make_shared<ExecutorGate>(shard.executor())) {}

Connections::~Connections() = default;

Connections& Connections::Of(Shard& shard) { return shard.parts().Get<Connections>(shard); }

Connection& Connections::To(const std::string& target, const ExecutorWish& wish,
                            const std::vector<std::string>& others) {
  FreeEnded();
  std::unique_ptr<Connection>& connection =
      connections_[fmt::format("{}|{}#{}#{}#{}", target, fmt::join(others, "|"),
                               static_cast<int>(wish.choice), wish.number, wish.key)];
  if (connection == nullptr)
    connection = std::make_unique<Connection>(shard_, target, wish, others);
  connection->AddUser();
  return *connection;
}

void Connections::Release(Connection& gone, End end) {
  FreeEnded();
  auto found = std::find_if(connections_.begin(), connections_.end(),
                            [&gone](const auto& each) { return each.second.get() == &gone; });
  if (found == connections_.end() || !found->second->RemoveUser()) return;
  released_.push_back(std::move(found->second));
  connections_.erase(found);
  if (end == End::kDrain) {
    gone.Drain();
  } else {
    gone.Close();
  }
}

Duration Connections::longest_pause() const {
  return shard_.wanted_limits().longest_reconnect_pause;
}

void Connections::EndChoice(ConnectionChoice& choice) {
  std::erase_if(choices_, [&choice](const auto& each) { return each.get() == &choice; });
}

void Connections::FreeEnded() {
  if (released_.size() < 2 * left_) return;
  std::erase_if(released_, [](const auto& each) { return each->ended(); });
  left_ = released_.size();
}

void Connections::Clear() {
  // No channel posts a release any more, and those that are posted find the gate closed.
  gate_->Close();
  choices_.clear();
  connections_.clear();
  released_.clear();
}

}  // namespace verbena::internal
