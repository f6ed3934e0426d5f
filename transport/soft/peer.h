// Peers of a soft device: Peer, the doorbell that wakes a peer's engine, and arenas, the memory
// that peers map.
//
// Lanes share a Peer, and the device owns its Arenas. Any thread. A device has at most kMaxArenas -
// 1 arenas at a time.

#ifndef VERBENA_TRANSPORT_SOFT_PEER_H_
#define VERBENA_TRANSPORT_SOFT_PEER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {

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
//
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

inline constexpr uint32_t kMaxCompletionQueues = 1 << 10;
// Shared arenas of one device at a time. Few and large. The number of an arena, modulo kMaxArenas,
// is its place, from 1. No two arenas of a device have the same number, and of two in one place the
// later one has the greater.
inline constexpr uint32_t kMaxArenas = 64;

// A CQ's control block, which its owner and its peers read and write.
struct CqControl {
  // kPolled: its owner polls it, so nobody needs waking. kUnpolled: its device's engine is to be
  // woken whenever something is published for it. Written by the owner; whoever publishes passes a
  // full fence before reading it, and the owner passes one between writing it and looking again.
  enum Mode : uint32_t { kPolled = 0, kUnpolled = 1 };
  alignas(128) std::atomic<uint32_t> mode;
  // Rung by whoever has published something for an unpolled CQ.
  alignas(128) Doorbell doorbell;
  // One bit for each cold in-lane that has something new (in_lanes.h). The summary has one bit for
  // each word with such a bit. Set by peers, taken by the owner.
  static constexpr size_t kActivityWords = 64;
  alignas(128) std::atomic<uint64_t> activity_summary;
  alignas(128) std::atomic<uint64_t> activity[kActivityWords];

  // Has the owner look at cold lane `slot`. Relies on nobody else: a process that set the bit
  // before may have been killed before it came to the summary.
  void SetActive(uint32_t slot) {
    const uint32_t word = slot / 64 % kActivityWords;
    const uint64_t in_summary = uint64_t{1} << word;
    activity[word].fetch_or(uint64_t{1} << slot % 64, std::memory_order_acq_rel);
    // The owner clears the summary before it takes bits. So if it did not take ours, we see here
    // that it has cleared the summary.
    if ((activity_summary.load(std::memory_order_relaxed) & in_summary) != 0) return;
    activity_summary.fetch_or(in_summary, std::memory_order_acq_rel);
  }
};

// The parts of a Peer.
struct PeerParts {
  DeviceAddress address{};
  CqControl* controls = nullptr;
  const DeviceTables* tables = nullptr;  // none behind a TCP wire
  UniqueFd doorbell{};                   // none when the peer's engine is stepped by hand
  std::shared_ptr<const void> keep_alive = nullptr;  // owns what the pointers above point at
  // Whether it is a device of our process, so that all of its memory is ours. `pid` does not say
  // so: the kernel gives 0 for a process that our PID namespace does not show.
  bool in_process = false;
  // The other process. Without a descriptor nobody knows which process the pid stands for by now:
  // then only its arenas can be reached, and only its socket tells of its end. None for a peer in
  // our process.
  pid_t pid = 0;
  UniqueFd pid_fd{};
  // SoftDeviceOptions::least_kernel_copy_bytes.
  uint64_t least_by_kernel = 0;
};

// Peer: a device at the other end of a wire, in this process or another: how to wake it, and how to
// reach its memory without its help, if that is possible.
//
// A Peer is one device's view of another, one per address, shared by the lanes that lead there. Its
// arenas and its death are noted by the engine; everything else is immutable.
class Peer {
 public:
  explicit Peer(PeerParts parts) : parts_(std::move(parts)), target_(parts_.tables) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const DeviceAddress& address() const { return parts_.address; }
  CqControl& control(uint32_t cq_index) { return parts_.controls[cq_index]; }
  const TargetView& target() const { return target_; }

