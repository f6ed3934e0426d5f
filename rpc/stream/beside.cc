#include "verbena/rpc/stream/beside.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

BesideSender::~BesideSender() {
  if (share_ != nullptr) share_->EndReservation(bytes_.size());
}

bool BesideSender::CountIn(const std::shared_ptr<StreamShare>& share) {
  VERBENA_CHECK(share_ == nullptr) << bytes_.size() << " bytes are counted twice";
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
  const bool is_beyond = frame.body_bytes > most_ - received_;
  if (has_more || frame.body_bytes == 0 || is_beyond) {
    return absl::InvalidArgumentError(fmt::format(
        "{} bytes beside a stream's messages, with flags {} and argument {}, behind {} of at most "
        "{}",
        frame.body_bytes, frame.flags, frame.argument, received_, most_));
  }
  received_ += frame.body_bytes;
  if (!kept_.ok()) return absl::OkStatus();
  if (!MakeRoom(frame.body_bytes)) {
    Drop();
    kept_ = share_->Exhausted(frame.body_bytes);
    return absl::OkStatus();
  }
  bytes_.append(body, frame.body_bytes);
  return absl::OkStatus();
}

bool BesideReceiver::MakeRoom(size_t bytes) {
  const size_t needed = bytes_.size() + bytes;
  if (needed <= room_) return true;
  const size_t room = std::min(most_, 2 * needed);
  if (!share_->TryReserve(room - room_)) return false;
  room_ = room;
  std::string larger;
  larger.reserve(room);
  larger.append(bytes_);
  bytes_.swap(larger);
  return true;
}

void BesideReceiver::Drop() {
  if (room_ > 0) share_->EndReservation(std::exchange(room_, 0));
  bytes_ = std::string();
}

}  // namespace verbena::internal
