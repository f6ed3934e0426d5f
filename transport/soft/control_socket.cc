#include "verbena/transport/soft/control_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::soft {
namespace {

// More than a peer that is merely slow ever owes.
constexpr size_t kMaxWaiting = 4096;

// An abstract name: no file, and gone with its last socket.
socklen_t NameOf(const DeviceAddress& device, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::string name = "verbena-soft/";
  for (uint8_t byte : device.gid.raw) name += fmt::format("{:02x}", byte);
  if (device.lid != 0) name += fmt::format("/{:04x}", device.lid);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Without descriptors: long enough not to spin, short for who connects.
constexpr Duration kRetryDelay = std::chrono::milliseconds(100);

// A descriptor of the process at the other end of `socket`, which SO_PEERCRED calls `pid`. None if
// that is 0, if the kernel has no pidfds, or if the process has ended.
UniqueFd PidFdOf(int socket, pid_t pid) {
  if (pid == 0) return {};
#ifndef SO_PEERPIDFD
  constexpr int SO_PEERPIDFD = 77;
#endif
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) return UniqueFd(fd);
  // Since Linux 6.5. Before, a process that ended while it waited for us to accept it may have left
  // its number to another one.
  if (errno != ENOPROTOOPT) return {};
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

ControlSocket::ControlSocket(UniqueFd fd, UniqueFd pid_fd, pid_t pid)
    : fd_(std::move(fd)), pid_fd_(std::move(pid_fd)), pid_(pid) {}

absl::StatusOr<UniqueFd> ControlSocket::Listen(const DeviceAddress& device) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "the socket of a soft device");
  sockaddr_un address;
  const socklen_t bytes = NameOf(device, address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, "listening under a soft device's address");
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Connect(const DeviceAddress& device) {
  // Otherwise whoever listens under the name, and does not accept, would hold the caller up.
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "a socket to another soft device");
  sockaddr_un address;
  const socklen_t bytes = NameOf(device, address);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0) {
    return Adopt(std::move(fd));
  }
  if (errno == EAGAIN) return absl::AbortedError("the backlog of the soft device is full");
  return absl::UnavailableError(ErrnoStatus(errno, "connecting to a soft device").message());
}

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Accept(int listener) {
  VERBENA_ASSIGN_OR_RETURN(AcceptedSocket accepted,
                           AcceptSocket(listener, "accepting another soft device"));
  return Adopt(std::move(accepted.fd));
}

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Adopt(UniqueFd fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("process {} belongs to user {}, this one to {}; processes of two users reach "
                    "each other over TCP: VERBENA_DEVICE=soft:tcp for both",
                    peer.pid, peer.uid, geteuid()));
  }
  UniqueFd pid_fd = PidFdOf(fd.get(), peer.pid);
  return std::unique_ptr<ControlSocket>(
      new ControlSocket(std::move(fd), std::move(pid_fd), peer.pid));
}

absl::Status ControlSocket::Send(const ControlMessage& message, std::vector<int> descriptors,
                                 std::shared_ptr<const void> keep_alive) {
  Outgoing outgoing{message, std::move(descriptors), std::move(keep_alive)};
  if (waiting_.empty()) {
    const int error = SendNow(outgoing);
    if (error == 0) return absl::OkStatus();
    if (error != EAGAIN) return ErrnoStatus(error, "sending to another soft device");
  }
  if (waiting_.size() == kMaxWaiting) {
    return absl::ResourceExhaustedError(
        fmt::format("the soft device of process {} reads none of its messages", pid_));
  }
  waiting_.push_back(std::move(outgoing));
  return absl::OkStatus();
}

absl::StatusOr<bool> ControlSocket::Flush() {
  while (!waiting_.empty()) {
    const int error = SendNow(waiting_.front());
    if (error == EAGAIN) return true;
    if (error != 0) return ErrnoStatus(error, "sending to another soft device");
    waiting_.pop_front();
  }
  return false;
}

