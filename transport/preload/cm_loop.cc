#include "verbena/transport/preload/cm_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal::preload {
namespace {

constexpr uint64_t kWakeWatch = 0;
constexpr auto kNoDeadline = CmLoop::Clock::time_point::max();

// A connection's whole life takes three messages of each side.
constexpr size_t kMostOutgoing = 4;

// A host that died without a word is found after about a minute (start).
constexpr AllowedSilence kSilence{.idle_seconds = 30, .interval_seconds = 10, .limit_seconds = 0};

constexpr auto kBetweenAttempts = std::chrono::milliseconds(20);

// Never destroyed, as CmLoop.
ThrottledLog& RefusedMessages() {
  static auto& log = *new ThrottledLog(LogComponent::kDevice, {});
  return log;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// How long it leaves connections waiting when the process has no descriptors left.
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

CmLoop& CmLoop::Instance() {
  static CmLoop& loop = *new CmLoop;
  return loop;
}

uint64_t CmLoop::Watch(int fd, uint32_t events, CmReadyListener& listener) {
  VERBENA_CHECK(epoll_ >= 0) << "nothing is watched before the loop has started";
  const uint64_t watch = last_watch_ + 1;
  epoll_event event{.events = events, .data = {.u64 = watch}};
  if (fd >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return 0;
  last_watch_ = watch;
  watched_.emplace(watch, Watched{.fd = fd, .listener = &listener, .deadline = kNoDeadline});
  return watch;
}

CmLoop::Watched& CmLoop::Of(uint64_t watch) {
  const auto found = watched_.find(watch);
  VERBENA_CHECK(found != watched_.end()) << "watch " << watch << " is none of " << watched_.size();
  return found->second;
}

void CmLoop::Change(uint64_t watch, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = watch}};
  VERBENA_CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, Of(watch).fd, &event) == 0) << "errno " << errno;
}

void CmLoop::SetDeadline(uint64_t watch, Clock::duration after) {
  ClearDeadline(watch);
  Watched& watched = Of(watch);
  watched.deadline = Clock::now() + after;
  deadlines_.emplace(watched.deadline, watch);
  Wake();
}

void CmLoop::ClearDeadline(uint64_t watch) {
  Watched& watched = Of(watch);
  if (watched.deadline == kNoDeadline) return;
  deadlines_.erase({watched.deadline, watch});
  watched.deadline = kNoDeadline;
}

void CmLoop::Forget(uint64_t watch) {
  ClearDeadline(watch);
  const int fd = Of(watch).fd;
  if (fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(watch);
}

int CmLoop::Start() {
  if (epoll_ >= 0) return 0;
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno;
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeWatch}};
  if (!wake || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) return errno;
  std::thread thread;
  try {
    // It waits for the lock, which the caller holds, before it uses the descriptors.
    thread = StartQuietThread([this] { Run(); });
  } catch (const std::system_error& error) {
    return error.code().value();
  }
  pthread_setname_np(thread.native_handle(), "verbena_rdma_cm");
  thread.detach();
  epoll_ = epoll.Release();
  wake_ = wake.Release();
  return 0;
}

void CmLoop::Wake() {
  const uint64_t one = 1;
  // The write can fail only if the counter is full, and then the loop wakes anyhow.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

int CmLoop::TimeLeft() {
  const std::scoped_lock lock(mutex_);
  if (deadlines_.empty()) return -1;
  constexpr auto kLongest = std::chrono::hours(1);
  const auto left = std::min<Clock::duration>(deadlines_.begin()->first - Clock::now(), kLongest);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left);
  return static_cast<int>(std::max<int64_t>(ms.count(), 0));
}

void CmLoop::CallLate() {
  const auto now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t watch = deadlines_.begin()->second;
    ClearDeadline(watch);
    Of(watch).listener->OnDeadline();
  }
}

void CmLoop::Run() {
  std::array<epoll_event, 32> events;
  while (true) {
    const int patience = TimeLeft();
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience);
    const std::scoped_lock lock(mutex_);
    for (int i = 0; i < count; ++i) {
      const uint64_t watch = events[static_cast<size_t>(i)].data.u64;
      if (watch == kWakeWatch) {
        uint64_t wakes;
        [[maybe_unused]] const ssize_t got = read(wake_, &wakes, sizeof(wakes));
        continue;
      }
      // An earlier one of these events may have ended it.
      const auto found = watched_.find(watch);
      if (found != watched_.end()) {
        found->second.listener->OnReady(events[static_cast<size_t>(i)].events);
      }
    }
    CallLate();
  }
}

CmStream::CmStream(UniqueFd socket, CmStreamOwner& owner)
    : socket_(std::move(socket)), owner_(&owner) {
  Watch(EPOLLIN);
  DetectDeadHost(socket_.get(), kSilence);
}

CmStream::CmStream(UniqueFd socket, const SocketAddress& peer, CmStreamOwner& owner)
    : socket_(std::move(socket)), owner_(&owner), watch_(CmLoop::Instance().Watch(-1, 0, *this)) {
  attempt_ = CmAttempt{.peer = peer, .patient_until = CmLoop::Clock::now() + kPatience};
  Connect();
}

CmStream::~CmStream() { CmLoop::Instance().Forget(watch_); }

void CmStream::SetTimeLimit(std::chrono::milliseconds after) {
  if (attempt_.has_value()) attempt_->time_limit = CmLoop::Clock::now() + after;
  if (unwatched_ == 0) CmLoop::Instance().SetDeadline(watch_, after);
}

