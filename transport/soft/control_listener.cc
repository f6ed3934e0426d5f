#include "verbena/transport/soft/control_listener.h"

#include <chrono>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal::soft {
namespace {

// Without descriptors: long enough not to spin, short for who connects.
constexpr Duration kRetryDelay = std::chrono::milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlListener>> ControlListener::Create(
    std::string device, const DeviceAddress& address) {
  VERBENA_ASSIGN_OR_RETURN(UniqueFd fd, ControlSocket::Listen(address));
  return std::unique_ptr<ControlListener>(new ControlListener(std::move(device), std::move(fd)));
}

std::vector<std::unique_ptr<ControlSocket>> ControlListener::Accept(size_t room, TimePoint now) {
  retry_ = kNever;
  std::vector<std::unique_ptr<ControlSocket>> accepted;
  for (size_t i = 0; i < kAcceptsAtOnce; ++i) {
    absl::StatusOr<std::unique_ptr<ControlSocket>> socket = ControlSocket::Accept(fd());
    if (socket.ok() && accepted.size() < room) {
      accepted.push_back(*std::move(socket));
    } else if (socket.ok()) {
      Refuse(absl::ResourceExhaustedError("too many connections"), now);
    } else if (absl::IsUnavailable(socket.status())) {
      break;
    } else if (absl::IsResourceExhausted(socket.status())) {
      OnStarved(socket.status(), now);
      break;
    } else if (!absl::IsCancelled(socket.status())) {
      Refuse(socket.status(), now);
    }
  }
  return accepted;
}

void ControlListener::Refuse(const absl::Status& why, TimePoint now) {
  refused_.Write(LogLevel::kWarning, now,
                 fmt::format("{} refuses a process: {}", device_, why.ToString()));
}

void ControlListener::OnStarved(const absl::Status& why, TimePoint now) {
  retry_ = SaturatingAdd(now, kRetryDelay);
  starved_.Write(LogLevel::kWarning, now,
                 fmt::format("{} keeps processes waiting that connect to it: {}; raise "
                             "RLIMIT_NOFILE",
                             device_, why.ToString()));
}

}  // namespace verbena::internal::soft
