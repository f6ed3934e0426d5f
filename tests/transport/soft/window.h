// Window: a memory window on an endpoint's receive buffer, and the WRs that bind and end it.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_WINDOW_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_WINDOW_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "tests/transport/soft/qp_end.h"

namespace verbena::internal::soft {

// The memory access of endpoints that bind windows.
inline constexpr int kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;

inline int PostWindow(ibv_qp* qp, ibv_wr_opcode opcode, uint64_t wr_id, uint32_t rkey,
                      const ibv_mw_bind_info& bind = {}, ibv_mw* mw = nullptr,
                      unsigned flags = IBV_SEND_SIGNALED) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.opcode = opcode;
  wr.send_flags = flags;
  if (opcode == IBV_WR_BIND_MW) {
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = bind;
  } else {
    wr.invalidate_rkey = rkey;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

inline int PostInvalidate(ibv_qp* qp, uint64_t wr_id, uint32_t rkey,
                          unsigned flags = IBV_SEND_SIGNALED) {
  return PostWindow(qp, IBV_WR_LOCAL_INV, wr_id, rkey, {}, nullptr, flags);
}

inline int PostSendInvalidate(QpEnd& endpoint, uint64_t wr_id, uint32_t bytes, uint32_t rkey) {
  ibv_sge sge = endpoint.SendSge(0, bytes);
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(endpoint.qp(), &wr, &bad);
}

// `owner` must outlive the window.
class Window {
 public:
  explicit Window(QpEnd& owner)
      : owner_(owner), mw_(owner.device(), owner.device().AllocMw(owner.pd()).value()) {}

  ibv_mw* get() { return mw_.get(); }
  uint32_t rkey() const { return mw_->rkey; }
  void Reset() { mw_.Reset(); }
  // Forgets the window, which the caller has deallocated.
  void Release() { mw_.Release(); }

  // Binds the start of the owner's receive buffer, under the window's next key.
  int PostBind(uint64_t wr_id, uint32_t bytes, ibv_qp* qp = nullptr,
               unsigned flags = IBV_SEND_SIGNALED) {
    mw_->rkey = ibv_inc_rkey(mw_->rkey);
    return PostWindow(qp != nullptr ? qp : owner_.qp(), IBV_WR_BIND_MW, wr_id, mw_->rkey,
                      {.mr = owner_.mr(),
                       .addr = reinterpret_cast<uint64_t>(owner_.receive_buffer()),
                       .length = bytes,
                       .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
                      mw_.get(), flags);
  }

 private:
  QpEnd& owner_;
  MwHandle mw_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_WINDOW_H_
