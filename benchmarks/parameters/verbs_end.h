// VerbsEnd: one side of a connection in bare verbs, without links or RPC.
//
// Connect() connects two ends of one device or of two. Each end is used by one thread at a time. A
// verbs call that fails prints its name and ends the program: a benchmark can only report to its
// user.

#ifndef VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_
#define VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::benchmarks {

// Ends the program with `what` and the status, unless it is OK.
void Must(const absl::Status& status, const char* what);

template <typename T>
T Must(absl::StatusOr<T> result, const char* what) {
  Must(result.status(), what);
  return *std::move(result);
}

struct EndOptions {
  int send_depth = 256;     // WRs of the send queue
  int receive_depth = 256;  // receives: of the SRQ, or of each QP
  int qps = 1;
  bool srq = true;
  uint32_t inline_bytes = 0;
  size_t message_bytes = 64 << 10;  // the largest message, sent or received
};

class VerbsEnd {
 public:
  VerbsEnd(internal::Device& device, const EndOptions& options);
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;

  // Connects QP i of one end with QP i of the other, and posts all receives of both.
  static void Connect(VerbsEnd& one, VerbsEnd& other);

  // Posts `count` receives, chained: to the SRQ, or to QP `qp`.
  void PostReceives(int count, int qp = 0);
  // Receives of the SRQ, or of QP `qp`, that were consumed and not posted again.
  int missing_receives(int qp = 0) const { return missing_[static_cast<size_t>(qp)]; }

  // Posts `count` WRs of `bytes`, chained. Every `signal_every`th WR of the QP is signalled.
  // One-sided WRs access the peer's landing memory.
  struct Post {
    ibv_wr_opcode opcode = IBV_WR_SEND;
    uint32_t bytes = 32;
    bool inline_data = false;
    int count = 1;
    int signal_every = 1;
    int qp = 0;
  };
  void PostSends(const Post& post);

  // Takes at most 32 completions and counts them. Returns how many there were. Ends the program if
  // one of them failed.
  int Poll();
  // Sleeps until there is a completion. Polls first, and returns at once if that took any.
  void Sleep();

  // Messages received since the beginning.
  uint64_t received() const { return received_; }
  // The last one, with one QP or an SRQ: receives are used in the order in which they were posted.
  const uint8_t* last_received() const;
  // WRs known to have left the send queue.
  uint64_t sent() const { return sent_; }
  uint64_t posted() const { return posted_; }
  // A byte of the memory that the peer writes. A ping-pong by WRITE watches it.
  const volatile uint8_t& landing(size_t offset) { return landing_[offset]; }
  uint8_t* outgoing() { return outgoing_; }

 private:
  void ConnectTo(const VerbsEnd& peer);

  internal::Device& device_;
  const EndOptions options_;
  std::vector<uint8_t> memory_;
  uint8_t* outgoing_;  // what is sent, message_bytes
  uint8_t* landing_;   // where one-sided WRs of the peer go, message_bytes
  uint8_t* receives_;  // receive buffers
  internal::PdHandle pd_;
  internal::MrHandle mr_;
  internal::CompChannelHandle channel_;
  internal::CqHandle cq_;
  internal::SrqHandle srq_;
  std::vector<internal::QpHandle> qps_;
  uint64_t remote_address_ = 0;
  uint32_t remote_key_ = 0;

  std::vector<ibv_send_wr> sends_;
  std::vector<ibv_recv_wr> receive_requests_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  int next_receive_ = 0;
  std::vector<int> since_signal_;  // by QP
  std::vector<int> missing_;       // by QP; with an SRQ only the first is used
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_
