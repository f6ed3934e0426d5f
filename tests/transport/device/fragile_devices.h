// FragileDevices: opens soft devices that fail when a test tells them to, for TestDevice::open.
//
//   FragileDevices devices("fragile");
//   runtime = StartRuntime({}, {.open = [&devices] { return devices.Open(); }});
//   devices.Fail();

#ifndef VERBENA_TESTS_TRANSPORT_DEVICE_FRAGILE_DEVICES_H_
#define VERBENA_TESTS_TRANSPORT_DEVICE_FRAGILE_DEVICES_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "tests/transport/device/raising_device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

// Must outlive its devices. Safe from any thread.
class FragileDevices {
 public:
  explicit FragileDevices(std::string name) : name_(std::move(name)) {}

  absl::StatusOr<std::unique_ptr<Device>> Open() {
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

  // The newest device raises `events` fatal events.
  void Fail(int events = 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < events; ++i) newest_->Raise(IBV_EVENT_DEVICE_FATAL);
  }
  // The next `attempts` to open a device fail.
  void Refuse(int attempts) {
    std::lock_guard<std::mutex> lock(mutex_);
    to_refuse_ = attempts;
  }
  // From now on the newest device destroys no CQ, or no PD, and returns `answer` instead. Verbs
  // return EIO if a device was removed.
  void AnswerForCqs(const absl::Status& answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    newest_->cq_answer = answer;
  }
  void AnswerForPds(const absl::Status& answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    newest_->pd_answer = answer;
  }
  // From now on registrations with the newest device wait until ReleaseRegistrations(). Then they
  // fail with `answer`, unless it is OK.
  void HoldRegistrations(const absl::Status& answer = absl::OkStatus()) {
    std::lock_guard<std::mutex> lock(mutex_);
    newest_->register_answer = answer;
    newest_->held = true;
  }
  void ReleaseRegistrations() { released_.Notify(); }
  int held_registrations() const { return held_registrations_; }
  int refused() {
    std::lock_guard<std::mutex> lock(mutex_);
    return refused_;
  }
  int opened() {
    std::lock_guard<std::mutex> lock(mutex_);
    return opened_;
  }
  // Waits until so many devices are alive.
  void AwaitAlive(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return alive_ == count; });
  }
  // Devices that were opened and are not closed yet.
  int alive() {
    std::lock_guard<std::mutex> lock(mutex_);
    return alive_;
  }

 private:
  struct OwnedSoft {
    std::unique_ptr<SoftDevice> soft;
  };
  class FragileDevice final : private OwnedSoft, public RaisingDevice {
   public:
    FragileDevice(FragileDevices& all, std::unique_ptr<SoftDevice> device)
        : OwnedSoft{std::move(device)}, RaisingDevice(*soft), all_(all) {}
    ~FragileDevice() override {
      std::lock_guard<std::mutex> lock(all_.mutex_);
      --all_.alive_;
      all_.changed_.notify_all();
    }

    absl::Status DestroyCq(ibv_cq* cq) override {
      const std::optional<absl::Status> answer = Answer(cq_answer);
      return answer.has_value() ? *answer : RaisingDevice::DestroyCq(cq);
    }
    absl::Status DeallocPd(ibv_pd* pd) override {
      const std::optional<absl::Status> answer = Answer(pd_answer);
      return answer.has_value() ? *answer : RaisingDevice::DeallocPd(pd);
    }

    absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
      if (held) {
        ++all_.held_registrations_;
        all_.released_.WaitForNotification();
        if (const absl::Status answer = *Answer(register_answer); !answer.ok()) return answer;
      }
      return RaisingDevice::RegMr(pd, address, bytes, access);
    }

    std::atomic<bool> held = false;
    // Guarded by all_.mutex_.
    std::optional<absl::Status> register_answer;
    std::optional<absl::Status> cq_answer;
    std::optional<absl::Status> pd_answer;

   private:
    std::optional<absl::Status> Answer(const std::optional<absl::Status>& answer) {
      std::lock_guard<std::mutex> lock(all_.mutex_);
      return answer;
    }

    FragileDevices& all_;
  };

  const std::string name_;
  std::atomic<int> held_registrations_ = 0;
  absl::Notification released_;
  std::condition_variable changed_;
  std::mutex mutex_;  // guards what follows
  FragileDevice* newest_ = nullptr;
  int alive_ = 0;
  int opened_ = 0;
  int to_refuse_ = 0;
  int refused_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_DEVICE_FRAGILE_DEVICES_H_
