// WatchedDevice: a device over another one, which tells a test of each frame and each one-sided
// operation of its links. CallEvent: what the test can be told of.
//
//   runtime = StartRuntime({}, {.open = OpenerOfWatched(
//       [](CallEvent event, WatchedDevice& device, uint32_t qpn) {
//         if (event == CallEvent::kResponsePosted) device.Break(qpn);
//       })});

#ifndef VERBENA_TESTS_RPC_WATCHED_DEVICE_H_
#define VERBENA_TESTS_RPC_WATCHED_DEVICE_H_

#include <infiniband/verbs.h>

#include <array>
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
#include "gtest/gtest.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// The events of a call that can be seen outside the product, at either end of its link.
//
// "Posted": the product posts a work request, which the device has not taken yet. "Arrived" and
// "done": the product polls a completion, and has not looked at it yet. A SEND has an event for
// each of its frames. The service of a test tells of its handlers itself.
enum class CallEvent : uint8_t {
  kRequestPosted,
  kRequestArrived,
  kHandlerBegins,
  kHandlerEnds,
  kResponsePosted,
  kResponseArrived,
  // Calls with payloads have these.
  kLandingNeededPosted,
  kLandingNeededArrived,
  kLandingPosted,
  kLandingArrived,
  kOneSidedPosted,
  kOneSidedDone,
  // Streams have these.
  kMessagePosted,
  kMessageArrived,
  kWindowPosted,
  kWindowArrived,
  kEndPosted,
  kEndArrived,
  // All others: SENDs without such frames, work requests that bind and invalidate, SENDs that are
  // done.
  kOther,
};
inline constexpr size_t kCallEvents = static_cast<size_t>(CallEvent::kOther) + 1;

inline constexpr std::array kEventsOfCalls = {
    CallEvent::kRequestPosted,       CallEvent::kRequestArrived,       CallEvent::kHandlerBegins,
    CallEvent::kHandlerEnds,         CallEvent::kResponsePosted,       CallEvent::kResponseArrived,
    CallEvent::kLandingNeededPosted, CallEvent::kLandingNeededArrived, CallEvent::kLandingPosted,
    CallEvent::kLandingArrived,      CallEvent::kOneSidedPosted,       CallEvent::kOneSidedDone,
};
inline constexpr std::array kEventsOfStreams = {
    CallEvent::kRequestPosted, CallEvent::kRequestArrived, CallEvent::kHandlerBegins,
    CallEvent::kHandlerEnds,   CallEvent::kResponsePosted, CallEvent::kResponseArrived,
    CallEvent::kMessagePosted, CallEvent::kMessageArrived, CallEvent::kWindowPosted,
    CallEvent::kWindowArrived, CallEvent::kEndPosted,      CallEvent::kEndArrived,
};

