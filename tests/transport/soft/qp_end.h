// QpEnd: one side of a connection in a test: a QP with its PD, CQs, buffer and, if wanted, SRQ.
//
// Buffer layout: the lower half is sent from, the upper half is received into. Objects are
// destroyed in the order that verbs demands.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_QP_END_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_QP_END_H_

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {

struct QpEndOptions {
  int cqe = 256;
  uint32_t send_wr = 64;
  uint32_t receive_wr = 64;
  uint32_t max_sge = 4;
  uint32_t max_inline = 256;
  bool shared_receives = false;
  bool separate_cqs = false;
  bool signal_all = false;
  bool with_channel = false;
  size_t bytes = 1 << 16;
  bool shared_arena = false;  // the buffer is memory that peers can map
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 1;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
               IBV_ACCESS_REMOTE_ATOMIC;
};

class QpEnd {
 public:
  QpEnd(Device& device, const QpEndOptions& options);

  // Another QP on the same CQs.
  QpHandle AddQp();

  ibv_gid gid() { return device_.QueryGid(1, 0).value(); }
  ibv_qp* qp() { return qp_.get(); }
  QpHandle& qp_handle() { return qp_; }
  ibv_cq* cq() { return cq_.get(); }
  ibv_cq* send_cq() { return send_cq_ ? send_cq_.get() : cq_.get(); }
  ibv_srq* srq() { return srq_.get(); }
  ibv_pd* pd() { return pd_.get(); }
  ibv_mr* mr() { return mr_.get(); }
  MrHandle& mr_handle() { return mr_; }
  CqHandle& cq_handle() { return cq_; }
  ibv_comp_channel* channel() { return channel_.get(); }
  Device& device() { return device_; }
  std::byte* send_buffer() { return memory_.get(); }
  std::byte* receive_buffer() { return memory_.get() + options_.bytes / 2; }
  const QpEndOptions& options() const { return options_; }
  // For the next connection.
  void set_min_rnr_timer(uint8_t code) { options_.min_rnr_timer = code; }

  absl::Status ToInit(ibv_qp* qp);
  uint16_t lid() { return device_.QueryPort(1).value().lid; }
  absl::Status ToRtr(ibv_qp* qp, const ibv_gid& gid, uint32_t qpn, uint16_t lid = 0);
  absl::Status ToRts(ibv_qp* qp);
  void ToState(ibv_qp_state state);
  ibv_sge ReceiveSge(size_t offset, uint32_t bytes);
  ibv_sge SendSge(size_t offset, uint32_t bytes);
  int PostReceive(uint64_t wr_id, ibv_sge sge);
  int PostSend(uint64_t wr_id, ibv_sge sge, unsigned flags = IBV_SEND_SIGNALED,
               ibv_qp* qp = nullptr);

  // Sends `text` from the start of the send buffer.
  int SendText(uint64_t wr_id, const std::string& text, unsigned flags = IBV_SEND_SIGNALED);
  std::string ReceivedText(size_t offset, size_t bytes);
  int PostOneSided(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge sge, uint64_t address,
                   uint32_t rkey, unsigned flags = IBV_SEND_SIGNALED);

 private:
  static std::shared_ptr<std::byte> Allocate(Device& device, const QpEndOptions& options);

  Device& device_;
  QpEndOptions options_;
  std::shared_ptr<std::byte> memory_;
  PdHandle pd_;
  CompChannelHandle channel_;
  CqHandle cq_;
  CqHandle send_cq_;
  MrHandle mr_;
  SrqHandle srq_;
  QpHandle qp_;
};

void ConnectQps(QpEnd& a, ibv_qp* qp_a, QpEnd& b, ibv_qp* qp_b);

inline void Connect(QpEnd& a, QpEnd& b) { ConnectQps(a, a.qp(), b, b.qp()); }

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_QP_END_H_
