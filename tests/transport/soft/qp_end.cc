#include "tests/transport/soft/qp_end.h"

#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace verbena::internal::soft {

QpEnd::QpEnd(Device& device, const QpEndOptions& options)
    : device_(device), options_(options), memory_(Allocate(device, options)) {
  pd_ = PdHandle(device, device.AllocPd().value());
  if (options.with_channel) {
    channel_ = CompChannelHandle(device, device.CreateCompChannel().value());
  }
  cq_ = CqHandle(device, device.CreateCq(options.cqe, this, channel_.get()).value());
  if (options.separate_cqs) {
    send_cq_ = CqHandle(device, device.CreateCq(options.cqe, this, nullptr).value());
  }
  mr_ = MrHandle(device,
                 device.RegMr(pd_.get(), memory_.get(), options.bytes, options.access).value());
  if (options.shared_receives) {
    ibv_srq_init_attr srq{};
    srq.attr = {.max_wr = options.receive_wr, .max_sge = options.max_sge, .srq_limit = 0};
    srq_ = SrqHandle(device, device.CreateSrq(pd_.get(), srq).value());
  }
  qp_ = AddQp();
}

QpHandle QpEnd::AddQp() {
  ibv_qp_init_attr init{};
  init.send_cq = send_cq();
  init.recv_cq = cq_.get();
  init.srq = srq_.get();
  init.cap = {.max_send_wr = options_.send_wr,
              .max_recv_wr = options_.receive_wr,
              .max_send_sge = options_.max_sge,
              .max_recv_sge = options_.max_sge,
              .max_inline_data = options_.max_inline};
  init.qp_type = IBV_QPT_RC;
  init.sq_sig_all = options_.signal_all ? 1 : 0;
  return QpHandle(device_, device_.CreateQp(pd_.get(), init).value());
}

absl::Status QpEnd::ToInit(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(options_.access);
  return device_.ModifyQp(qp, attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

absl::Status QpEnd::ToRtr(ibv_qp* qp, const ibv_gid& gid, uint32_t qpn, uint16_t lid) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_4096;
  attr.dest_qp_num = qpn;
  attr.max_dest_rd_atomic = 16;
  attr.min_rnr_timer = options_.min_rnr_timer;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.dlid = lid;
  return device_.ModifyQp(qp, attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

absl::Status QpEnd::ToRts(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  // 34 s in all: the other side may be another process, which stands still before it is in RTR.
  attr.timeout = 20;
  attr.retry_cnt = 7;
  attr.rnr_retry = options_.rnr_retry;
  attr.max_rd_atomic = 16;
  return device_.ModifyQp(qp, attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void QpEnd::ToState(ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  ASSERT_TRUE(device_.ModifyQp(qp(), attr, IBV_QP_STATE).ok());
}

ibv_sge QpEnd::ReceiveSge(size_t offset, uint32_t bytes) {
  return {.addr = reinterpret_cast<uint64_t>(receive_buffer() + offset),
          .length = bytes,
          .lkey = mr_->lkey};
}

ibv_sge QpEnd::SendSge(size_t offset, uint32_t bytes) {
  return {.addr = reinterpret_cast<uint64_t>(send_buffer() + offset),
          .length = bytes,
          .lkey = mr_->lkey};
}

int QpEnd::PostReceive(uint64_t wr_id, ibv_sge sge) {
  ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  return srq_ ? ibv_post_srq_recv(srq_.get(), &wr, &bad) : ibv_post_recv(qp(), &wr, &bad);
}

int QpEnd::PostSend(uint64_t wr_id, ibv_sge sge, unsigned flags, ibv_qp* qp) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = flags;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp != nullptr ? qp : this->qp(), &wr, &bad);
}

int QpEnd::SendText(uint64_t wr_id, const std::string& text, unsigned flags) {
  std::memcpy(send_buffer(), text.data(), text.size());
  return PostSend(wr_id, SendSge(0, static_cast<uint32_t>(text.size())), flags);
}

std::string QpEnd::ReceivedText(size_t offset, size_t bytes) {
  return std::string(reinterpret_cast<const char*>(receive_buffer() + offset), bytes);
}

int QpEnd::PostOneSided(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge sge, uint64_t address,
                        uint32_t rkey, unsigned flags) {
  ibv_send_wr wr{};
  wr.wr_id = wr_id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp(), &wr, &bad);
}

std::shared_ptr<std::byte> QpEnd::Allocate(Device& device, const QpEndOptions& options) {
  if (!options.shared_arena) {
    return std::shared_ptr<std::byte>(new std::byte[options.bytes](),
                                      [](std::byte* memory) { delete[] memory; });
  }
  auto& soft = dynamic_cast<SoftDevice&>(device);
  return std::shared_ptr<std::byte>(
      soft.AllocateShared(options.bytes).value(),
      [&soft](std::byte* memory) { EXPECT_TRUE(soft.FreeShared(memory).ok()); });
}

void ConnectQps(QpEnd& a, ibv_qp* qp_a, QpEnd& b, ibv_qp* qp_b) {
  ASSERT_TRUE(a.ToInit(qp_a).ok());
  ASSERT_TRUE(b.ToInit(qp_b).ok());
  ASSERT_TRUE(a.ToRtr(qp_a, b.gid(), qp_b->qp_num, b.lid()).ok());
  ASSERT_TRUE(b.ToRtr(qp_b, a.gid(), qp_a->qp_num, a.lid()).ok());
  ASSERT_TRUE(a.ToRts(qp_a).ok());
  ASSERT_TRUE(b.ToRts(qp_b).ok());
}

}  // namespace verbena::internal::soft
