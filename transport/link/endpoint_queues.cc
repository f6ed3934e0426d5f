#include "verbena/transport/link/endpoint_queues.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

EndpointQueues::EndpointQueues(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                               LinkTable& links, CompletionListener& listener)
    : executor_(executor),
      context_(context),
      limits_(limits),
      listener_(listener),
      lost_receives_(context.device(), links) {}

absl::StatusOr<std::unique_ptr<ReceiveRing>> EndpointQueues::NewRing(DeviceContext& context,
                                                                     const LinkLimits& limits) {
  if (!context.device().capabilities().srq) return ReceiveRing::Absent();
  return ReceiveRing::Create(context.device(), context.pd(), limits.srq_depth,
                             LostReceives::Spares(limits, context.device()), limits.eager_bytes);
}

absl::StatusOr<std::unique_ptr<LinkReceives>> EndpointQueues::NewLinkReceives(
    DeviceContext& context, const LinkLimits& limits) {
  if (context.device().capabilities().srq) return nullptr;
  return LinkReceives::Create(context.device(), context.pd(), limits.max_links,
                              limits.receives_per_link, limits.eager_bytes);
}

absl::StatusOr<ibv_cq*> EndpointQueues::NewCq() {
  const uint32_t entries =
      CompletionQueueEntries(limits_) + LostReceives::Spares(limits_, context_.device());
  return executor_.AddCq(context_.device(), static_cast<int>(entries), listener_);
}

void EndpointQueues::RemoveCq() {
  if (absl::Status removed = executor_.RemoveCq(cq_); !removed.ok()) {
    Log(LogLevel::kError,
        fmt::format("{}a completion queue was not destroyed: {}",
                    are_lost_ ? "a lost queue is replaced, but " : "", removed.ToString()));
  }
}

absl::Status EndpointQueues::Create(std::unique_ptr<ReceiveRing> ring,
                                    std::unique_ptr<LinkReceives> link_receives) {
  receives_ = std::move(ring);
  link_receives_ = std::move(link_receives);
  lost_receives_.Follow(*receives_);
  absl::StatusOr<ibv_cq*> cq = NewCq();
  if (cq.ok()) cq_ = *cq;
  return cq.status();
}

absl::Status EndpointQueues::Exchange(std::unique_ptr<ReceiveRing>& ring) {
  VERBENA_ASSIGN_OR_RETURN(ibv_cq * cq, NewCq());
  Unsubscribe();
  RemoveCq();
  cq_ = cq;
  ++number_;
  are_lost_ = false;
  std::swap(receives_, ring);
  lost_receives_.Follow(*receives_);
  return absl::OkStatus();
}

void EndpointQueues::Subscribe(const DeviceContext::EventHandler& handler) {
  context_.SubscribeQueue(cq_, executor_, handler);
  if (receives_->srq() != nullptr) {
    context_.SubscribeQueue(receives_->srq(), executor_, handler);
  }
}

void EndpointQueues::Unsubscribe() {
  context_.UnsubscribeQueue(cq_);
  context_.UnsubscribeQueue(receives_->srq());
}

std::unique_ptr<ReceiveRing> EndpointQueues::TakeReceives() {
  RemoveCq();
  cq_ = nullptr;
  return std::move(receives_);
}

void EndpointQueues::Close() {
  if (cq_ != nullptr) Unsubscribe();
  receives_.reset();
  link_receives_.reset();
  if (cq_ == nullptr) return;
  RemoveCq();
  cq_ = nullptr;
}

}  // namespace verbena::internal
