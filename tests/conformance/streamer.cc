#include "tests/conformance/streamer.h"

#include <chrono>

#include "tests/conformance/patience.h"
#include "tests/conformance/post.h"

namespace verbena::internal::conformance {

Streamer::Streamer(ibv_qp* qp, ibv_cq* cq, const SendWr& wr, uint32_t depth)
    : qp_(qp), cq_(cq), wr_(wr), depth_(depth), thread_([this] { Run(); }) {}

Streamer::~Streamer() { Stop(0); }

StreamState Streamer::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

StreamState Streamer::Stop(uint32_t timeout_ms) {
  stopping_ = true;
  const TimeLimit deadline(timeout_ms);
  while (!done_ && !deadline.passed()) std::this_thread::yield();
  abandoned_ = true;
  if (thread_.joinable()) thread_.join();
  return state();
}

void Streamer::Run() {
  uint64_t posted = 0;
  bool healthy = true;
  while (healthy && !abandoned_) {
    if (stopping_ && in_flight_ == 0) break;
    if (!stopping_ && in_flight_ < depth_) {
      healthy = PostOne(posted++);
      continue;
    }
    healthy = PollOnce();
  }
  done_ = true;
}

bool Streamer::PostOne(uint64_t wr_id) {
  wr_.wr_id = wr_id;
  const PostResult result = PostSendChain(qp_, {&wr_, 1});
  if (result.error == 0) {
    ++in_flight_;
    return true;
  }
  std::lock_guard lock(mutex_);
  state_.post_error = result.error;
  return false;
}

bool Streamer::PollOnce() {
  ibv_wc wc{};
  const int count = ibv_poll_cq(cq_, 1, &wc);
  if (count == 0) {
    std::this_thread::yield();
    return true;
  }
  std::lock_guard lock(mutex_);
  if (count < 0) {
    state_.last_status = IBV_WC_FATAL_ERR;
    return false;
  }
  --in_flight_;
  state_.last_status = wc.status;
  if (wc.status == IBV_WC_SUCCESS) ++state_.completed;
  return wc.status == IBV_WC_SUCCESS;
}

}  // namespace verbena::internal::conformance
