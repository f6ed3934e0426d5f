// End: one side of a connection, with the objects that it needs.
//
// A case calls near.Post(...) and far.ReceiveCompletion(). If a call fails or its completion does
// not come, the case ends, with a message that names the end and what it awaited. The Host owns the
// objects, so an End is a value to copy and to change. It must not outlive its Host.

#ifndef VERBENA_TESTS_CONFORMANCE_END_H_
#define VERBENA_TESTS_CONFORMANCE_END_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string>
#include <vector>

#include "tests/conformance/host.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/patience.h"

namespace verbena::internal::conformance {

// Local writes, and every remote access.
inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct EndOptions {
  ibv_qp_cap cap{.max_send_wr = 16,
                 .max_recv_wr = 16,
                 .max_send_sge = 4,
                 .max_recv_sge = 4,
                 .max_inline_data = 0};
  bool all_signalled = false;
  uint32_t srq_depth = 0;  // 0: no SRQ
  uint32_t send_cq_entries = 256;
  uint32_t recv_cq_entries = 256;
  bool one_cq = false;   // for sends and receives
  bool channel = false;  // of both CQs
  uint64_t memory_bytes = 65536;
  int memory_access = kAllAccess;
};

class End {
 public:
  using Where = std::source_location;

  End() = default;
  // Makes all but the QP. `name` is "near" or "far".
  End(Host& host, const HostInfo& info, const std::string& name, const EndOptions& options);

  Host& host() const { return *host_; }
  const HostInfo& info() const { return info_; }
  const std::string& name() const { return name_; }

  // A new QP on this end's PD, CQs and SRQ.
  void MakeQp(const EndOptions& options, Where where = Where::current());

  // Posts that must be accepted.
  void Post(const SendWr& wr, Where where = Where::current());
  void Post(const RecvWr& wr, Where where = Where::current());
  // Posts, and returns the answer.
  PostResult TryPost(std::vector<SendWr> wrs, Where where = Where::current());
  PostResult TryPost(std::vector<RecvWr> wrs, Where where = Where::current());

  ibv_wc SendCompletion(Where where = Where::current());
  ibv_wc ReceiveCompletion(Where where = Where::current());
  std::vector<ibv_wc> SendCompletions(uint32_t count, Where where = Where::current());
  std::vector<ibv_wc> ReceiveCompletions(uint32_t count, Where where = Where::current());
  // The completions in both CQs now.
  std::vector<ibv_wc> PollAll(Where where = Where::current());

  void Put(uint64_t offset, const std::string& bytes, Where where = Where::current());
  std::string Bytes(uint64_t offset, uint64_t count, Where where = Where::current());
  // The bytes of a peer's WRITE that has completed at the peer. Waits for them if that completion
  // says only that the bytes have left the peer (iWARP).
  std::string Written(uint64_t offset, const std::string& expected, Where where = Where::current());
  // The word at `offset`, while a peer may be writing it.
  uint64_t PeekWord(uint64_t offset, Where where = Where::current());
  void PutWord(uint64_t offset, uint64_t value, Where where = Where::current());
  uint64_t Word(uint64_t offset, Where where = Where::current());

  // The QP's state. If the device reports none: RTS, or ERR once the connection manager reports an
  // end.
  ibv_qp_state State(Where where = Where::current());
  // Waits until the QP is in `state`, which it enters by itself.
  void AwaitState(ibv_qp_state state, Where where = Where::current());
  // Expects the QP in ERR, after one of its WRs has failed. Waits for ERR if only the connection
  // manager reports it.
  void ExpectInError(Where where = Where::current());
  void ToError(Where where = Where::current());

  Pd pd;
  CqChannel channel;
  Cq send_cq;
  Cq recv_cq;
  Srq srq;
  Memory memory;
  Qp qp;

 private:
  // `result` with its errno made positive, if the device is known to return negative ones.
  PostResult Posted(PostResult result) const;
  std::vector<ibv_wc> Await(Cq cq, uint32_t count, const std::string& what, Where where);

  Host* host_ = nullptr;
  HostInfo info_;
  std::string name_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_END_H_
