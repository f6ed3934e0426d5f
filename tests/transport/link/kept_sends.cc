#include "tests/transport/link/kept_sends.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <string>
#include <utility>

namespace verbena {

KeptSends::KeptSends(ibv_context& context)
    : context_(context), real_(std::exchange(context.ops.post_send, PostOrKeep)) {
  current = this;
}

KeptSends::~KeptSends() {
  context_.ops.post_send = real_;
  current = nullptr;
}

void KeptSends::Post(size_t count) {
  for (; count > 0 && !kept_.empty(); --count) {
    Kept next = std::move(kept_.front());
    kept_.pop_front();
    next.wr.next = nullptr;
    next.wr.sg_list = next.elements.data();
    ibv_send_wr* refused = nullptr;
    ASSERT_EQ(real_(qp_, &next.wr, &refused), 0);
  }
}

int KeptSends::PostOrKeep(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
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

}  // namespace verbena
