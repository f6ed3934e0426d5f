// ControlListener: where the engines of other processes connect to a device.
//
// A turn takes a bounded number of connections and logs few lines, however many come: every process
// of the host can connect, whoever its user is. While this process has no descriptors left, those
// who connect wait in the listener's backlog, and fd() stays readable. So retry() then says when to
// call Accept() again. Used by one thread, its engine's.
//
//   for (auto& socket : listener.Accept(room, now)) …
//   // then watches listener.fd() if listener.retry() == kNever, else calls again by that time

#ifndef VERBENA_TRANSPORT_SOFT_CONTROL_LISTENER_H_
#define VERBENA_TRANSPORT_SOFT_CONTROL_LISTENER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/device_address.h"

namespace verbena::internal::soft {

class ControlListener {
 public:
  // Connections of one Accept(), with those that are refused. (start)
  static constexpr size_t kAcceptsAtOnce = 32;

  // Listens under `address`, for the device of that name.
  static absl::StatusOr<std::unique_ptr<ControlListener>> Create(std::string device,
                                                                 const DeviceAddress& address);
  ControlListener(const ControlListener&) = delete;
  ControlListener& operator=(const ControlListener&) = delete;
  ~ControlListener() = default;

  int fd() const { return fd_.get(); }
  // The next connections, at most `room` of them. Refuses connections beyond `room`, and those of
  // other users.
  std::vector<std::unique_ptr<ControlSocket>> Accept(size_t room, TimePoint now);
  // When to call Accept() again, while nobody can be accepted; kNever: whenever fd() is readable.
  TimePoint retry() const { return retry_; }

 private:
  ControlListener(std::string device, UniqueFd fd)
      : device_(std::move(device)), fd_(std::move(fd)) {}
  void Refuse(const absl::Status& why, TimePoint now);
  void OnStarved(const absl::Status& why, TimePoint now);

  const std::string device_;
  const UniqueFd fd_;
  TimePoint retry_ = kNever;
  ThrottledLog refused_{{}};
  ThrottledLog starved_{{}};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_CONTROL_LISTENER_H_
