#include "verbena/transport/preload/rdma_cm_acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/tcp_source.h"

namespace verbena::internal::preload {
namespace {

// How long it leaves connections waiting when the process has no descriptors left.
constexpr auto kPause = std::chrono::milliseconds(100);

bool OutOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

CmAcceptor::Silent::Silent(CmAcceptor& acceptor, uint64_t id, soft::UniqueFd socket)
    : acceptor_(acceptor), id_(id), stream_(std::make_unique<CmStream>(std::move(socket), *this)) {
  stream_->SetTimeLimit(acceptor.request_time_);
}

void CmAcceptor::Silent::OnStreamMessage(const CmMessage& message) {
  stream_->ClearTimeLimit();
  if (message.kind == CmKind::kRequest) acceptor_.listener_.OnRequest(stream_, message);
  acceptor_.silent_.erase(id_);
}

void CmAcceptor::Silent::OnStreamLost(int /*error*/) { acceptor_.silent_.erase(id_); }

CmAcceptor::CmAcceptor(soft::UniqueFd socket, CmRequestListener& listener,
                       std::chrono::milliseconds request_time)
    : socket_(std::move(socket)),
      listener_(listener),
      request_time_(request_time),
      watch_(CmLoop::Instance().Watch(socket_.get(), EPOLLIN, *this)) {}

CmAcceptor::~CmAcceptor() { CmLoop::Instance().Forget(watch_); }

// One connection each time: epoll reports the next.
void CmAcceptor::OnReady(uint32_t /*events*/) {
  soft::UniqueFd accepted(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted) {
    if (OutOfResources(errno)) {
      CmLoop::Instance().Change(watch_, 0);
      CmLoop::Instance().SetDeadline(watch_, kPause);
    }
    return;
  }
  const absl::StatusOr<soft::TcpSource> source = soft::SourceOf(accepted.get());
  if (!source.ok()) return;
  MakeRoomFor(source->address);
  const uint64_t id = ++last_id_;
  sources_.Add(id, source->address);
  silent_.try_emplace(id, *this, id, std::move(accepted));
}

void CmAcceptor::MakeRoomFor(const ibv_gid& newcomer) {
  if (sources_.size() < kMostSilent) return;
  sources_.Forget([this](uint64_t id) { return !silent_.contains(id); });
  if (sources_.size() < kMostSilent) return;
  silent_.erase(sources_.TakeOldestOfMost(newcomer));
}

void CmAcceptor::OnDeadline() { CmLoop::Instance().Change(watch_, EPOLLIN); }

}  // namespace verbena::internal::preload
