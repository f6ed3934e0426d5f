#include "verbena/transport/link/receive_doubt.h"

#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

void ReceiveDoubt::Raise(uint32_t count) {
  if (count == 0) return;
  ++ends_in_silence_;
  if (open()) {
    suspected_later_ += count;
    return;
  }
  stage_ = Stage::kWaiting;
  ++number_;
  suspected_ = count;
  older_ = posted_;
  last_was_newer_ = false;
  if (older_.count == 0) End();
}

void ReceiveDoubt::OnCompletion(uint32_t index) {
  ends_in_silence_ = 0;
  last_was_newer_ = !older_.has[index];
  if (last_was_newer_) {
    stage_ = Stage::kMissing;
    suspected_ = 0;
    return;
  }
  older_.has[index] = false;
  if (--older_.count == 0) End();
}

void ReceiveDoubt::Reclaim() {
  VERBENA_CHECK(older_are_taken()) << older_.count << " receives may be the device's";
  End();
}

void ReceiveDoubt::WriteOff() {
  VERBENA_CHECK(older_are_taken()) << older_.count << " receives may be the device's";
  written_off_ += older_.count;
  End();
}

void ReceiveDoubt::End() {
  stage_ = Stage::kNone;
  older_.count = 0;
  suspected_ = 0;
  ends_in_silence_ = 0;
  Raise(std::exchange(suspected_later_, 0));
}

}  // namespace verbena::internal