int ControlSocket::SendNow(const Outgoing& outgoing) {
  iovec data{.iov_base = const_cast<ControlMessage*>(&outgoing.message),
             .iov_len = sizeof(outgoing.message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!outgoing.descriptors.empty()) {
    const size_t bytes = sizeof(int) * outgoing.descriptors.size();
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(rights), outgoing.descriptors.data(), bytes);
  }
  while (true) {
    if (sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

absl::StatusOr<ControlSocket::Received> ControlSocket::Receive() {
  Received received;
  iovec data{.iov_base = &received.message, .iov_len = sizeof(received.message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t bytes = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::UnavailableError("nothing waits");
    return ErrnoStatus(errno, "reading from another soft device");
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      received.descriptors.emplace_back(fd);
    }
  }
  if (bytes == 0) return absl::AbortedError("the other soft device is gone");
  VERBENA_RETURN_IF_ERROR(CheckRevision(received.message.magic, static_cast<size_t>(bytes)));
  if (bytes != sizeof(ControlMessage) || (header.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "process {} sent a message of another size than {}", pid_, sizeof(ControlMessage)));
  }
  if ((header.msg_flags & MSG_CTRUNC) == 0) return received;
  // The kernel drops descriptors for which this process has no number left, and those for which
  // `control` has no room.
  if (received.descriptors.size() < kMaxDescriptors) {
    return absl::ResourceExhaustedError(
        fmt::format("this process has no room for the descriptors that process {} sent: raise "
                    "RLIMIT_NOFILE",
                    pid_));
  }
  return absl::InvalidArgumentError(
      fmt::format("process {} sent more than {} descriptors", pid_, kMaxDescriptors));
}

absl::Status ControlSocket::CheckRevision(uint32_t magic, size_t bytes) const {
  if (bytes < sizeof(magic) || (magic & ~uint32_t{0xff}) != ControlMessage::kMagic) {
    return absl::InvalidArgumentError(
        fmt::format("process {} sent what no soft device sends", pid_));
  }
  const uint32_t theirs = magic & 0xff;
  if (theirs == ControlMessage::kRevision) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("process {} shares memory by revision {} of the soft device's wire, this one by "
                  "{}: run the same version of Verbena in both",
                  pid_, theirs, ControlMessage::kRevision));
}

void ControlSocket::EndSending() {
  waiting_.clear();
  // A child of this process may hold a copy of the descriptor.
  shutdown(fd_.get(), SHUT_WR);
}

bool ControlSocket::PeerHasEnded(size_t messages) {
  for (size_t i = 0; i < messages; ++i) {
    // Without a place for descriptors, the kernel drops them.
    std::byte dropped[sizeof(ControlMessage)];
    const ssize_t bytes = recv(fd_.get(), dropped, sizeof(dropped), MSG_DONTWAIT);
    if (bytes > 0 || (bytes < 0 && errno == EINTR)) continue;
    if (bytes == 0 || errno != EAGAIN) return true;
    break;
  }
  pollfd ended{.fd = pid_fd_.get(), .events = POLLIN, .revents = 0};
  return pid_fd_ && poll(&ended, 1, 0) == 1;
}

bool ControlSocket::PeerIsGone() const {
  // poll() passes over a descriptor of -1.
  pollfd ends[] = {{.fd = pid_fd_.get(), .events = POLLIN, .revents = 0},
                   {.fd = fd_.get(), .events = POLLRDHUP, .revents = 0}};
  if (poll(ends, 2, 0) <= 0) return false;
  return ends[0].revents != 0 || (ends[1].revents & (POLLRDHUP | POLLHUP)) != 0;
}

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
  VERBENA_LOG_THROTTLED(refused_, kWarning, now,
                        fmt::format("{} refuses a process: {}", device_, why.ToString()),
                        {{"device", device_}});
}

void ControlListener::OnStarved(const absl::Status& why, TimePoint now) {
  retry_ = SaturatingAdd(now, kRetryDelay);
  VERBENA_LOG_THROTTLED(starved_, kWarning, now,
                        fmt::format("{} keeps processes waiting that connect to it: {}; raise "
                                    "RLIMIT_NOFILE",
                                    device_, why.ToString()),
                        {{"device", device_}});
}

}  // namespace verbena::internal::soft
