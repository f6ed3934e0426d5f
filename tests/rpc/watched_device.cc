#include "tests/rpc/watched_device.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace {

CallEvent EventOf(const FrameHeader& frame, bool arrived) {
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

}  // namespace

WatchedDevice::WatchedDevice(std::unique_ptr<Device> device, Watcher watcher)
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

WatchedDevice::~WatchedDevice() {
  context()->ops = real_;
  std::lock_guard<std::mutex> lock(all_mutex_);
  all_.erase(context());
}

bool WatchedDevice::Break(uint32_t qpn) {
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

absl::StatusOr<ibv_qp*> WatchedDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  absl::StatusOr<ibv_qp*> made = DelegatingDevice::CreateQp(pd, attributes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (made.ok()) qps_[(*made)->qp_num] = *made;
  return made;
}

absl::Status WatchedDevice::DestroyQp(ibv_qp* qp) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    qps_.erase(qp->qp_num);
  }
  return DelegatingDevice::DestroyQp(qp);
}

bool WatchedDevice::TakeNewestReceivesFirst(ibv_srq* srq) {
  return owned_->TakeNewestReceivesFirst(srq);
}

WatchedDevice& WatchedDevice::Of(ibv_context* context) {
  std::lock_guard<std::mutex> lock(all_mutex_);
  return *all_.at(context);
}

int WatchedDevice::PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    TellPosted(qp->qp_num, *wr);
    ibv_send_wr* const next = std::exchange(wr->next, nullptr);
    const int error = real_.post_send(qp, wr, bad);
    wr->next = next;
    if (error != 0) return error;
  }
  return 0;
}

void WatchedDevice::TellPosted(uint32_t qpn, const ibv_send_wr& wr) {
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

int WatchedDevice::Poll(ibv_cq* cq, int room, ibv_wc* out) {
  const int count = real_.poll_cq(cq, room, out);
  for (int i = 0; i < count; ++i) {
    if (out[i].status == IBV_WC_SUCCESS) TellPolled(out[i]);
  }
  return count;
}

void WatchedDevice::TellPolled(const ibv_wc& completion) {
  if ((completion.opcode & IBV_WC_RECV) == 0) {
    const bool is_one_sided =
        completion.opcode == IBV_WC_RDMA_WRITE || completion.opcode == IBV_WC_RDMA_READ;
    watcher_(is_one_sided ? CallEvent::kOneSidedDone : CallEvent::kOther, *this, completion.qp_num);
  } else if (const char* bytes = BytesOf(completion)) {
    TellFrames(bytes, completion.byte_len, /*arrived=*/true, completion.qp_num);
  }
}

void WatchedDevice::TellFrames(const char* bytes, size_t size, bool arrived, uint32_t qpn) {
  FrameParser parser(bytes, size);
  bool any = false;
  while (parser.Next()) {
    any = true;
    watcher_(EventOf(parser.frame(), arrived), *this, qpn);
  }
  if (!any) watcher_(CallEvent::kOther, *this, qpn);
}

void WatchedDevice::NoteReceives(const void* queue, const ibv_recv_wr* wr) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (; wr != nullptr; wr = wr->next) receives_[{queue, wr->wr_id}] = wr->sg_list[0].addr;
}

const char* WatchedDevice::BytesOf(const ibv_wc& completion) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto qp = qps_.find(completion.qp_num);
  if (qp == qps_.end()) return nullptr;
  const void* const queue = qp->second->srq != nullptr ? static_cast<void*>(qp->second->srq)
                                                       : static_cast<void*>(qp->second);
  return reinterpret_cast<const char*>(receives_.at({queue, completion.wr_id}));
}

std::function<absl::StatusOr<std::unique_ptr<Device>>()> OpenerOfWatched(
    WatchedDevice::Watcher watcher, const std::string& name) {
  return [watcher = std::move(watcher), name]() -> absl::StatusOr<std::unique_ptr<Device>> {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(name));
    return std::make_unique<WatchedDevice>(std::move(device), watcher);
  };
}

}  // namespace verbena::internal
