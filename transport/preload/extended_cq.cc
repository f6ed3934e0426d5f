// ibv_cq_ex: completions read one by one, field by field.
//
// Each is polled when the program asks for it: so nothing waits where arming the CQ would not see
// it, and ibv_poll_cq may be used on the same CQ.

#include <infiniband/verbs.h>

#include <cerrno>

#include "verbena/transport/preload/calls.h"

namespace verbena::internal::preload {
namespace {

VisibleCq& From(ibv_cq_ex* cq) { return *static_cast<VisibleCq*>(cq); }

int NextPoll(ibv_cq_ex* handle) {
  VisibleCq& cq = From(handle);
  const int polled = cq.inner->context->ops.poll_cq(cq.inner, 1, &cq.current);
  if (polled == 0) return ENOENT;
  if (polled < 0) return EIO;
  cq.status = cq.current.status;
  cq.wr_id = cq.current.wr_id;
  return 0;
}

int StartPoll(ibv_cq_ex* handle, ibv_poll_cq_attr* attributes) {
  if (attributes != nullptr && attributes->comp_mask != 0) return EINVAL;
  VisibleCq& cq = From(handle);
  cq.polling.lock();
  const int error = NextPoll(handle);
  // The program then calls no EndPoll().
  if (error != 0) cq.polling.unlock();
  return error;
}

void EndPoll(ibv_cq_ex* handle) { From(handle).polling.unlock(); }

}  // namespace

void FillExtendedCq(VisibleCq& cq) {
  cq.start_poll = StartPoll;
  cq.next_poll = NextPoll;
  cq.end_poll = EndPoll;
  cq.read_opcode = [](ibv_cq_ex* handle) { return From(handle).current.opcode; };
  cq.read_vendor_err = [](ibv_cq_ex* handle) { return From(handle).current.vendor_err; };
  cq.read_byte_len = [](ibv_cq_ex* handle) { return From(handle).current.byte_len; };
  // Shares its place with the key that a peer's SEND_WITH_INV invalidated.
  cq.read_imm_data = [](ibv_cq_ex* handle) { return From(handle).current.imm_data; };
  cq.read_qp_num = [](ibv_cq_ex* handle) { return From(handle).current.qp_num; };
  cq.read_src_qp = [](ibv_cq_ex* handle) { return From(handle).current.src_qp; };
  cq.read_wc_flags = [](ibv_cq_ex* handle) { return From(handle).current.wc_flags; };
  cq.read_slid = [](ibv_cq_ex* handle) { return uint32_t{From(handle).current.slid}; };
  cq.read_sl = [](ibv_cq_ex* handle) { return From(handle).current.sl; };
  cq.read_dlid_path_bits = [](ibv_cq_ex* handle) { return From(handle).current.dlid_path_bits; };
  // Only asked for by programs whose CQ was refused.
  cq.read_completion_ts = [](ibv_cq_ex*) { return uint64_t{0}; };
  cq.read_completion_wallclock_ns = [](ibv_cq_ex*) { return uint64_t{0}; };
  cq.read_cvlan = [](ibv_cq_ex*) { return uint16_t{0}; };
  cq.read_flow_tag = [](ibv_cq_ex*) { return uint32_t{0}; };
  cq.read_tm_info = [](ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; };
}

}  // namespace verbena::internal::preload
