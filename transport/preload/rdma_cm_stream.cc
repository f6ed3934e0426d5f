#include "verbena/transport/preload/rdma_cm_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/preload/rdma_cm_addresses.h"

namespace verbena::internal::preload {
namespace {

// A connection's whole life takes three messages of each side.
constexpr size_t kMostOutgoing = 4;

// A host that died without a word is found after about a minute (start).
constexpr int kIdleSeconds = 30;
constexpr int kProbeSeconds = 10;
constexpr int kProbes = 3;

void SetOption(int fd, int level, int name, int value) {
  // All are improvements only: a socket without one still works.
  setsockopt(fd, level, name, &value, sizeof(value));
}

void SetOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

int SocketError(int fd) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

constexpr auto kBetweenAttempts = std::chrono::milliseconds(20);

// Never destroyed, as CmLoop.
ThrottledLog& RefusedMessages() {
  static auto& log = *new ThrottledLog({});
  return log;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

CmStream::CmStream(soft::UniqueFd socket, CmStreamOwner& owner)
    : socket_(std::move(socket)),
      owner_(&owner),
      watch_(CmLoop::Instance().Watch(socket_.get(), EPOLLIN, *this)) {
  SetOptions(socket_.get());
}

CmStream::CmStream(soft::UniqueFd socket, const sockaddr& peer, CmStreamOwner& owner)
    : socket_(std::move(socket)), owner_(&owner), watch_(CmLoop::Instance().Watch(-1, 0, *this)) {
  attempt_ = CmAttempt{};
  std::memcpy(&attempt_->peer, &peer, AddressBytes(peer));
  attempt_->patient_until = CmLoop::Clock::now() + kPatience;
  Connect();
}

CmStream::~CmStream() { CmLoop::Instance().Forget(watch_); }

void CmStream::SetTimeLimit(std::chrono::milliseconds after) {
  if (attempt_.has_value()) attempt_->time_limit = CmLoop::Clock::now() + after;
  CmLoop::Instance().SetDeadline(watch_, after);
}

void CmStream::ClearTimeLimit() { CmLoop::Instance().ClearDeadline(watch_); }

// Begins an attempt. A failure that is known at once is told as a later one would be: through
// epoll.
void CmStream::Connect() {
  CmLoop& loop = CmLoop::Instance();
  loop.Forget(watch_);
  SetOptions(socket_.get());
  const auto& peer = reinterpret_cast<const sockaddr&>(attempt_->peer);
  const bool failed =
      connect(socket_.get(), &peer, AddressBytes(peer)) != 0 && errno != EINPROGRESS;
  attempt_->error = failed ? errno : 0;
  watch_ = loop.Watch(socket_.get(), EPOLLOUT, *this);
  if (attempt_->time_limit != CmLoop::Clock::time_point::max()) {
    loop.SetDeadline(watch_, attempt_->time_limit - CmLoop::Clock::now());
  }
}

void CmStream::ConnectAgainSoon() {
  CmLoop& loop = CmLoop::Instance();
  loop.Forget(watch_);
  // A descriptor that is not connected would be reported all the time.
  watch_ = loop.Watch(-1, 0, *this);
  loop.SetDeadline(watch_, kBetweenAttempts);
  attempt_->waits = true;
}

bool CmStream::ReplaceSocket() {
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(socket_.get(), address, &bytes) != 0) return false;
  socket_ = {};
  socket_ = soft::UniqueFd(
      socket(bound.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  return socket_ && bind(socket_.get(), address, bytes) == 0;
}

bool CmStream::Send(const CmMessage& message) {
  if (outgoing_.size() >= kMostOutgoing * kCmMessageBytes) return false;
  const auto bytes = EncodeCmMessage(message);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  if (attempt_.has_value()) return true;
  int error = 0;
  // The loop finds a lost connection, too, and reports it when nobody is inside of a call.
  if (Flush(&error) && !outgoing_.empty()) {
    CmLoop::Instance().Change(watch_, EPOLLIN | EPOLLOUT);
  }
  return true;
}

bool CmStream::Flush(int* error) {
  while (!outgoing_.empty()) {
    const ssize_t sent =
        send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      *error = errno;
      return WouldBlock(errno);
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  return true;
}

void CmStream::OnReady(uint32_t events) {
  if (attempt_.has_value()) {
    const int error = attempt_->error != 0 ? attempt_->error : SocketError(socket_.get());
    if (error == ECONNREFUSED && CmLoop::Clock::now() < attempt_->patient_until) {
      return ConnectAgainSoon();
    }
    if (error != 0) return owner_->OnStreamLost(error);
    attempt_.reset();
    CmLoop::Instance().Change(watch_, outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
    return owner_->OnStreamConnected();
  }
  if ((events & EPOLLOUT) != 0) {
    int error = 0;
    if (!Flush(&error)) return owner_->OnStreamLost(error);
    if (outgoing_.empty()) CmLoop::Instance().Change(watch_, EPOLLIN);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) Read();
}

void CmStream::OnDeadline() {
  if (!attempt_.has_value() || !attempt_->waits) return owner_->OnStreamLost(ETIMEDOUT);
  attempt_->waits = false;
  if (!ReplaceSocket()) return owner_->OnStreamLost(ECONNREFUSED);
  Connect();
}

// Takes one message at most: its owner may destroy the stream, and epoll reports what is left.
void CmStream::Read() {
  const ssize_t got =
      recv(socket_.get(), &incoming_[received_], incoming_.size() - received_, MSG_DONTWAIT);
  if (got < 0 && WouldBlock(errno)) return;
  if (got <= 0) return owner_->OnStreamLost(got == 0 ? ECONNRESET : errno);
  received_ += static_cast<size_t>(got);
  if (received_ < incoming_.size()) return;
  received_ = 0;
  auto message = DecodeCmMessage(incoming_);
  if (!message.ok()) {
    RefusedMessages().Write(LogLevel::kWarning, CmLoop::Clock::now(),
                            fmt::format("rdma_cm: {}; the connection is closed",
                                        std::string(message.status().message())));
    return owner_->OnStreamLost(EPROTO);
  }
  owner_->OnStreamMessage(*message);
}

}  // namespace verbena::internal::preload
