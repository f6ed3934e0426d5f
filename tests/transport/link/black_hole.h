// BlackHole: a path that swallows SENDs, or those above a size, in both directions.
//
// A swallowed SEND never completes, as on a device that sends lost packets again for ever. A
// BlackHole replaces post_send in a device's context, so at most one exists at a time. The context
// must outlive it. No thread may use a queue pair of the context while a BlackHole is made or
// destroyed. Its functions may be called on any thread.
//
//   BlackHole hole(*device->context());
//   hole.SwallowOver(1000);

#ifndef VERBENA_TESTS_TRANSPORT_LINK_BLACK_HOLE_H_
#define VERBENA_TESTS_TRANSPORT_LINK_BLACK_HOLE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace verbena {

class BlackHole {
 public:
  explicit BlackHole(ibv_context& context)
      : context_(context), real_(std::exchange(context.ops.post_send, PostOrSwallow)) {
    current = this;
  }
  BlackHole(const BlackHole&) = delete;
  BlackHole& operator=(const BlackHole&) = delete;
  ~BlackHole() {
    context_.ops.post_send = real_;
    current = nullptr;
  }

  // Swallows each SEND of more than `bytes` from now on.
  void SwallowOver(size_t bytes) { most_ = bytes; }
  // Lets all pass, as at first.
  void Close() { most_ = std::numeric_limits<size_t>::max(); }
  uint64_t swallowed() const { return swallowed_; }

 private:
  static size_t BytesOf(const ibv_send_wr& wr) {
    size_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    return bytes;
  }

  static int PostOrSwallow(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
    BlackHole& self = *current;
    for (ibv_send_wr* wr = wrs; wr != nullptr; wr = wr->next) {
      const bool is_send = wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_INV;
      if (is_send && BytesOf(*wr) > self.most_) {
        ++self.swallowed_;
        continue;
      }
      ibv_send_wr* const next = std::exchange(wr->next, nullptr);
      const int error = self.real_(qp, wr, refused);
      wr->next = next;
      if (error != 0) return error;
    }
    return 0;
  }

  inline static BlackHole* current = nullptr;

  ibv_context& context_;
  int (*const real_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  std::atomic<size_t> most_ = std::numeric_limits<size_t>::max();
  std::atomic<uint64_t> swallowed_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_BLACK_HOLE_H_
