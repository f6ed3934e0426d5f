#include "tests/conformance/message_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {

MessageSocket::MessageSocket(MessageSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

void MessageSocket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::Status MessageSocket::Send(const std::string& message) {
  if (fd_ < 0) return absl::UnavailableError("the other host's process is gone");
  const uint64_t size = message.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes += message;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      absl::Status status = ErrnoStatus(errno, "send to the other host's process");
      Close();
      return status;
    }
    sent += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MessageSocket::Receive(uint32_t timeout_ms) {
  const TimeLimit deadline(timeout_ms);
  return ReceiveBefore(&deadline);
}

absl::StatusOr<std::string> MessageSocket::Receive() { return ReceiveBefore(nullptr); }

absl::StatusOr<std::string> MessageSocket::ReceiveBefore(const TimeLimit* deadline) {
  if (fd_ < 0) return absl::UnavailableError("the other host's process is gone");
  uint64_t size = 0;
  absl::Status status = ReceiveAll(reinterpret_cast<char*>(&size), sizeof(size), deadline);
  std::string message;
  if (status.ok()) {
    message.resize(size);
    status = ReceiveAll(message.data(), size, deadline);
  }
  if (status.ok()) return message;
  Close();
  return status;
}

absl::Status MessageSocket::ReceiveAll(char* data, size_t size, const TimeLimit* deadline) {
  for (size_t received = 0; received < size;) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, deadline != nullptr ? deadline->left_ms() : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError("the other host's process does not answer");
    const ssize_t count = recv(fd_, data + received, size - received, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "recv from the other host's process");
    if (count == 0) return absl::UnavailableError("the other host's process has ended");
    received += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace verbena::internal::conformance
