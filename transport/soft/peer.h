// Peer: a device at the other end of a wire, in this process or another, and how to wake it.
//
// DeviceShare is what a device shows of itself: its memory table (peers map it read-only) and one
// CqControl per CQ (peers write the doorbells in it). A Peer is one device's view of another: one
// per GID, shared by the lanes and QPs that lead there, immutable but for `dead`.

#ifndef VERBENA_TRANSPORT_SOFT_PEER_H_
#define VERBENA_TRANSPORT_SOFT_PEER_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "verbena/transport/soft/memory_table.h"

namespace verbena::soft {

inline constexpr uint32_t kMaxCompletionQueues = 1 << 10;

// What peers need to know, and tell, about one CQ.
struct CqControl {
  // kPolled: its owner polls it, so nobody needs waking. kUnpolled: its device's engine is to be
  // woken whenever something is published for it. Written by the owner; whoever publishes passes a
  // full fence before reading it, and the owner passes one between writing it and looking again.
  enum Mode : uint32_t { kPolled = 0, kUnpolled = 1 };
  alignas(128) std::atomic<uint32_t> mode;
  // Set by whoever wakes the engine, cleared by the engine: one wake-up for many messages.
  alignas(128) std::atomic<uint32_t> doorbell;
};

class Peer {
 public:
  // `keep_alive` owns what `controls` and `memory` point at. Takes `doorbell_fd` over; -1 when the
  // peer's engine is stepped by hand.
  Peer(const ibv_gid& gid, CqControl* controls, const MemoryEntry* memory, int doorbell_fd,
       std::shared_ptr<void> keep_alive)
      : gid_(gid),
        controls_(controls),
        memory_(memory),
        doorbell_fd_(doorbell_fd),
        keep_alive_(std::move(keep_alive)) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  const ibv_gid& gid() const { return gid_; }
  CqControl& control(uint32_t cq_index) { return controls_[cq_index]; }
  const MemoryView& memory() const { return memory_; }

  // Wakes the peer's engine for one of its CQs. A syscall, unless it is already on its way.
  void Wake(CqControl& control);

 private:
  ibv_gid gid_;
  CqControl* controls_;
  MemoryView memory_;
  int doorbell_fd_;
  std::shared_ptr<void> keep_alive_;
};

}  // namespace verbena::soft

#endif  // VERBENA_TRANSPORT_SOFT_PEER_H_
