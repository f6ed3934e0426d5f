#include "tests/conformance/post.h"

#include <arpa/inet.h>

#include <vector>

namespace verbena::internal::conformance {
namespace {

ibv_send_wr VerbsWr(SendWr& wr) {
  ibv_send_wr out{};
  out.wr_id = wr.wr_id;
  out.sg_list = wr.sges.data();
  out.num_sge = static_cast<int>(wr.sge_count);
  out.opcode = wr.opcode;
  out.send_flags = wr.flags;
  if (wr.opcode == IBV_WR_LOCAL_INV || wr.opcode == IBV_WR_SEND_WITH_INV) {
    out.invalidate_rkey = wr.rkey;
    return out;
  }
  if (wr.opcode == IBV_WR_BIND_MW) {
    out.bind_mw.mw = wr.bind.mw;
    out.bind_mw.rkey = wr.rkey;
    out.bind_mw.bind_info = {.mr = wr.bind.mr,
                             .addr = wr.bind.address,
                             .length = wr.bind.bytes,
                             .mw_access_flags = wr.bind.access};
    return out;
  }
  out.imm_data = htonl(wr.immediate);
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    out.wr.atomic.remote_addr = wr.remote_address;
    out.wr.atomic.rkey = wr.rkey;
    out.wr.atomic.compare_add = wr.compare_add;
    out.wr.atomic.swap = wr.swap;
  } else {
    out.wr.rdma.remote_addr = wr.remote_address;
    out.wr.rdma.rkey = wr.rkey;
  }
  return out;
}

ibv_recv_wr VerbsWr(RecvWr& wr) {
  ibv_recv_wr out{};
  out.wr_id = wr.wr_id;
  out.sg_list = wr.sges.data();
  out.num_sge = static_cast<int>(wr.sge_count);
  return out;
}

template <typename VerbsType, typename Wr, typename PostFunction>
PostResult PostChain(std::span<Wr> wrs, PostFunction post) {
  std::vector<VerbsType> chain;
  chain.reserve(wrs.size());
  for (Wr& wr : wrs) chain.push_back(VerbsWr(wr));
  for (size_t i = 0; i + 1 < chain.size(); ++i) chain[i].next = &chain[i + 1];
  VerbsType* bad = nullptr;
  const int error = post(chain.data(), &bad);
  if (error == 0) return {.error = 0, .accepted = static_cast<uint32_t>(chain.size())};
  // A bad_wr outside the chain is reported as a number that no case expects.
  const auto accepted = bad != nullptr ? bad - chain.data() : ptrdiff_t{-1};
  return {.error = error, .accepted = static_cast<uint32_t>(accepted)};
}

}  // namespace

PostResult PostSendChain(ibv_qp* qp, std::span<SendWr> wrs) {
  return PostChain<ibv_send_wr>(
      wrs, [qp](ibv_send_wr* chain, ibv_send_wr** bad) { return ibv_post_send(qp, chain, bad); });
}

PostResult PostReceiveChain(ibv_qp* qp, std::span<RecvWr> wrs) {
  return PostChain<ibv_recv_wr>(
      wrs, [qp](ibv_recv_wr* chain, ibv_recv_wr** bad) { return ibv_post_recv(qp, chain, bad); });
}

PostResult PostSrqReceiveChain(ibv_srq* srq, std::span<RecvWr> wrs) {
  return PostChain<ibv_recv_wr>(wrs, [srq](ibv_recv_wr* chain, ibv_recv_wr** bad) {
    return ibv_post_srq_recv(srq, chain, bad);
  });
}

}  // namespace verbena::internal::conformance
