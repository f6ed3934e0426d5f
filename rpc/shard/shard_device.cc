#include "verbena/rpc/shard/shard_device.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

// Between two looks at retired endpoints. (start)
constexpr Duration kFirstSweep = std::chrono::milliseconds(2);
constexpr Duration kLongestSweep = std::chrono::milliseconds(500);

}  // namespace

ShardDevice::ShardDevice(Executor& executor, DeviceKeeper& keeper, const EndpointOptions& options,
                         TaskScope& tasks)
    : executor_(executor), keeper_(keeper), options_(options), tasks_(tasks) {
  opened_ = keeper.Attach(*this);
  if (opened_ != nullptr || !keeper.in_reserve()) arrived_.Set();
}

ShardDevice::~ShardDevice() = default;

absl::StatusOr<Endpoint*> ShardDevice::UseEndpoint() {
  if (endpoint_ != nullptr) return endpoint_.get();
  if (!arrived_.is_set()) return InReserve();
  if (opened_ == nullptr) return keeper_.Absence();
  VERBENA_ASSIGN_OR_RETURN(EndpointMemory memory,
                           Endpoint::Register(*opened_->context, options_.limits));
  return MakeEndpoint(std::move(memory));
}

Task<absl::StatusOr<Endpoint*>> ShardDevice::AwaitEndpoint() {
  while (endpoint_ == nullptr) {
    if (tasks_.cancel_scope().requested()) co_return Ended();
    if (!arrived_.is_set()) {
      VERBENA_CO_RETURN_IF_ERROR(keeper_.Wake());
      // Another executor may have been first: its word is posted by now.
      VERBENA_CO_RETURN_IF_ERROR(co_await arrived_.Wait());
      continue;
    }
    if (registering_ == nullptr) {
      if (opened_ == nullptr) co_return keeper_.Absence();
      tasks_.Spawn(Register(opened_));
      registering_ = opened_;
      registered_.Reset();
    }
    const std::shared_ptr<OpenedDevice> tried = registering_;
    VERBENA_CO_RETURN_IF_ERROR(co_await registered_.Wait());
    // An opening that has failed meanwhile says nothing of the next one.
    if (endpoint_ == nullptr && tried == opened_) co_return registration_;
  }
  co_return endpoint_.get();
}

// Runs in `tasks`, and not in the task of a waiter, which may be cancelled. Keeps `opened` open
// until its memory is deregistered, if that comes too late.
Task<void> ShardDevice::Register(std::shared_ptr<OpenedDevice> opened) {
  DeviceContext& context = *opened->context;
  absl::StatusOr<EndpointMemory> memory = Ended();
  absl::Status end;
  // Whoever waits hears of an end of any kind: nobody else would start another registration.
  try {
    memory = co_await context.control().Run(
        ControlKind::kGrowth, /*order=*/nullptr,
        [&context, limits = options_.limits] { return Endpoint::Register(context, limits); });
    end = UseRegistered(*opened, memory);
  } catch (const std::exception& error) {
    end = absl::InternalError(
        fmt::format("registering memory with {} threw: {}", name(), error.what()));
  } catch (...) {
    end = absl::InternalError(fmt::format("registering memory with {} threw", name()));
  }
  // Wakes the waiters before memory is deregistered, since the device may have failed and may hang.
  if (registering_ == opened) EndRegistration(std::move(end));
  if (!memory.ok()) co_return;
  (void)co_await context.control().Finish(ControlKind::kTeardown, /*order=*/nullptr,
                                          [late = *std::move(memory)]() mutable {
                                            const EndpointMemory gone = std::move(late);
                                            return absl::OkStatus();
                                          });
}

// Leaves the memory in `memory` if that came too late.
absl::Status ShardDevice::UseRegistered(const OpenedDevice& opened,
                                        absl::StatusOr<EndpointMemory>& memory) {
  if (!memory.ok()) return tasks_.cancel_scope().requested() ? Ended() : memory.status();
  if (endpoint_ != nullptr || opened_.get() != &opened || shutting_down_) return Ended();
  EndpointMemory registered = *std::move(memory);
  memory = Ended();
  return MakeEndpoint(std::move(registered)).status();
}

void ShardDevice::EndRegistration(absl::Status end) {
  registration_ = std::move(end);
  registering_ = nullptr;
  registered_.Set();
}

absl::Status ShardDevice::InReserve() const {
  return absl::UnavailableError(
      fmt::format("{} is kept in reserve, and no link has needed it yet", name()));
}

absl::Status ShardDevice::Ended() const {
  return absl::UnavailableError(
      fmt::format("{} is not put to use any more: its runtime ends", name()));
}

absl::StatusOr<Endpoint*> ShardDevice::MakeEndpoint(EndpointMemory memory) {
  VERBENA_CHECK(endpoint_ == nullptr && opened_ != nullptr) << name();
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<Endpoint> made,
      Endpoint::CreateWith(std::move(memory), executor_, *opened_->context, options_.limits,
                           options_.executor_index, options_.executor_count, options_.runtime_id));
  endpoint_ = std::move(made);
  in_use_.store(true, std::memory_order_relaxed);
  return endpoint_.get();
}

