// Doorbell: how many threads and processes wake one engine for a CQ, with one system call for many
// messages.
//
// The doorbell lies in memory that all of them map. A thread that has published something rings.
// The engine, whenever it is awake, takes a doorbell that is rung, and then looks at everything
// that was published. It counts its takings. A thread that has woken it says during which taking,
// which spares the others the system call. Only a wake-up that was sent spares others theirs: a
// process that is stopped before it sends its own holds up nobody.
//
// No wake-up is lost, because Ring reads `takings` before it sets `rung`, and Take clears `rung`
// before it counts:
// - A thread that says that it woke the engine during taking t has set `rung` after taking t
//   cleared it. So the engine finds it set when it wakes, and takes it.
// - A thread that relies on that wake-up has published before taking t + 1 was counted. So the
//   engine finds what it published after that taking.

#ifndef VERBENA_TRANSPORT_SOFT_DOORBELL_H_
#define VERBENA_TRANSPORT_SOFT_DOORBELL_H_

#include <atomic>
#include <cstdint>

namespace verbena::internal::soft {

// Zero-filled memory is a doorbell to be taken once before it is used.
struct Doorbell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> takings;
  std::atomic<uint32_t> woken;

  // Any thread of any process, after it has published something. Calls wake(), which writes to the
  // engine's eventfd, unless somebody else has.
  template <typename Wake>
  void Ring(Wake wake) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t taking = takings.load(std::memory_order_seq_cst);
    rung.exchange(1, std::memory_order_seq_cst);
    if (woken.load(std::memory_order_seq_cst) == taking) return;
    wake();
    woken.store(taking, std::memory_order_seq_cst);
  }

  // The engine, after it has read its eventfd.
  bool IsRung() const { return rung.load(std::memory_order_relaxed) != 0; }
  // The engine, before it looks for what was published.
  void Take() {
    rung.exchange(0, std::memory_order_seq_cst);
    takings.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_DOORBELL_H_
