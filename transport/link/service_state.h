// ServiceState: whether an endpoint can make links, and if not, why.
//
// An endpoint is in service, or suspended while lost queues are replaced, or failed for good with
// its device. Independently of these, it may be shutting down. Part of an Endpoint; one thread.

#ifndef VERBENA_TRANSPORT_LINK_SERVICE_STATE_H_
#define VERBENA_TRANSPORT_LINK_SERVICE_STATE_H_

#include "absl/status/status.h"

namespace verbena::internal {

class ServiceState {
 public:
  bool in_service() const { return !shutting_down_ && reason_.ok(); }
  bool shutting_down() const { return shutting_down_; }
  bool failed() const { return failed_; }
  // Why no link can be made; OK in service.
  absl::Status Check() const {
    return shutting_down_ ? absl::UnavailableError("the endpoint is shutting down") : reason_;
  }
  // Why the endpoint is suspended or failed; OK otherwise, even while it shuts down.
  const absl::Status& reason() const { return reason_; }

  void ShutDown() { shutting_down_ = true; }
  // The device has failed: nothing brings the endpoint back.
  void Fail(const absl::Status& reason) {
    failed_ = true;
    reason_ = reason;
  }
  // Takes the endpoint out of service until Resume(). Returns false, and keeps the earlier reason,
  // if it was suspended or had failed already.
  bool Suspend(const absl::Status& reason) {
    if (!reason_.ok()) return false;
    reason_ = reason;
    return true;
  }
  // Precondition: not failed().
  void Resume() { reason_ = absl::OkStatus(); }

 private:
  absl::Status reason_;
  bool failed_ = false;
  bool shutting_down_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_SERVICE_STATE_H_
