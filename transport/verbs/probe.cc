#include "verbena/transport/verbs/probe.h"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "verbena/transport/device/handles.h"
#include "verbena/transport/verbs/siw.h"

namespace verbena::internal {
namespace {

// How often a probe looks for what a device may never do. It counts looks, not time: a thread that
// stands still for 100 ms would miss a time limit, and find an able device unable.
constexpr int kLooks = 100;
constexpr int kLookMilliseconds = 1;

// The PD and CQ that every probe needs.
struct TestBed {
  PdHandle pd;
  CqHandle cq;
};

std::optional<TestBed> MakeBench(Device& device) {
  TestBed bench;
  absl::StatusOr<ibv_pd*> pd = device.AllocPd();
  if (!pd.ok()) return std::nullopt;
  bench.pd = PdHandle(device, *pd);
  absl::StatusOr<ibv_cq*> cq = device.CreateCq(16, nullptr, nullptr);
  if (!cq.ok()) return std::nullopt;
  bench.cq = CqHandle(device, *cq);
  return bench;
}

ibv_qp_init_attr RcQp(const TestBed& bench, ibv_srq* srq, uint32_t send_sges,
                      uint32_t inline_bytes) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = bench.cq.get();
  attributes.recv_cq = bench.cq.get();
  attributes.srq = srq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = 4;
  attributes.cap.max_recv_wr = srq == nullptr ? 4 : 0;
  attributes.cap.max_send_sge = send_sges;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = inline_bytes;
  return attributes;
}

// Providers refuse what they cannot inline and round up what they can, so the answer is what the
// largest accepted QP says that it got.
uint32_t ProbeMaxInline(Device& device, const TestBed& bench) {
  const auto send_sges = static_cast<uint32_t>(std::clamp(device.attributes().max_sge, 1, 4));
  for (uint32_t bytes : {2048, 1024, 512, 256, 128, 64, 32}) {
    ibv_qp_init_attr attributes = RcQp(bench, nullptr, send_sges, bytes);
    absl::StatusOr<ibv_qp*> qp = device.CreateQp(bench.pd.get(), attributes);
    if (!qp.ok()) continue;
    QpHandle owner(device, *qp);
    return std::max(bytes, attributes.cap.max_inline_data);
  }
  return 0;
}

SrqHandle MakeSrq(Device& device, const TestBed& bench) {
  if (device.attributes().max_srq == 0) return {};
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = 4;
  attributes.attr.max_sge = 1;
  absl::StatusOr<ibv_srq*> srq = device.CreateSrq(bench.pd.get(), attributes);
  return srq.ok() ? SrqHandle(device, *srq) : SrqHandle();
}

bool ProbeSrqLimit(Device& device, ibv_srq* srq) {
  ibv_srq_attr attributes{};
  attributes.srq_limit = 1;
  if (!device.ModifySrq(srq, attributes, IBV_SRQ_LIMIT).ok()) return false;
  attributes.srq_limit = 0;
  return device.ModifySrq(srq, attributes, IBV_SRQ_LIMIT).ok();
}

// True when the event came within kLooks looks. Others that come meanwhile are acknowledged and
// dropped: nobody else uses the device yet.
bool AwaitLastWqe(Device& device) {
  for (int look = 0; look < kLooks; ++look) {
    pollfd waiting{.fd = device.async_fd(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kLookMilliseconds) <= 0) continue;
    absl::StatusOr<ibv_async_event> event = device.GetAsyncEvent();
    if (!event.ok()) continue;
    const bool found = event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
    device.AckAsyncEvent(*event);
    if (found) return true;
  }
  return false;
}

// A QP in ERR; none when the device has no such transition.
QpHandle MakeQpInError(Device& device, const TestBed& bench, ibv_srq* srq) {
  ibv_qp_init_attr attributes = RcQp(bench, srq, 1, 0);
  absl::StatusOr<ibv_qp*> qp = device.CreateQp(bench.pd.get(), attributes);
  if (!qp.ok()) return {};
  QpHandle owner(device, *qp);
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = 1;
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (!device.ModifyQp(*qp, change, kInit).ok()) return {};
  change.qp_state = IBV_QPS_ERR;
  if (!device.ModifyQp(*qp, change, IBV_QP_STATE).ok()) return {};
  return owner;
}

// True when a SEND of no bytes came back within kLooks looks.
bool ProbeErrorFlush(const TestBed& bench, ibv_qp* qp) {
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (ibv_post_send(qp, &send, &refused) != 0) return false;
  ibv_wc completion{};
  for (int look = 0; look < kLooks; ++look) {
    if (ibv_poll_cq(bench.cq.get(), 1, &completion) != 0) return true;
    poll(nullptr, 0, kLookMilliseconds);
  }
  return false;
}

// Soft-RoCE's, from the kernel's drivers/infiniband/sw/rxe/rxe_param.h.
constexpr uint32_t kRxeVendorId = 0xffffff;

bool HasType2Windows(const ibv_device_attr& attributes) {
  constexpr unsigned kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return attributes.max_mw > 0 && (attributes.device_cap_flags & kType2) != 0;
}

}  // namespace

DeviceCapabilities ProbeCapabilities(Device& device) {
  // iWARP has no immediates, no RNR NAK (a SEND without a receive ends the connection), and its
  // writes complete when TCP has the bytes, before the target has seen the key.
  const bool iwarp = device.context()->device->transport_type == IBV_TRANSPORT_IWARP;
  DeviceCapabilities found;
  found.write_with_immediate = !iwarp;
  found.send_with_immediate = !iwarp;
  found.rnr_nak = !iwarp;
  found.remote_key_checked = !iwarp;
  found.emulated = device.attributes().vendor_id == kRxeVendorId || IsSiw(device);
  found.atomics = device.attributes().atomic_cap != IBV_ATOMIC_NONE;

  std::optional<TestBed> bench = MakeBench(device);
  if (!bench) return found;
  found.max_inline_bytes = ProbeMaxInline(device, *bench);
  if (HasType2Windows(device.attributes())) {
    absl::StatusOr<ibv_mw*> mw = device.AllocMw(bench->pd.get());
    found.memory_windows = mw.ok();
    found.windows_checked = mw.ok() && device.attributes().vendor_id != kRxeVendorId;
    if (mw.ok()) MwHandle(device, *mw).Reset();
  }
  SrqHandle srq = MakeSrq(device, *bench);
  found.srq = static_cast<bool>(srq);
  if (found.srq) {
    found.srq_limit_event = !iwarp && ProbeSrqLimit(device, srq.get());
    const QpHandle qp = MakeQpInError(device, *bench, srq.get());
    found.last_wqe_event = qp && AwaitLastWqe(device);
    found.flushes_in_error = qp && ProbeErrorFlush(*bench, qp.get());
  }
  return found;
}

}  // namespace verbena::internal
