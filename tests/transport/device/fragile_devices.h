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

  absl::StatusOr<std::unique_ptr<Device>> Open();

  // The newest device raises `events` fatal events.
  void Fail(int events = 1);
  // The next `attempts` to open a device fail.
  void Refuse(int attempts);
  // From now on the newest device destroys no CQ, or no PD, and returns `answer` instead. Verbs
  // return EIO if a device was removed.
  void AnswerForCqs(const absl::Status& answer);
  void AnswerForPds(const absl::Status& answer);
  // From now on registrations with the newest device wait until ReleaseRegistrations(). Then they
  // fail with `answer`, unless it is OK.
  void HoldRegistrations(const absl::Status& answer = absl::OkStatus());
  void ReleaseRegistrations() { released_.Notify(); }
  int held_registrations() const { return held_registrations_; }
  int refused();
  int opened();
  // Waits until so many devices are alive.
  void AwaitAlive(int count);
  // Devices that were opened and are not closed yet.
  int alive();

 private:
  struct OwnedSoft {
    std::unique_ptr<SoftDevice> soft;
  };
  class FragileDevice final : private OwnedSoft, public RaisingDevice {
   public:
    FragileDevice(FragileDevices& all, std::unique_ptr<SoftDevice> device)
        : OwnedSoft{std::move(device)}, RaisingDevice(*soft), all_(all) {}
    ~FragileDevice() override;

    absl::Status DestroyCq(ibv_cq* cq) override;
    absl::Status DeallocPd(ibv_pd* pd) override;
    absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;

    std::atomic<bool> held = false;
    // Guarded by all_.mutex_.
    std::optional<absl::Status> register_answer;
    std::optional<absl::Status> cq_answer;
    std::optional<absl::Status> pd_answer;

   private:
    std::optional<absl::Status> Answer(const std::optional<absl::Status>& answer);

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
