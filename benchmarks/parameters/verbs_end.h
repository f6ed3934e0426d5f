// VerbsEnd: one side of a connection as the parameter benchmark drives it: bare verbs, nothing of
// links or RPC.
//
// Two ends of one device, or of two, are connected by Connect(). Everything runs on the thread that
// owns both. A verbs call that fails ends the program with its name: a benchmark has nobody to
// report to but its user.

#ifndef VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_
#define VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/handles.h"

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
  size_t message_bytes = 64 << 10;  // the largest that a receive takes, and that is sent
};

class VerbsEnd {
 public:
  VerbsEnd(Device& device, const EndOptions& options);
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;

  // Connects QP i of one with QP i of the other, and posts every receive.
  static void Connect(VerbsEnd& one, VerbsEnd& other);

  // Posts `count` receives, chained: to the SRQ, or to QP `qp`.
  void PostReceives(int count, int qp = 0);
  // Receives of the SRQ, or of QP `qp`, that were consumed and not posted again.
  int missing_receives(int qp = 0) const { return missing_[static_cast<size_t>(qp)]; }

  // Posts `count` WRs of `bytes`, chained. Every `signal_every`th of all that this end posts is
  // signalled. One-sided ones go to the peer's memory.
  struct Post {
    ibv_wr_opcode opcode = IBV_WR_SEND;
    uint32_t bytes = 32;
    bool inline_data = false;
    int count = 1;
    int signal_every = 1;
    int qp = 0;
  };
  void PostSends(const Post& post);

  // Takes completions, at most 32, and counts them. Ends the program when one has failed.
  // Returns how many there were.
  int Poll();
  // Sleeps until a completion is there (or was, since the last Poll()).
  void Sleep();

  // Since the beginning.
  uint64_t received() const { return received_; }
  // WRs known to have left the send queue.
  uint64_t sent() const { return sent_; }
  uint64_t posted() const { return posted_; }
  // A byte of the memory that the peer writes into; the ends of a ping-pong by WRITE watch it.
  const volatile uint8_t& landing(size_t offset) { return landing_[offset]; }
  uint8_t* outgoing() { return outgoing_; }

 private:
  void ConnectTo(const VerbsEnd& peer);

  Device& device_;
  const EndOptions options_;
  std::vector<uint8_t> memory_;
  uint8_t* outgoing_;  // what is sent, message_bytes
  uint8_t* landing_;   // where one-sided WRs of the peer go, message_bytes
  uint8_t* receives_;  // receive buffers
  PdHandle pd_;
  MrHandle mr_;
  CompChannelHandle channel_;
  CqHandle cq_;
  SrqHandle srq_;
  std::vector<QpHandle> qps_;
  uint64_t remote_address_ = 0;
  uint32_t remote_key_ = 0;

  std::vector<ibv_send_wr> sends_;
  std::vector<ibv_recv_wr> receive_requests_;
  uint64_t posted_ = 0;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  int next_receive_ = 0;
  std::vector<int> since_signal_;  // by QP
  std::vector<int> missing_;       // by QP; with an SRQ the first stands for all
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PARAMETERS_VERBS_END_H_
