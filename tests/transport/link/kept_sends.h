// KeptSends: holds back the work requests of one queue pair until the test posts them.
//
// Meanwhile the sender sees a peer that takes nothing, and the peer sees a sender that is silent.
// A KeptSends replaces post_send in a device's context, so at most one exists at a time. The
// context must outlive it. No thread may use a queue pair of the context while a KeptSends is made
// or destroyed.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_
#define VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace verbena {

class KeptSends {
 public:
  explicit KeptSends(ibv_context& context);
  KeptSends(const KeptSends&) = delete;
  KeptSends& operator=(const KeptSends&) = delete;
  ~KeptSends();

  // Keeps the work requests of queue pair `qpn` from now on; 0: of none.
  void KeepThoseOf(uint32_t qpn) { qpn_ = qpn; }
  size_t size() const { return kept_.size(); }
  // The opcode of the kept work request `index`, counted from the oldest.
  ibv_wr_opcode opcode(size_t index) const { return kept_[index].wr.opcode; }

  // Posts the `count` oldest of the kept work requests.
  void Post(size_t count);

 private:
  struct Kept {
    ibv_send_wr wr;
    std::vector<ibv_sge> elements;
    std::deque<std::string> copied;  // the bytes of an inline WR: its buffers may be reused
  };

  static int PostOrKeep(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused);

  inline static KeptSends* current = nullptr;

  ibv_context& context_;
  int (*const real_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  uint32_t qpn_ = 0;
  ibv_qp* qp_ = nullptr;
  std::deque<Kept> kept_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_KEPT_SENDS_H_
