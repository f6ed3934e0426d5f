// WrChain: the work requests that one flush has made ready, of whatever kind: they leave with one
// doorbell, in this order.
//
// Refers to the requests, which their makers do not touch until Post(). Lives on the stack of a
// flush.

#ifndef VERBENA_TRANSPORT_LINK_WR_CHAIN_H_
#define VERBENA_TRANSPORT_LINK_WR_CHAIN_H_

#include <infiniband/verbs.h>

#include <utility>

namespace verbena::internal {

class WrChain {
 public:
  // Appends the linked WRs from `first` to `last`.
  void Add(ibv_send_wr* first, ibv_send_wr* last) {
    (last_ == nullptr ? first_ : last_->next) = first;
    last_ = last;
  }
  bool empty() const { return first_ == nullptr; }

  // Posts the chain, which must not be empty(), and empties it. Returns the errno of ibv_post_send,
  // or 0. After an error nobody knows how many WRs were taken, since some devices (rxe 6.1) leave
  // `bad_wr` as it was.
  int Post(ibv_qp* qp) {
    last_ = nullptr;
    ibv_send_wr* ignored = nullptr;
    return ibv_post_send(qp, std::exchange(first_, nullptr), &ignored);
  }

 private:
  ibv_send_wr* first_ = nullptr;
  ibv_send_wr* last_ = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_WR_CHAIN_H_
