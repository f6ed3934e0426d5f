// Streamer: a thread that posts the same WR over and over and awaits its completions.
//
// Cases use it to have WRs under way when they stop or kill a host. Stop() or destruction joins the
// thread. The QP, CQ and memory must outlive it.

#ifndef VERBENA_TESTS_CONFORMANCE_STREAMER_H_
#define VERBENA_TESTS_CONFORMANCE_STREAMER_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "tests/conformance/objects.h"

namespace verbena::internal::conformance {

class Streamer {
 public:
  Streamer(ibv_qp* qp, ibv_cq* cq, const SendWr& wr, uint32_t depth);
  ~Streamer();

  StreamState state() const;
  // Posts no more, and waits at most `timeout_ms` for the WRs in flight.
  StreamState Stop(uint32_t timeout_ms);

 private:
  void Run();
  bool PostOne(uint64_t wr_id);
  // False when the stream has failed.
  bool PollOnce();

  ibv_qp* const qp_;
  ibv_cq* const cq_;
  SendWr wr_;
  const uint32_t depth_;
  uint32_t in_flight_ = 0;  // the thread's own

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> abandoned_ = false;  // do not wait for what is in flight
  std::atomic<bool> done_ = false;
  mutable std::mutex mutex_;
  StreamState state_;
  std::thread thread_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_STREAMER_H_