uint32_t ShardDevice::max_links() const {
  if (endpoint_ != nullptr) return endpoint_->limits().max_links;
  if (opened_ == nullptr) return options_.limits.max_links;
  // A device that can take none is not refused before somebody needs it.
  const absl::StatusOr<LinkLimits> derived =
      DeriveLimits(options_.limits, opened_->context->device(), kind() == LinkKind::kTcp);
  return derived.ok() ? derived->max_links : options_.limits.max_links;
}

std::optional<DeviceStats> ShardDevice::stats() const {
  if (!in_use_.load(std::memory_order_relaxed) && passed_over_.empty()) return std::nullopt;
  DeviceStats stats{.device = name(),
                    .endpoint = past_,
                    .kind = LinkKindName(kind()),
                    .passed_over = passed_over_};
  if (endpoint_ != nullptr) stats.endpoint += endpoint_->stats();
  for (const Retired& retired : retired_) stats.endpoint += retired.endpoint->stats();
  return stats;
}

// --- from the keeper

void ShardDevice::OnDeviceFailed(const std::shared_ptr<OpenedDevice>& opened) {
  executor_.PostFunction([this, opened] { Retire(*opened); });
}

absl::StatusOr<std::optional<EndpointMemory>> ShardDevice::Prepare(DeviceContext& context) {
  if (!in_use_.load(std::memory_order_relaxed)) return std::nullopt;
  VERBENA_ASSIGN_OR_RETURN(EndpointMemory memory, Endpoint::Register(context, options_.limits));
  return std::optional<EndpointMemory>(std::move(memory));
}

void ShardDevice::OnDeviceOpened(std::shared_ptr<OpenedDevice> opened,
                                 std::optional<EndpointMemory> memory) {
  executor_.PostFunction([this, arrival = Arrival{std::move(opened), std::move(memory)}]() mutable {
    Take(std::move(arrival));
  });
}

void ShardDevice::Take(Arrival arrival) {
  arrived_.Set();
  // An opening may have failed by now: then its end is posted behind this.
  if (shutting_down_) return;
  VERBENA_CHECK(opened_ == nullptr && endpoint_ == nullptr)
      << name() << " is opened again before this executor has retired it";
  opened_ = std::move(arrival.opened);
  if (!arrival.memory.has_value()) return;
  const absl::Status made = MakeEndpoint(*std::move(arrival.memory)).status();
  if (!made.ok()) {
    VERBENA_LOG_LINE(kRuntime, kError,
                     fmt::format("executor {} cannot use {}, which was reopened: {}",
                                 options_.executor_index, name(), made.ToString()),
                     {{"executor", options_.executor_index}, {"device", name()}});
  }
}

// --- endpoints of openings that have failed

void ShardDevice::Retire(OpenedDevice& opened) {
  if (shutting_down_) return;
  VERBENA_CHECK(opened_.get() == &opened) << name() << ": an opening fails that is not in use";
  // A registration may take as long as it likes: from now on neither a caller nor the next
  // opening's registration waits for it.
  if (registering_.get() == &opened) EndRegistration(keeper_.Absence());
  if (endpoint_ == nullptr) {
    keeper_.OnDrained(opened);
    opened_ = nullptr;
    return;
  }
  endpoint_->Retire(keeper_.Absence());
  retired_.push_back({.opened = std::move(opened_), .endpoint = std::move(endpoint_)});
  opened_ = nullptr;
  if (!std::exchange(sweeping_, true)) tasks_.Spawn(Sweep());
}

Task<void> ShardDevice::Sweep() {
  Backoff pause(kFirstSweep, kLongestSweep);
  while (!retired_.empty()) {
    NoteDrained();
    if (std::optional<Retired> unused = TakeUnused()) {
      co_await unused->endpoint->Release();
      pause.Reset();
    } else if (!(co_await Sleep(pause.Next())).ok()) {
      break;
    }
  }
  sweeping_ = false;
}

void ShardDevice::NoteDrained() {
  for (Retired& retired : retired_) {
    if (retired.drained || !retired.endpoint->drained()) continue;
    retired.drained = true;
    keeper_.OnDrained(*retired.opened);
  }
}

std::optional<ShardDevice::Retired> ShardDevice::TakeUnused() {
  const auto found = std::find_if(retired_.begin(), retired_.end(), [](const Retired& retired) {
    return retired.drained && retired.endpoint->unused();
  });
  if (found == retired_.end()) return std::nullopt;
  Retired unused = std::move(*found);
  retired_.erase(found);
  past_ += unused.endpoint->stats();
  past_.links = past_.receives_posted = past_.credits_borrowed = 0;
  return unused;
}

// --- the end

Task<void> ShardDevice::Shutdown() {
  shutting_down_ = true;
  if (endpoint_ != nullptr) co_await endpoint_->Shutdown();
}

// Buffers that the program still has keep their memory for ever: it must give them up before.
Task<void> ShardDevice::End() {
  VERBENA_CHECK(shutting_down_ && registering_ == nullptr && !sweeping_)
      << name() << ": the executor's tasks have not ended";
  for (Retired& retired : retired_) co_await retired.endpoint->Shutdown();
  retired_.clear();
  endpoint_.reset();
  opened_ = nullptr;
}

}  // namespace verbena::internal
