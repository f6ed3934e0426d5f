#include "verbena/rpc/shard/shard.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

Shard::Shard(Executor& executor, Bootstrap& bootstrap, uint32_t index, const RuntimeId& id,
             RuntimeCore* owner)
    : executor_(executor),
      bootstrap_(bootstrap),
      index_(index),
      runtime_id_(id),
      owner_(owner),
      tasks_(executor) {}

absl::Status Shard::Init(const std::vector<DeviceKeeper*>& devices, const DeviceSizes& sizes,
                         uint32_t shards) {
  VERBENA_CHECK(devices_.empty()) << "executor " << index_ << " has its devices already";
  limits_ = sizes.smallest();
  for (DeviceKeeper* device : devices) {
    const EndpointOptions options{.limits = sizes.Of(device->kind()),
                                  .executor_index = index_,
                                  .executor_count = shards,
                                  .runtime_id = runtime_id_};
    kinds_.push_back(device->kind());
    devices_.push_back(std::make_unique<ShardDevice>(executor_, *device, options, tasks_));
  }
  const auto opened = [](const auto& device) { return !device->in_reserve(); };
  const auto first = std::ranges::find_if(devices_, opened);
  if (std::ranges::count_if(devices_, opened) != 1) return absl::OkStatus();
  return (*first)->UseEndpoint().status();
}

absl::StatusOr<Endpoint*> Shard::EndpointOn(size_t device) {
  VERBENA_CHECK(device < devices_.size()) << device << " of " << devices_.size() << " devices";
  return devices_[device]->UseEndpoint();
}

bool Shard::MayConnectOver(size_t device, const MessageStream& stream) const {
  return !devices_[device]->in_reserve() || IsBeyondLoopback(stream.peer());
}

Task<absl::StatusOr<Endpoint*>> Shard::AwaitEndpointFor(LinkKind kind) {
  const size_t index = std::find(kinds_.begin(), kinds_.end(), kind) - kinds_.begin();
  if (index < kinds_.size()) co_return co_await AwaitEndpointOn(index);
  std::vector<std::string> names;
  names.reserve(devices_.size());
  for (const std::unique_ptr<ShardDevice>& device : devices_) {
    names.push_back(fmt::format("{} ({})", device->name(), LinkKindName(device->kind())));
  }
  co_return absl::FailedPreconditionError(
      fmt::format("there is no {} device here, only {}: choose the same kind of device on both "
                  "sides, by RuntimeOptions::device or VERBENA_DEVICE",
                  LinkKindName(kind), fmt::join(names, ", ")));
}

absl::StatusOr<ShardDevice*> Shard::DeviceNamed(const std::string& device) {
  std::vector<std::string> names;
  for (const std::unique_ptr<ShardDevice>& each : devices_) {
    if (each->name() == device) return each.get();
    names.push_back(each->name());
  }
  const auto opened = [](const auto& each) { return !each->in_reserve(); };
  if (device.empty() && std::ranges::count_if(devices_, opened) == 1) {
    return std::ranges::find_if(devices_, opened)->get();
  }
  return absl::InvalidArgumentError(
      fmt::format("{} the runtime has {}: name one of them",
                  device.empty() ? "no device is named, and"
                                 : fmt::format("there is no device \"{}\";", device),
                  fmt::join(names, " and ")));
}

const Endpoint* Shard::EndpointWith(const ibv_pd* pd) const {
  for (const std::unique_ptr<ShardDevice>& device : devices_) {
    const Endpoint* endpoint = device->endpoint();
    if (endpoint != nullptr && endpoint->pd() == pd) return endpoint;
  }
  return nullptr;
}

uint32_t Shard::max_links() const {
  uint32_t links = limits_.max_links;
  for (const std::unique_ptr<ShardDevice>& device : devices_) {
    links = std::min(links, device->max_links());
  }
  return links;
}

std::vector<DeviceStats> Shard::stats() const {
  std::vector<DeviceStats> all;
  for (const std::unique_ptr<ShardDevice>& device : devices_) {
    if (std::optional<DeviceStats> stats = device->stats()) all.push_back(*std::move(stats));
  }
  return all;
}

void Shard::PublishStats() { published_.Set(stats()); }

void Shard::BeginShutdown() {
  closing_ = true;
  tasks_.RequestCancel();
}

Task<void> Shard::CloseLinks() {
  VERBENA_CHECK(closing_) << "executor " << index_ << " still makes connections";
  for (const std::unique_ptr<ShardDevice>& device : devices_) co_await device->Shutdown();
}

Task<void> Shard::JoinTasks() { co_await JoinLogged(tasks_, fmt::format("executor {}", index_)); }

Task<void> Shard::End() {
  VERBENA_CHECK(closing_ && tasks_.size() == 0)
      << "executor " << index_ << " has " << tasks_.size() << " tasks";
  parts_.Clear();
  for (const std::unique_ptr<ShardDevice>& device : devices_) co_await device->End();
}

}  // namespace verbena::internal
