// KeptSends: holds back the work requests of one queue pair until the test posts them.
//
// Meanwhile the sender sees a peer that takes nothing, and the peer sees a sender that is silent.
// A KeptSends replaces post_send in a device's context, so at most one exists at a time. The
// context must outlive it. No thread may use a queue pair of the context while a KeptSends is made
// or destroyed.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_
#define VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace verbena {

class KeptSends {
 public:
  explicit KeptSends(ibv_context& context)
      : context_(context), real_(std::exchange(context.ops.post_send, PostOrKeep)) {
    current = this;
  }
  KeptSends(const KeptSends&) = delete;
  KeptSends& operator=(const KeptSends&) = delete;
  ~KeptSends() {
    context_.ops.post_send = real_;
    current = nullptr;
  }

  // Keeps the work requests of queue pair `qpn` from now on; 0: of none.
  void KeepThoseOf(uint32_t qpn) { qpn_ = qpn; }
  size_t size() const { return kept_.size(); }
  // The opcode of the kept work request `index`, counted from the oldest.
  ibv_wr_opcode opcode(size_t index) const { return kept_[index].wr.opcode; }

  // Posts the `count` oldest of the kept work requests.
  void Post(size_t count) {
    for (; count > 0 && !kept_.empty(); --count) {
      Kept next = std::move(kept_.front());
      kept_.pop_front();
      next.wr.next = nullptr;
      next.wr.sg_list = next.elements.data();
      ibv_send_wr* refused = nullptr;
      ASSERT_EQ(real_(qp_, &next.wr, &refused), 0);
    }
  }

 private:
  struct Kept {
    ibv_send_wr wr;
    std::vector<ibv_sge> elements;
    std::deque<std::string> copied;  // the bytes of an inline WR: its buffers may be reused
  };

  static int PostOrKeep(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
    KeptSends& self = *current;
    if (qp->qp_num != self.qpn_) return self.real_(qp, wrs, refused);
    self.qp_ = qp;
    for (ibv_send_wr* wr = wrs; wr != nullptr; wr = wr->next) {
      Kept& kept = self.kept_.emplace_back(
          Kept{.wr = *wr, .elements = {wr->sg_list, wr->sg_list + wr->num_sge}, .copied = {}});
      if ((wr->send_flags & IBV_SEND_INLINE) == 0) continue;
      for (ibv_sge& element : kept.elements) {
        const auto* bytes = reinterpret_cast<const char*>(element.addr);
        const std::string& copy = kept.copied.emplace_back(bytes, element.length);
        element.addr = reinterpret_cast<uintptr_t>(copy.data());
      }
    }
    return 0;
  }

  inline static KeptSends* current = nullptr;

  ibv_context& context_;
  int (*const real_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  uint32_t qpn_ = 0;
  ibv_qp* qp_ = nullptr;
  std::deque<Kept> kept_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_