void CmStream::ClearTimeLimit() {
  if (unwatched_ == 0) CmLoop::Instance().ClearDeadline(watch_);
}

void CmStream::Watch(uint32_t events) {
  CmLoop& loop = CmLoop::Instance();
  watch_ = loop.Watch(socket_.get(), events, *this);
  if (watch_ != 0) return;
  unwatched_ = errno;
  watch_ = loop.Watch(-1, 0, *this);
  loop.SetDeadline(watch_, {});
}

// Begins an attempt. A failure that is known at once is told as a later one would be: through
// epoll.
void CmStream::Connect() {
  CmLoop& loop = CmLoop::Instance();
  loop.Forget(watch_);
  DetectDeadHost(socket_.get(), kSilence);
  attempt_->error = StartConnect(socket_.get(), attempt_->peer);
  Watch(EPOLLOUT);
  if (unwatched_ == 0 && attempt_->time_limit != CmLoop::Clock::time_point::max()) {
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
  const SocketAddress bound = SocketAddress::OfSocket(socket_.get());
  socket_ = {};
  socket_ = OpenTcpSocket(bound.family());
  return socket_ && bind(socket_.get(), bound.get(), bound.size()) == 0;
}

bool CmStream::Send(const CmMessage& message) {
  if (outgoing_.size() >= kMostOutgoing * kCmMessageBytes) return false;
  const auto bytes = EncodeCmMessage(message);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  if (attempt_.has_value() || unwatched_ != 0) return true;
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
    const int error = attempt_->error != 0 ? attempt_->error : ConnectResult(socket_.get());
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
  if (unwatched_ != 0) return owner_->OnStreamLost(unwatched_);
  if (!attempt_.has_value() || !attempt_->waits) return owner_->OnStreamLost(ETIMEDOUT);
  attempt_->waits = false;
  if (!ReplaceSocket()) return owner_->OnStreamLost(ECONNREFUSED);
  Connect();
}

// Takes one message at most: its owner may destroy the stream, and epoll reports what is left.
void CmStream::Read() {
  VERBENA_CHECK(received_ < incoming_.size()) << received_ << " bytes of a message";
  const ssize_t got =
      recv(socket_.get(), &incoming_[received_], incoming_.size() - received_, MSG_DONTWAIT);
  if (got < 0 && WouldBlock(errno)) return;
  if (got <= 0) return owner_->OnStreamLost(got == 0 ? ECONNRESET : errno);
  received_ += static_cast<size_t>(got);
  if (received_ < incoming_.size()) return;
  received_ = 0;
  auto message = DecodeCmMessage(incoming_);
  if (!message.ok()) {
    VERBENA_LOG_THROTTLED(RefusedMessages(), kWarning, CmLoop::Clock::now(),
                          fmt::format("rdma_cm: {}; the connection is closed",
                                      std::string(message.status().message())));
    return owner_->OnStreamLost(EPROTO);
  }
  owner_->OnStreamMessage(*message);
}

CmAcceptor::Silent::Silent(CmAcceptor& acceptor, uint64_t id, UniqueFd socket)
    : acceptor_(acceptor), id_(id), stream_(std::make_unique<CmStream>(std::move(socket), *this)) {
  stream_->SetTimeLimit(acceptor.request_time_);
}

void CmAcceptor::Silent::OnStreamMessage(const CmMessage& message) {
  stream_->ClearTimeLimit();
  if (message.kind == CmKind::kRequest) acceptor_.listener_.OnRequest(stream_, message);
  acceptor_.silent_.erase(id_);
}

void CmAcceptor::Silent::OnStreamLost(int /*error*/) { acceptor_.silent_.erase(id_); }

CmAcceptor::CmAcceptor(UniqueFd socket, CmRequestListener& listener,
                       std::chrono::milliseconds request_time)
    : socket_(std::move(socket)),
      listener_(listener),
      request_time_(request_time),
      watch_(CmLoop::Instance().Watch(socket_.get(), EPOLLIN, *this)) {}

CmAcceptor::~CmAcceptor() {
  if (watched()) CmLoop::Instance().Forget(watch_);
}

// One connection each time: epoll reports the next.
void CmAcceptor::OnReady(uint32_t /*events*/) {
  absl::StatusOr<AcceptedSocket> accepted = AcceptSocket(socket_.get(), "rdma_cm");
  if (absl::IsResourceExhausted(accepted.status())) {
    CmLoop::Instance().Change(watch_, 0);
    CmLoop::Instance().SetDeadline(watch_, kPause);
  }
  if (!accepted.ok()) return;
  const std::optional<TcpSource> source = TcpSource::Of(accepted->fd.get());
  if (!source.has_value()) return;
  MakeRoomFor(source->address);
  VERBENA_CHECK(silent_.size() < kMostSilent) << silent_.size() << " connections are silent";
  const uint64_t id = ++last_id_;
  sources_.Add(id, source->address);
  silent_.try_emplace(id, *this, id, std::move(accepted->fd));
}

void CmAcceptor::MakeRoomFor(const IpAddress& newcomer) {
  if (sources_.size() < kMostSilent) return;
  sources_.Forget([this](uint64_t id) { return !silent_.contains(id); });
  if (sources_.size() < kMostSilent) return;
  silent_.erase(sources_.TakeOldestOfMost(newcomer));
}

void CmAcceptor::OnDeadline() { CmLoop::Instance().Change(watch_, EPOLLIN); }

}  // namespace verbena::internal::preload
