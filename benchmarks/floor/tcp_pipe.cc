#include "benchmarks/floor/tcp_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstring>

namespace verbena::benchmarks::internal {
namespace {

bool MayTryAgain() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

absl::Status Lost(const char* what) {
  return absl::UnavailableError(fmt::format("{} of the floor: {}", what, std::strerror(errno)));
}

}  // namespace

absl::Status MakePollable(int fd) {
  const int one = 1;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) {
    return Lost("a socket");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> SendSome(int fd, const char* data, std::size_t bytes) {
  const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (MayTryAgain()) return std::size_t{0};
  return Lost("send");
}

absl::StatusOr<std::size_t> ReceiveSome(int fd, char* data, std::size_t bytes) {
  const ssize_t got = recv(fd, data, bytes, 0);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && MayTryAgain()) return std::size_t{0};
  if (got == 0) return absl::UnavailableError("the floor's connection was closed");
  return Lost("recv");
}

void TcpPipe::Append(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const char*>(data);
  out_.insert(out_.end(), begin, begin + bytes);
}

absl::Status TcpPipe::Flush() {
  if (sent_ == out_.size()) return absl::OkStatus();
  absl::StatusOr<std::size_t> sent = SendSome(fd_, out_.data() + sent_, out_.size() - sent_);
  if (!sent.ok()) return sent.status();
  sent_ += *sent;
  if (sent_ < out_.size()) return absl::OkStatus();
  out_.clear();
  sent_ = 0;
  return absl::OkStatus();
}

absl::Status TcpPipe::Receive() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (end_ == in_.size()) {
    std::memmove(in_.data(), data(), received());
    end_ = received();
    begin_ = 0;
  }
  if (end_ == in_.size()) return absl::OkStatus();
  absl::StatusOr<std::size_t> got = ReceiveSome(fd_, in_.data() + end_, in_.size() - end_);
  if (!got.ok()) return got.status();
  end_ += *got;
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks::internal
