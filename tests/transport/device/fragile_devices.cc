#include "tests/transport/device/fragile_devices.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"

namespace verbena::internal {

absl::StatusOr<std::unique_ptr<Device>> FragileDevices::Open() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (to_refuse_ > 0) {
    --to_refuse_;
    ++refused_;
    return absl::NotFoundError("the test lets nobody open " + name_);
  }
  absl::StatusOr<std::unique_ptr<SoftDevice>> soft = SoftDevice::Create({.name = name_});
  if (!soft.ok()) return soft.status();
  auto device = std::make_unique<FragileDevice>(*this, *std::move(soft));
  newest_ = device.get();
  ++alive_;
  ++opened_;
  changed_.notify_all();
  return device;
}

void FragileDevices::Fail(int events) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < events; ++i) newest_->Raise(IBV_EVENT_DEVICE_FATAL);
}

void FragileDevices::Refuse(int attempts) {
  std::lock_guard<std::mutex> lock(mutex_);
  to_refuse_ = attempts;
}

void FragileDevices::AnswerForCqs(const absl::Status& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  newest_->cq_answer = answer;
}

void FragileDevices::AnswerForPds(const absl::Status& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  newest_->pd_answer = answer;
}

void FragileDevices::HoldRegistrations(const absl::Status& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  newest_->register_answer = answer;
  newest_->held = true;
}

int FragileDevices::refused() {
  std::lock_guard<std::mutex> lock(mutex_);
  return refused_;
}

int FragileDevices::opened() {
  std::lock_guard<std::mutex> lock(mutex_);
  return opened_;
}

void FragileDevices::AwaitAlive(int count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return alive_ == count; });
}

int FragileDevices::alive() {
  std::lock_guard<std::mutex> lock(mutex_);
  return alive_;
}

FragileDevices::FragileDevice::~FragileDevice() {
  std::lock_guard<std::mutex> lock(all_.mutex_);
  --all_.alive_;
  all_.changed_.notify_all();
}

absl::Status FragileDevices::FragileDevice::DestroyCq(ibv_cq* cq) {
  const std::optional<absl::Status> answer = Answer(cq_answer);
  return answer.has_value() ? *answer : RaisingDevice::DestroyCq(cq);
}

absl::Status FragileDevices::FragileDevice::DeallocPd(ibv_pd* pd) {
  const std::optional<absl::Status> answer = Answer(pd_answer);
  return answer.has_value() ? *answer : RaisingDevice::DeallocPd(pd);
}

absl::StatusOr<ibv_mr*> FragileDevices::FragileDevice::RegMr(ibv_pd* pd, void* address,
                                                             size_t bytes, int access) {
  if (held) {
    ++all_.held_registrations_;
    all_.released_.WaitForNotification();
    if (const absl::Status answer = *Answer(register_answer); !answer.ok()) return answer;
  }
  return RaisingDevice::RegMr(pd, address, bytes, access);
}

std::optional<absl::Status> FragileDevices::FragileDevice::Answer(
    const std::optional<absl::Status>& answer) {
  std::lock_guard<std::mutex> lock(all_.mutex_);
  return answer;
}

}  // namespace verbena::internal
