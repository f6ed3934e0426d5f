#include "verbena/transport/executor/completion_queues.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {

// One CQ with its channel: what is touched only around sleeps.
class CompletionQueues::Queue final : public ReadableListener {
 public:
  static absl::StatusOr<std::unique_ptr<Queue>> Create(Device& device, int entries,
                                                       int comp_vector) {
    VERBENA_ASSIGN_OR_RETURN(ibv_comp_channel * channel, device.CreateCompChannel());
    auto queue = std::unique_ptr<Queue>(new Queue(device, channel));
    VERBENA_ASSIGN_OR_RETURN(ibv_cq * cq,
                             device.CreateCqOnVector(entries, nullptr, channel, comp_vector));
    queue->cq_ = cq;
    return queue;
  }

  ~Queue() override {
    if (cq_ == nullptr) return;
    absl::Status status = Destroy();
    if (!status.ok()) LogLeakedObject(device_, "CQ", status, Excuse::kNone);
  }

  ibv_cq* cq() const { return cq_; }
  Device& device() const { return device_; }
  int channel_fd() const { return channel_->fd; }

  bool Arm() {
    if (armed_) return true;
    const int error = ibv_req_notify_cq(cq_, /*solicited_only=*/0);
    armed_ = error == 0;
    if (error != 0 && !std::exchange(arm_failure_logged_, true)) {
      VERBENA_LOG_LINE(
          kExecutor, kError,
          fmt::format("{}; its executor polls without sleeping",
                      ErrnoStatus(error, "ibv_req_notify_cq on " + device_.name()).ToString()));
    }
    return armed_;
  }

  void LogPollFailure(int error) {
    if (std::exchange(poll_failure_logged_, true)) return;
    VERBENA_LOG_LINE(kExecutor, kError,
                     fmt::format("ibv_poll_cq on {} returned {}", device_.name(), error),
                     {{"device", device_.name()}});
  }

  // One event per arming, so one is there at most.
  void OnReadable() override {
    absl::StatusOr<ibv_cq*> cq = device_.GetCqEvent(channel_.get());
    if (!cq.ok()) return;
    armed_ = false;
    if (++unacknowledged_ >= kEventsPerAck) Acknowledge();
  }

  // The CQ stays when the device refuses.
  absl::Status Destroy() {
    // An event that nobody has read yet must be acknowledged too.
    OnReadable();
    Acknowledge();
    absl::Status status = device_.DestroyCq(cq_);
    if (status.ok()) cq_ = nullptr;
    return status;
  }

 private:
  // Acknowledging takes a mutex.
  static constexpr unsigned kEventsPerAck = 32;

  Queue(Device& device, ibv_comp_channel* channel) : device_(device), channel_(device, channel) {}

  void Acknowledge() {
    if (unacknowledged_ == 0) return;
    device_.AckCqEvents(cq_, unacknowledged_);
    unacknowledged_ = 0;
  }

  Device& device_;
  CompChannelHandle channel_;
  ibv_cq* cq_ = nullptr;
  unsigned unacknowledged_ = 0;
  bool armed_ = false;
  bool arm_failure_logged_ = false;
  bool poll_failure_logged_ = false;
};

CompletionQueues::CompletionQueues(Waiter& waiter, Lag& lag) : waiter_(waiter), lag_(lag) {}

CompletionQueues::~CompletionQueues() {
  for (const std::unique_ptr<Queue>& queue : queues_) {
    VERBENA_LOG_LINE(kExecutor, kError,
                     "a CQ on " + queue->device().name() +
                         " was not removed from its executor before that was destroyed");
    waiter_.Unwatch(queue->channel_fd());
  }
}

absl::StatusOr<ibv_cq*> CompletionQueues::Add(Device& device, int entries,
                                              CompletionListener& listener, int comp_vector) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Queue> queue,
                           Queue::Create(device, entries, comp_vector));
  VERBENA_RETURN_IF_ERROR(waiter_.Watch(queue->channel_fd(), *queue));
  ibv_cq* cq = queue->cq();
  polled_.push_back({.cq = cq, .listener = &listener});
  queues_.push_back(std::move(queue));
  return cq;
}

absl::Status CompletionQueues::Remove(ibv_cq* cq) {
  const auto found =
      std::ranges::find_if(queues_, [cq](const auto& queue) { return queue->cq() == cq; });
  if (found == queues_.end()) {
    return absl::InvalidArgumentError("RemoveCq: this executor has no such CQ");
  }
  const auto polled = polled_.begin() + (found - queues_.begin());
  VERBENA_CHECK(polled->cq == cq) << "the lists of CQs have different orders";
  absl::Status destroyed = (*found)->Destroy();
  waiter_.Unwatch((*found)->channel_fd());
  polled_.erase(polled);
  // The owner, the device and what providers mapped for the CQ may be gone next.
  if (!destroyed.ok()) Abandon(std::move(*found));
  queues_.erase(found);
  return destroyed;
}

// Keeps `queue` for ever: its destructor would touch the CQ again.
void CompletionQueues::Abandon(std::unique_ptr<Queue> queue) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<std::unique_ptr<Queue>>;
  std::lock_guard<std::mutex> lock(mutex);
  abandoned->push_back(std::move(queue));
}

int CompletionQueues::Drain(ibv_cq* cq) {
  const auto found =
      std::ranges::find_if(polled_, [cq](const Polled& polled) { return polled.cq == cq; });
  if (found == polled_.end()) return 0;
  CompletionListener& listener = *found->listener;
  int completions = 0;
  while (const int count = PollOnce(cq, listener)) completions += count;
  return completions;
}

CompletionQueues::PolledOn CompletionQueues::PollOn() {
  PolledOn all;
  // By index: a listener may add or remove other CQs.
  for (size_t i = 0; i < polled_.size(); ++i) {
    const Polled polled = polled_[i];
    const int entries = polled.cq->cqe;
    int of_queue = 0;
    while (of_queue < entries) {
      const int count = PollOnce(polled.cq, *polled.listener);
      if (count == 0) break;
      of_queue += count;
    }
    all.completions += of_queue;
    all.emptied &= of_queue < entries;
  }
  return all;
}

bool CompletionQueues::Arm() {
  bool armed = true;
  for (const std::unique_ptr<Queue>& queue : queues_) armed &= queue->Arm();
  return armed;
}

int CompletionQueues::PollFailed(ibv_cq* cq, int error) {
  // The CQ stays in error. Its device raises an asynchronous event for it, whose reader closes what
  // depends on it.
  const auto found =
      std::ranges::find_if(queues_, [cq](const auto& queue) { return queue->cq() == cq; });
  if (found != queues_.end()) (*found)->LogPollFailure(error);
  return 0;
}

}  // namespace verbena::internal
