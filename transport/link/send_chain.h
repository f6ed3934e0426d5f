// SendChain: the WRs of one flush's SENDs.
//
// The WRs are linked to each other and to their elements once, so that a flush fills in only what
// differs from SEND to SEND. Owned by an Endpoint and shared by its links, of which only one
// flushes at a time.

#ifndef VERBENA_TRANSPORT_LINK_SEND_CHAIN_H_
#define VERBENA_TRANSPORT_LINK_SEND_CHAIN_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "verbena/transport/link/wr_chain.h"

namespace verbena::internal {

class SendChain {
 public:
  // `depth` SENDs at most, of one element each, out of memory with `lkey`.
  SendChain(uint32_t depth, uint32_t lkey) : requests_(depth), elements_(depth) {
    for (uint32_t i = 0; i < depth; ++i) {
      elements_[i].lkey = lkey;
      requests_[i].next = i + 1 < depth ? &requests_[i + 1] : nullptr;
      requests_[i].sg_list = &elements_[i];
      requests_[i].num_sge = 1;
    }
  }

  // `invalidated` is a key of the peer's that the SEND ends; 0 for none.
  void Set(size_t i, uint64_t wr_id, const char* data, uint32_t bytes, unsigned send_flags,
           uint32_t invalidated) {
    elements_[i].addr = reinterpret_cast<uintptr_t>(data);
    elements_[i].length = bytes;
    requests_[i].wr_id = wr_id;
    requests_[i].send_flags = send_flags;
    requests_[i].opcode = invalidated != 0 ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND;
    requests_[i].invalidate_rkey = invalidated;
  }

  // Posts the first `count`, behind the WRs in `ready`. Returns what WrChain::Post() returns.
  int Post(ibv_qp* qp, size_t count, WrChain& ready) {
    ibv_send_wr& last = requests_[count - 1];
    ibv_send_wr* const rest = std::exchange(last.next, nullptr);
    ready.Add(requests_.data(), &last);
    const int error = ready.Post(qp);
    last.next = rest;
    return error;
  }

 private:
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> elements_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SEND_CHAIN_H_
