// Host: one side of a connection, in this process (LocalHost) or in another (RemoteHost).
//
// A case talks to both of its hosts through this interface alone, so that the same case runs
// whichever process its far side lives in. It is Device, with ids for pointers, plus what a case
// needs beside it: memory, waiting, and two loops (ping-pong and stream) that would be distorted
// if every step crossed a process border.
//
// A call waits no longer than its `timeout_ms`. A call to a RemoteHost always returns: UNAVAILABLE
// if the process is gone, DEADLINE_EXCEEDED if it is stopped. A verb of a LocalHost may hang if the
// device does (watchdog.h). A LocalHost may be used from several threads; a RemoteHost answers one
// call at a time.

#ifndef VERBENA_TESTS_CONFORMANCE_HOST_H_
#define VERBENA_TESTS_CONFORMANCE_HOST_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/objects.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal::conformance {

class Host {
 public:
  virtual ~Host() = default;

  virtual absl::StatusOr<HostInfo> Info() = 0;

  virtual absl::StatusOr<Pd> AllocPd() = 0;
  virtual absl::Status DeallocPd(Pd pd) = 0;

  // Allocates and registers zeroed memory. It stays allocated until Clear(), even after it is
  // deregistered, and can be registered again.
  virtual absl::StatusOr<Memory> Register(Pd pd, uint64_t bytes, int access) = 0;
  virtual absl::StatusOr<Memory> RegisterAgain(Memory memory, Pd pd, int access) = 0;
  virtual absl::Status Deregister(Memory memory) = 0;
  virtual absl::StatusOr<Mw> AllocMw(Pd pd) = 0;
  virtual absl::Status DeallocMw(Mw mw) = 0;
  virtual absl::Status WriteBytes(Memory memory, uint64_t offset, std::string bytes) = 0;
  virtual absl::StatusOr<std::string> ReadBytes(Memory memory, uint64_t offset, uint64_t bytes) = 0;
  // Reads memory that a peer may be writing to, and hides that race from ThreadSanitizer.
  virtual absl::StatusOr<std::string> PeekBytes(Memory memory, uint64_t offset, uint64_t bytes) = 0;

  virtual absl::StatusOr<CqChannel> CreateChannel() = 0;
  virtual absl::Status DestroyChannel(CqChannel channel) = 0;
  virtual absl::StatusOr<Cq> CreateCq(uint32_t entries, CqChannel channel) = 0;
  virtual absl::Status DestroyCq(Cq cq) = 0;
  virtual absl::StatusOr<Srq> CreateSrq(Pd pd, uint32_t depth, uint32_t sges) = 0;
  virtual absl::Status ModifySrq(Srq srq, ibv_srq_attr attributes, int mask) = 0;
  virtual absl::StatusOr<ibv_srq_attr> QuerySrq(Srq srq) = 0;
  virtual absl::Status DestroySrq(Srq srq) = 0;
  virtual absl::StatusOr<Qp> CreateQp(QpOptions options) = 0;
  virtual absl::Status ModifyQp(Qp qp, ibv_qp_attr attributes, int mask) = 0;
  virtual absl::StatusOr<ibv_qp_attr> QueryQp(Qp qp, int mask) = 0;
  virtual absl::Status DestroyQp(Qp qp) = 0;
  virtual absl::StatusOr<bool> Quiesced(Qp qp) = 0;

  // rdma_cm connects an iWARP device's QPs, in INIT. One side calls CmExpect(), then the other one
  // CmRequest(). Both then call CmJoin(), the expecting side first, and CmAwaitEstablished(). The
  // connection is dropped when its QP is destroyed.
  virtual absl::StatusOr<RdmaCmService> CmExpect(Qp qp, CmOptions options) = 0;
  virtual absl::Status CmRequest(Qp qp, CmOptions options, RdmaCmService service) = 0;
  virtual absl::Status CmJoin(Qp qp) = 0;
  virtual absl::Status CmAwaitEstablished(Qp qp) = 0;
  // True once an established connection has ended, and its QP left service.
  virtual absl::StatusOr<bool> CmHasEnded(Qp qp) = 0;

  // Posts all WRs as one chain.
  virtual absl::StatusOr<PostResult> PostSends(Qp qp, std::vector<SendWr> wrs) = 0;
  virtual absl::StatusOr<PostResult> PostReceives(Qp qp, std::vector<RecvWr> wrs) = 0;
  virtual absl::StatusOr<PostResult> PostSrqReceives(Srq srq, std::vector<RecvWr> wrs) = 0;

  // The completions that are there now, at most `limit`.
  virtual absl::StatusOr<std::vector<ibv_wc>> Poll(Cq cq, uint32_t limit) = 0;
  // Polls until `count` have come. Fewer are returned when `timeout_ms` passes.
  virtual absl::StatusOr<std::vector<ibv_wc>> Await(Cq cq, uint32_t count, uint32_t timeout_ms) = 0;

  virtual absl::Status Arm(Cq cq, bool solicited_only) = 0;
  // The next event of the channel, not acknowledged; DEADLINE_EXCEEDED when none comes.
  virtual absl::StatusOr<Cq> AwaitCqEvent(CqChannel channel, uint32_t timeout_ms) = 0;
  virtual absl::Status AckCqEvents(Cq cq, uint32_t count) = 0;

  // Takes one event of `type` about the object with `id` (a QP's, CQ's or SRQ's, by the type).
  // Events are acknowledged as soon as they are read; DEADLINE_EXCEEDED names those that came
  // instead.
  virtual absl::Status AwaitAsyncEvent(ibv_event_type type, uint32_t id, uint32_t timeout_ms) = 0;

  // Runs to the end, or to the first failure.
  virtual absl::Status RunPingPong(PingPong plan) = 0;
  // Streams in a thread of its own. One at a time.
  virtual absl::Status StartStream(Stream stream) = 0;
  virtual absl::StatusOr<StreamState> WatchStream() = 0;
  // Posts no more, awaits what is in flight for at most `timeout_ms`, joins the thread.
  virtual absl::StatusOr<StreamState> StopStream(uint32_t timeout_ms) = 0;

  // Destroys all objects that are left, in order. Objects whose destruction is refused leak;
  // returns the first refusal.
  virtual absl::Status Clear() = 0;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_HOST_H_
