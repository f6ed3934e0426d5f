// MessageSocket: whole messages over a stream socket between two processes.
//
// Owns its descriptor. After a failure it is closed, since the stream may be torn.

#ifndef VERBENA_TESTS_CONFORMANCE_MESSAGE_SOCKET_H_
#define VERBENA_TESTS_CONFORMANCE_MESSAGE_SOCKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/patience.h"

namespace verbena::internal::conformance {

class MessageSocket {
 public:
  explicit MessageSocket(int fd) : fd_(fd) {}
  MessageSocket(MessageSocket&& other) noexcept;
  MessageSocket& operator=(MessageSocket&&) = delete;
  ~MessageSocket() { Close(); }

  absl::Status Send(const std::string& message);
  // UNAVAILABLE when the other end has closed, DEADLINE_EXCEEDED when nothing comes in time.
  absl::StatusOr<std::string> Receive(uint32_t timeout_ms);
  // Waits as long as it takes.
  absl::StatusOr<std::string> Receive();
  void Close();

 private:
  absl::Status ReceiveAll(char* data, size_t size, const TimeLimit* deadline);
  absl::StatusOr<std::string> ReceiveBefore(const TimeLimit* deadline);

  int fd_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_MESSAGE_SOCKET_H_
