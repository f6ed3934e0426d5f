#include "verbena/rpc/internal/stream_beside.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/rpc/internal/frames.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {

BesideSender::~BesideSender() {
  if (share_ != nullptr) share_->EndReservation(bytes_.size());
}

bool BesideSender::CountIn(const std::shared_ptr<StreamShare>& share) {
  if (!share->TryReserve(bytes_.size())) return false;
  share_ = share;
  return true;
}

size_t BesideSender::next_bytes(const Link& link) const {
  return std::min(bytes_.size() - sent_, link.max_body_bytes());
}

bool BesideSender::Send(Link& link, CallId id) {
  while (sent_ < bytes_.size()) {
    const size_t bytes = next_bytes(link);
    char* body = link.Append(BesideFrame(id), bytes);
    if (body == nullptr) return false;
    sent_ += bytes_.copy(body, bytes, sent_);
  }
  return true;
}

absl::Status BesideReceiver::Add(const FrameHeader& frame, const char* body) {
  const bool has_more = frame.flags != 0 || frame.argument != 0 || frame.deadline_us != 0;
  const bool is_beyond = frame.body_bytes > most_ - received_ && !VERBENA_MUTANT(kBesideUnbounded);
  if (has_more || frame.body_bytes == 0 || is_beyond) {
    return absl::InvalidArgumentError(fmt::format(
        "{} bytes beside a stream's messages, with flags {} and argument {}, behind {} of at most "
        "{}",
        frame.body_bytes, frame.flags, frame.argument, received_, most_));
  }
  received_ += frame.body_bytes;
  if (!kept_.ok()) return absl::OkStatus();
  if (!share_->TryReserve(frame.body_bytes)) {
    Drop();
    kept_ = share_->Exhausted(frame.body_bytes);
    return absl::OkStatus();
  }
  bytes_.append(body, frame.body_bytes);
  return absl::OkStatus();
}

void BesideReceiver::Drop() {
  if (!bytes_.empty()) share_->EndReservation(bytes_.size());
  bytes_ = std::string();
}

}  // namespace verbena::internal