  // Wakes the peer's engine for one of its CQs. A syscall, unless it is already on its way.
  void Wake(CqControl& control);

  // True when `bytes` at `where` could be copied from here.
  bool CanReach(const MemoryLocation& where, uint64_t bytes) const;
  bool in_process() const { return parts_.in_process; }
  // False for a peer behind a TCP wire, which has no tables to look at and no memory to copy to.
  bool shares_memory() const { return parts_.tables != nullptr; }
  // The address of `where` in this process; null when it is not mapped here. The caller holds the
  // lock of a CQ, so that WithdrawArena waits for it.
  std::byte* Map(const MemoryLocation& where, uint64_t bytes) const;
  // Copies through the kernel, for memory that is not mapped here. False if it is not mapped there
  // either, once the kernel has refused the peer, and always if the peer's process is not known.
  bool CopyByKernel(bool write, void* local, const MemoryLocation& where, uint64_t bytes);

  // The peer says so on each of its connections, of which we read one later than the other: what
  // it says of an arena may come after the arena's end, or after the next one of its place. Engine
  // only.
  //
  // The peer has announced an arena. Does nothing if that was heard of already. Precondition: the
  // arenas before it in its place are withdrawn, and nobody uses them any more.
  absl::Status AddArena(uint32_t id, SharedRegion region);
  // The peer has withdrawn arena `id`, and all before it in its place: nobody starts to use them
  // from here on. Destroy the result once nobody uses it any more.
  SharedRegion WithdrawArena(uint32_t id);

  // True once its process is no more; always false for a peer in ours, and for one whose process is
  // not known.
  bool ProcessEnded() const;
  // The peer's device is no more, or has ended all that it had with us: it begins no copy any more,
  // and is in the middle of none. Any thread.
  void SetGone() { gone_.store(true, std::memory_order_release); }
  // True once that is known, or its process has ended. Any thread.
  bool gone() const { return gone_.load(std::memory_order_acquire) || ProcessEnded(); }

 private:
  // A place for arenas of the peer's, and the one that this process has mapped.
  struct ArenaPlace {
    std::atomic<std::byte*> data{nullptr};
    // Of the arena at `data`. They change while that is null, and nobody uses the arena before.
    std::atomic<uint32_t> id{0};
    std::atomic<uint64_t> bytes{0};
    // The engine's: the greatest number that the peer has announced or withdrawn.
    uint32_t newest = 0;
    SharedRegion region;
  };

  PeerParts parts_;
  TargetView target_;
  std::atomic<bool> kernel_refuses_{false};
  std::atomic<bool> gone_{false};
  ArenaPlace arenas_[kMaxArenas];
};

// Memory that the device has allocated, and that peers of other processes may map by its number.
struct SharedArena {
  uint32_t id = 0;
  SharedRegion region;
};

// Arenas: memory of a device that its peers can map, so that their one-sided operations are copies
// by the initiator alone.
//
// Each arena is one sealed memfd. Few and large: at most kMaxArenas - 1 at a time. A place whose
// numbers are used up, after 67 million arenas, gets no further one. Any thread. The memory lives
// until it is freed here and no peer that was told of it maps it any more.
class Arenas {
 public:
  // If it is not `shared`, no other process maps an arena. Then one that the kernel does not give
  // (a container's seccomp profile may forbid memfds) is private memory.
  explicit Arenas(bool shared);

  absl::StatusOr<std::shared_ptr<const SharedArena>> Allocate(size_t bytes);
  // Removes the arena that starts at `memory`; null when there is none.
  std::shared_ptr<const SharedArena> Remove(const std::byte* memory);

  // The arena that holds all of [address, address + bytes); null when none does.
  std::shared_ptr<const SharedArena> Find(uint64_t address, uint64_t bytes);
  std::vector<std::shared_ptr<const SharedArena>> All();

 private:
  const bool shared_;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const SharedArena>> by_address_;
  std::deque<uint32_t> free_ids_;  // the number that each free place gets next, oldest first
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_PEER_H_