inline const char* CallEventName(CallEvent event) {
  constexpr std::array<const char*, kCallEvents> kNames = {
      "request_posted",
      "request_arrived",
      "handler_begins",
      "handler_ends",
      "response_posted",
      "response_arrived",
      "landing_needed_posted",
      "landing_needed_arrived",
      "landing_posted",
      "landing_arrived",
      "one_sided_posted",
      "one_sided_done",
      "message_posted",
      "message_arrived",
      "window_posted",
      "window_arrived",
      "end_posted",
      "end_arrived",
      "other",
  };
  return kNames[static_cast<size_t>(event)];
}

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

  WatchedDevice(std::unique_ptr<Device> device, Watcher watcher)
      : OwnerOfWatched(std::move(device)),
        DelegatingDevice(*owned_),
        watcher_(std::move(watcher)),
        real_(context()->ops) {
    {
      std::lock_guard<std::mutex> lock(all_mutex_);
      all_[context()] = this;
    }
    context()->ops.post_send = [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
      return Of(qp->context).PostSend(qp, wr, bad);
    };
    context()->ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
      WatchedDevice& device = Of(qp->context);
      device.NoteReceives(qp, wr);
      return device.real_.post_recv(qp, wr, bad);
    };
    context()->ops.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
      WatchedDevice& device = Of(srq->context);
      device.NoteReceives(srq, wr);
      return device.real_.post_srq_recv(srq, wr, bad);
    };
    context()->ops.poll_cq = [](ibv_cq* cq, int room, ibv_wc* out) {
      return Of(cq->context).Poll(cq, room, out);
    };
  }
  ~WatchedDevice() override {
    context()->ops = real_;
    std::lock_guard<std::mutex> lock(all_mutex_);
    all_.erase(context());
  }

  // Breaks the queue pair as a device that fails does: its link hears of it later. Returns false if
  // there is none of that number any more.
  bool Break(uint32_t qpn) {
    // The mutex keeps the queue pair from being destroyed meanwhile.
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = qps_.find(qpn);
    if (found == qps_.end()) return false;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    const absl::Status broken = DelegatingDevice::ModifyQp(found->second, attributes, IBV_QP_STATE);
    EXPECT_TRUE(broken.ok()) << broken;
    return broken.ok();
  }

  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    absl::StatusOr<ibv_qp*> made = DelegatingDevice::CreateQp(pd, attributes);
    std::lock_guard<std::mutex> lock(mutex_);
    if (made.ok()) qps_[(*made)->qp_num] = *made;
    return made;
  }
  absl::Status DestroyQp(ibv_qp* qp) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      qps_.erase(qp->qp_num);
    }
    return DelegatingDevice::DestroyQp(qp);
  }
  bool TakeNewestReceivesFirst(ibv_srq* srq) override {
    return owned_->TakeNewestReceivesFirst(srq);
  }

 private:
  static WatchedDevice& Of(ibv_context* context) {
    std::lock_guard<std::mutex> lock(all_mutex_);
    return *all_.at(context);
  }

  // One by one, so that the test can break the link between any two.
  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
    for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
      TellPosted(qp->qp_num, *wr);
      ibv_send_wr* const next = std::exchange(wr->next, nullptr);
      const int error = real_.post_send(qp, wr, bad);
      wr->next = next;
      if (error != 0) return error;
    }
    return 0;
  }

  void TellPosted(uint32_t qpn, const ibv_send_wr& wr) {
    switch (wr.opcode) {
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_READ:
        return watcher_(CallEvent::kOneSidedPosted, *this, qpn);
      case IBV_WR_SEND:
      case IBV_WR_SEND_WITH_INV:
        break;
      default:
        return watcher_(CallEvent::kOther, *this, qpn);
    }
    std::string bytes;
    for (int i = 0; i < wr.num_sge; ++i) {
      bytes.append(reinterpret_cast<const char*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    }
    TellFrames(bytes.data(), bytes.size(), /*arrived=*/false, qpn);
  }

  int Poll(ibv_cq* cq, int room, ibv_wc* out) {
    const int count = real_.poll_cq(cq, room, out);
    for (int i = 0; i < count; ++i) {
      if (out[i].status == IBV_WC_SUCCESS) TellPolled(out[i]);
    }
    return count;
  }

  void TellPolled(const ibv_wc& completion) {
    if ((completion.opcode & IBV_WC_RECV) == 0) {
      const bool is_one_sided =
          completion.opcode == IBV_WC_RDMA_WRITE || completion.opcode == IBV_WC_RDMA_READ;
      watcher_(is_one_sided ? CallEvent::kOneSidedDone : CallEvent::kOther, *this,
               completion.qp_num);
    } else if (const char* bytes = BytesOf(completion)) {
      TellFrames(bytes, completion.byte_len, /*arrived=*/true, completion.qp_num);
    }
  }

  void TellFrames(const char* bytes, size_t size, bool arrived, uint32_t qpn) {
    FrameParser parser(bytes, size);
    bool any = false;
    while (parser.Next()) {
      any = true;
      watcher_(EventOf(parser.frame(), arrived), *this, qpn);
    }
    if (!any) watcher_(CallEvent::kOther, *this, qpn);
  }

  static CallEvent EventOf(const FrameHeader& frame, bool arrived) {
    switch (frame.kind) {
      case FrameKind::kRequest:
        return arrived ? CallEvent::kRequestArrived : CallEvent::kRequestPosted;
      case FrameKind::kResponse:
        return arrived ? CallEvent::kResponseArrived : CallEvent::kResponsePosted;
      case FrameKind::kLandingNeeded:
        return arrived ? CallEvent::kLandingNeededArrived : CallEvent::kLandingNeededPosted;
      case FrameKind::kLanding:
        return arrived ? CallEvent::kLandingArrived : CallEvent::kLandingPosted;
      case FrameKind::kStreamMessage:
        return arrived ? CallEvent::kMessageArrived : CallEvent::kMessagePosted;
      case FrameKind::kStreamWindow:
        return arrived ? CallEvent::kWindowArrived : CallEvent::kWindowPosted;
      case FrameKind::kStreamEnd:
        return arrived ? CallEvent::kEndArrived : CallEvent::kEndPosted;
      default:
        return CallEvent::kOther;
    }
  }

  void NoteReceives(const void* queue, const ibv_recv_wr* wr) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; wr != nullptr; wr = wr->next) receives_[{queue, wr->wr_id}] = wr->sg_list[0].addr;
  }
  // Returns the bytes of a completed receive; nullptr if its queue pair is gone.
  const char* BytesOf(const ibv_wc& completion) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto qp = qps_.find(completion.qp_num);
    if (qp == qps_.end()) return nullptr;
    const void* const queue = qp->second->srq != nullptr ? static_cast<void*>(qp->second->srq)
                                                         : static_cast<void*>(qp->second);
    return reinterpret_cast<const char*>(receives_.at({queue, completion.wr_id}));
  }

  inline static std::mutex all_mutex_;  // guards `all_`
  inline static std::map<ibv_context*, WatchedDevice*> all_;
  const Watcher watcher_;
  const ibv_context_ops real_;
  std::mutex mutex_;  // guards what follows
  std::map<uint32_t, ibv_qp*> qps_;
  std::map<std::pair<const void*, uint64_t>, uint64_t> receives_;  // queue and wr_id: address
};

// For TestDevice::open: opens the device of that name, and watches it.
inline DeviceKeeper::Open OpenerOfWatched(WatchedDevice::Watcher watcher,
                                          const std::string& name = "auto") {
  return [watcher = std::move(watcher), name]() -> absl::StatusOr<std::unique_ptr<Device>> {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(name));
    return std::make_unique<WatchedDevice>(std::move(device), watcher);
  };
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_WATCHED_DEVICE_H_
