#include "tests/conformance/ping_pong.h"

#include <poll.h>

#include <cstring>
#include <thread>

#include "fmt/format.h"
#include "tests/conformance/post.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {
namespace {

constexpr uint64_t kSendWrId = 1000;

}  // namespace

char* PingPongLoop::Slot(uint64_t index) const {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  return reinterpret_cast<char*>(plan_.memory.address) + index * plan_.bytes;
}

absl::Status PingPongLoop::Run() {
  if (plan_.first) {
    if (absl::Status status = Send(); !status.ok()) return status;
  }
  while (received_ < plan_.rounds) {
    if (absl::Status status = AwaitMessage(); !status.ok()) return status;
    if (sent_ == plan_.rounds) continue;
    if (absl::Status status = Send(); !status.ok()) return status;
  }
  while (send_completions_ < sent_) {
    absl::StatusOr<int> polled = Poll();
    if (!polled.ok()) return polled.status();
    if (*polled == 0 && deadline_.passed()) return TimedOut();
    if (*polled == 0) std::this_thread::yield();
  }
  return absl::OkStatus();
}

absl::Status PingPongLoop::PostReceive(uint64_t slot) {
  RecvWr wr{.wr_id = slot, .sge_count = 1};
  wr.sges[0] = plan_.memory.Piece(slot * plan_.bytes, plan_.bytes);
  const PostResult result = PostReceiveChain(qp_, {&wr, 1});
  return result.error == 0 ? absl::OkStatus() : ErrnoStatus(result.error, "ibv_post_recv");
}

absl::Status PingPongLoop::Send() {
  const uint64_t slot = kPingPongSlots + sent_ % kPingPongSlots;
  std::memcpy(Slot(slot), &sent_, sizeof(sent_));
  SendWr wr{.wr_id = kSendWrId, .sge_count = 1};
  wr.sges[0] = plan_.memory.Piece(slot * plan_.bytes, plan_.bytes);
  const PostResult result = PostSendChain(qp_, {&wr, 1});
  if (result.error != 0) return ErrnoStatus(result.error, "ibv_post_send");
  ++sent_;
  return absl::OkStatus();
}

absl::Status PingPongLoop::AwaitMessage() {
  const uint64_t due = received_ + 1;
  while (received_ < due) {
    absl::StatusOr<int> polled = Poll();
    if (!polled.ok()) return polled.status();
    if (*polled > 0) continue;
    if (deadline_.passed()) return TimedOut();
    if (!plan_.events) {
      std::this_thread::yield();
      continue;
    }
    if (const int result = ibv_req_notify_cq(cq_, 0); result != 0) {
      return ErrnoStatus(result, "ibv_req_notify_cq");
    }
    polled = Poll();
    if (!polled.ok()) return polled.status();
    if (*polled > 0) continue;
    if (absl::Status status = Sleep(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> PingPongLoop::Poll() {
  ibv_wc wc{};
  const int count = ibv_poll_cq(cq_, 1, &wc);
  if (count < 0) return absl::InternalError("ibv_poll_cq failed");
  if (count == 0) return 0;
  if (absl::Status status = Consume(wc); !status.ok()) return status;
  return 1;
}

absl::Status PingPongLoop::Consume(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) return WcStatus(wc, "ping-pong");
  if (wc.wr_id == kSendWrId) {
    ++send_completions_;
    return absl::OkStatus();
  }
  uint64_t number = 0;
  std::memcpy(&number, Slot(wc.wr_id), sizeof(number));
  if (wc.byte_len != plan_.bytes || number != received_) {
    return absl::DataLossError(fmt::format("message {} of {} bytes came where {} of {} was due",
                                           number, wc.byte_len, received_, plan_.bytes));
  }
  ++received_;
  return PostReceive(wc.wr_id);
}

absl::Status PingPongLoop::Sleep() {
  pollfd waiting{.fd = channel_->fd, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, deadline_.left_ms()) <= 0) return TimedOut();
  absl::StatusOr<ibv_cq*> event = device_.GetCqEvent(channel_);
  // An event that an earlier arming left behind may be all there was.
  if (event.ok()) device_.AckCqEvents(*event, 1);
  return event.ok() || absl::IsUnavailable(event.status()) ? absl::OkStatus() : event.status();
}

absl::Status PingPongLoop::TimedOut() {
  ibv_wc wc{};
  const bool lost_wakeup = ibv_poll_cq(cq_, 1, &wc) > 0;
  return absl::DeadlineExceededError(fmt::format(
      "ping-pong stuck after {} of {} messages received, {} sent, {} sends completed: {}",
      received_, plan_.rounds, sent_, send_completions_,
      lost_wakeup ? "a completion is in the CQ, so a wake-up was lost"
                  : "the CQ is empty, so a message was lost or the peer is stuck"));
}

}  // namespace verbena::internal::conformance
