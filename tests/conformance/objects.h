// Objects of a Host, and the requests about them, as plain values that can cross a process border.
//
// An object is named by an id that its host gave it; 0 is none. Addresses are those of the host.

#ifndef VERBENA_TESTS_CONFORMANCE_OBJECTS_H_
#define VERBENA_TESTS_CONFORMANCE_OBJECTS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "verbena/transport/device/device.h"

namespace verbena::internal::conformance {

struct Pd {
  uint32_t id = 0;
};
// A type-2 memory window.
struct Mw {
  uint32_t id = 0;
  uint32_t rkey = 0;  // of the last binding; a new binding changes its low 8 bits

  uint32_t NextKey() const { return (rkey & ~0xffu) | ((rkey + 1) & 0xff); }
};
struct CqChannel {
  uint32_t id = 0;
};
struct Cq {
  uint32_t id = 0;
  uint32_t capacity = 0;  // as the device made it: at least what was asked
};
struct Srq {
  uint32_t id = 0;
};
struct Qp {
  uint32_t id = 0;
  uint32_t number = 0;
  ibv_qp_cap cap{};  // as the device made it
};

// Page-aligned memory, and its registration.
struct Memory {
  uint32_t id = 0;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;

  ibv_sge Piece(uint64_t offset, uint64_t length) const {
    return {.addr = address + offset, .length = static_cast<uint32_t>(length), .lkey = lkey};
  }
};

// How a Host allocates memory: private pages, or pages of a memfd, which a device may map into its
// peer. Cases run with both.
enum class Backing : uint32_t { kPrivate, kShared };

struct QpOptions {
  Pd pd{};
  Cq send_cq{};
  Cq recv_cq{};
  Srq srq{};
  ibv_qp_cap cap{.max_send_wr = 16,
                 .max_recv_wr = 16,
                 .max_send_sge = 1,
                 .max_recv_sge = 1,
                 .max_inline_data = 0};
  bool all_signalled = false;
  ibv_qp_type type = IBV_QPT_RC;
};

// Options of a QP that rdma_cm connects.
struct CmOptions {
  uint32_t peer_qpn = 0;
  uint8_t reads_served = 0;   // READs that this side serves at once
  uint8_t reads_started = 0;  // READs that this side starts at once
};

inline constexpr uint32_t kMaxSges = 32;

// The parameters of a BIND_MW.
struct WindowBind {
  uint32_t window = 0;  // ids
  uint32_t region = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  unsigned access = 0;
  // Objects of their host, set when the WR is posted.
  ibv_mw* mw = nullptr;
  ibv_mr* mr = nullptr;
};

struct SendWr {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = IBV_SEND_SIGNALED;
  uint32_t immediate = 0;  // host byte order
  uint64_t remote_address = 0;
  uint32_t rkey = 0;  // the remote key, or the key to bind or invalidate
  WindowBind bind{};
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t sge_count = 0;
  std::array<ibv_sge, kMaxSges> sges{};
};

struct RecvWr {
  uint64_t wr_id = 0;
  uint32_t sge_count = 0;
  std::array<ibv_sge, kMaxSges> sges{};
};

// The result of a post. `accepted` WRs precede bad_wr; all of them do when `error` is 0.
struct PostResult {
  int error = 0;
  uint32_t accepted = 0;
};

// The properties of a host, read once.
struct HostInfo {
  DeviceKind kind = DeviceKind::kSoft;
  DeviceCapabilities capabilities;
  ibv_device_attr attributes{};
  ibv_port_attr port{};
  ibv_gid gid{};
  uint8_t gid_index = 0;
  bool iwarp = false;
};

// Messages that fit in a PingPong's `memory`: this many to receive, then this many to send.
inline constexpr uint32_t kPingPongSlots = 4;

// `rounds` messages of `bytes` each arrive at `qp`, one at a time, and each is answered by a
// message of the same size. The case posts the first receives beforehand, with their slots as
// wr_ids.
struct PingPong {
  Qp qp{};
  Cq cq{};              // of sends and receives
  CqChannel channel{};  // of `cq`
  Memory memory{};
  uint32_t rounds = 0;
  uint32_t bytes = 0;
  bool events = false;  // sleep on `channel` between messages; otherwise poll
  bool first = false;   // this side sends the first message
  uint32_t timeout_ms = 0;
};

// WRs posted over and over, keeping `depth` in flight, until told to stop or one fails.
struct Stream {
  Qp qp{};
  Cq cq{};
  SendWr wr{};  // signalled; its wr_id counts up
  uint32_t depth = 1;
};

// The state of a stream.
struct StreamState {
  uint64_t completed = 0;                      // successfully
  ibv_wc_status last_status = IBV_WC_SUCCESS;  // of the first completion that failed
  int post_error = 0;
};

static_assert(std::is_trivially_copyable_v<HostInfo> && std::is_trivially_copyable_v<SendWr>);

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_OBJECTS_H_
