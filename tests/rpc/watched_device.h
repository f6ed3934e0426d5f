// WatchedDevice: a device over another one, which tells a test of each frame and each one-sided
// operation of its links (call_event.h).
//
//   runtime = StartRuntime({}, {.open = OpenerOfWatched(
//       [](CallEvent event, WatchedDevice& device, uint32_t qpn) {
//         if (event == CallEvent::kResponsePosted) device.Break(qpn);
//       })});

#ifndef VERBENA_TESTS_RPC_WATCHED_DEVICE_H_
#define VERBENA_TESTS_RPC_WATCHED_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/call_event.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

// The part of a WatchedDevice that exists before its DelegatingDevice and ends after it.
class OwnerOfWatched {
 protected:
  explicit OwnerOfWatched(std::unique_ptr<Device> device) : owned_(std::move(device)) {}

  const std::unique_ptr<Device> owned_;
};

// Owns the other device, and replaces the verbs of its context. Safe from any thread.
class WatchedDevice final : private OwnerOfWatched, public DelegatingDevice {
 public:
  // Called on the thread that posts or polls, with the number of the link's queue pair. It may
  // break the queue pair.
  using Watcher = std::function<void(CallEvent event, WatchedDevice& device, uint32_t qpn)>;

  WatchedDevice(std::unique_ptr<Device> device, Watcher watcher);
  ~WatchedDevice() override;

  // Breaks the queue pair as a device that fails does: its link hears of it later. Returns false if
  // there is none of that number any more.
  bool Break(uint32_t qpn);

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;
  absl::Status DestroyQp(ibv_qp* qp) override;
  bool TakeNewestReceivesFirst(ibv_srq* srq) override;

 private:
  static WatchedDevice& Of(ibv_context* context);

  // One by one, so that the test can break the link between any two.
  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad);
  void TellPosted(uint32_t qpn, const ibv_send_wr& wr);
  int Poll(ibv_cq* cq, int room, ibv_wc* out);
  void TellPolled(const ibv_wc& completion);
  void TellFrames(const char* bytes, size_t size, bool arrived, uint32_t qpn);
  void NoteReceives(const void* queue, const ibv_recv_wr* wr);
  // Returns the bytes of a completed receive; nullptr if its queue pair is gone.
  const char* BytesOf(const ibv_wc& completion);

  inline static std::mutex all_mutex_;  // guards `all_`
  inline static std::map<ibv_context*, WatchedDevice*> all_;
  const Watcher watcher_;
  const ibv_context_ops real_;
  std::mutex mutex_;  // guards what follows
  std::map<uint32_t, ibv_qp*> qps_;
  std::map<std::pair<const void*, uint64_t>, uint64_t> receives_;  // queue and wr_id: address
};

// For TestDevice::open: opens the device of that name, and watches it.
std::function<absl::StatusOr<std::unique_ptr<Device>>()> OpenerOfWatched(
    WatchedDevice::Watcher watcher, const std::string& name = "auto");

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_WATCHED_DEVICE_H_
