#include "verbena/transport/soft/shared_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/lane.h"

namespace verbena::internal::soft {
namespace {

constexpr size_t kMaxConnections = 4096;
// A peer accepts 32 connections in a turn of its engine, and 100 ms later if it has no descriptors.
// (start)
constexpr Duration kBusyDelay = std::chrono::milliseconds(20);
constexpr Duration kBusyPatience = std::chrono::milliseconds(200);

// The mapped memory of a Peer in another process.
struct MappedShare {
  SharedRegion controls;
  SharedRegion tables;
};

// Refuses a doorbell that is not an eventfd like `ours`, or that waits for room: executors write to
// it, and it could hold them up. A malicious peer may still make it wait later (docs/peers.md).
absl::Status CheckDoorbell(int theirs, int ours) {
  struct stat their_file{};
  struct stat our_file{};
  const int flags = fcntl(theirs, F_GETFL);
  if (flags < 0 || fstat(theirs, &their_file) != 0 || fstat(ours, &our_file) != 0) {
    return ErrnoStatus(errno, "looking at a soft device's doorbell");
  }
  // All eventfds share one inode. Other files with that inode (an epoll, say) refuse the write.
  const bool is_eventfd =
      their_file.st_dev == our_file.st_dev && their_file.st_ino == our_file.st_ino;
  if (is_eventfd && (flags & O_NONBLOCK) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a soft device's doorbell is not an eventfd, or waits for room");
}

absl::Status ClaimsOurs(const DeviceAddress& address) {
  return absl::PermissionDeniedError(
      fmt::format("it claims the address {} of a device of this process: give each soft device "
                  "an address of its own",
                  AddressText(address)));
}

}  // namespace

SharedWire::~SharedWire() = default;

absl::Status SharedWire::Start() {
  VERBENA_ASSIGN_OR_RETURN(listener_, ControlListener::Create(state_.name(), state_.address()));
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_->fd(), &event) != 0) {
    return ErrnoStatus(errno, "the epoll of a soft device");
  }
  return absl::OkStatus();
}

void SharedWire::Connect(const ConnectRequest& request) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  requests_.push_back(request);
}

void SharedWire::Forget(const ConnectRequest& request) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  forgotten_.push_back(request);
}

void SharedWire::CloseLane(const DeviceAddress& address, uint64_t lane) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  closings_.push_back({address, lane});
}

TimePoint SharedWire::next() const {
  TimePoint next = std::min(listener_->retry(), next_deadline_);
  for (const BusyPeer& busy : busy_) next = std::min(next, busy.next);
  return next;
}

bool SharedWire::Serve(TimePoint now) {
  now_ = now;
  TryBusyPeers();
  TakeRequests();
  if (now >= listener_->retry()) AcceptSome(now);
  epoll_event events[32];
  const int count = epoll_wait(epoll_.get(), events, 32, 0);
  for (int i = 0; i < count; ++i) {
    auto* connection = static_cast<Connection*>(events[i].data.ptr);
    if (connection == nullptr) {
      AcceptSome(now);
    } else {
      Read(*connection);
    }
  }
  if (now >= next_deadline_) EndOverdue();
  Sweep();
  return count > 0;
}

void SharedWire::TakeRequests() {
  std::vector<ConnectRequest> requests;
  std::vector<ConnectRequest> forgotten;
  std::vector<Closing> closings;
  {
    std::lock_guard<std::mutex> lock(requests_mutex_);
    requests.swap(requests_);
    forgotten.swap(forgotten_);
    closings.swap(closings_);
  }
  for (const ConnectRequest& request : requests) {
    StartRequest(request, SaturatingAdd(now_, kBusyPatience));
  }
  for (const ConnectRequest& request : forgotten) ForgetRequest(request);
  TellOfArenas();
  for (const Closing& closing : closings) {
    Connection* connection = Outbound(closing.address);
    if (connection == nullptr) continue;
    ControlMessage message{.kind = ControlMessage::kCloseLane, .lane = closing.lane};
    absl::Status status = connection->socket->Send(message);
    if (!status.ok()) End(*connection, status);
    Watch(*connection);
  }
}

void SharedWire::AnnounceArena(std::shared_ptr<const SharedArena> arena) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  const uint32_t id = arena->id;
  arena_news_.push_back({id, std::move(arena)});
}

void SharedWire::WithdrawArena(uint32_t id) {
  std::lock_guard<std::mutex> lock(requests_mutex_);
  arena_news_.push_back({id, nullptr});
}

void SharedWire::TellOfArenas() {
  std::vector<ArenaNews> news;
  {
    std::lock_guard<std::mutex> lock(requests_mutex_);
    news.swap(arena_news_);
  }
  for (const ArenaNews& item : news) {
    for (auto& connection : connections_) {
      if (connection->over || !connection->told_of_arenas) continue;
      absl::Status status =
          item.arena != nullptr
              ? SendArena(*connection, item.arena)
              : connection->socket->Send({.kind = ControlMessage::kArenaGone, .arena = item.id});
      if (!status.ok()) End(*connection, status);
      Watch(*connection);
    }
  }
}

absl::Status SharedWire::SendArena(Connection& connection,
                                   const std::shared_ptr<const SharedArena>& arena) {
  return connection.socket->Send(
      {.kind = ControlMessage::kArena, .arena = arena->id, .arena_bytes = arena->region.size()},
      {arena->region.fd()}, arena);
}

void SharedWire::StartRequest(const ConnectRequest& request, TimePoint until) {
  const auto busy = std::ranges::find(busy_, request.address, &BusyPeer::address);
  if (busy != busy_.end()) {
    busy->requests.push_back(request);
    return;
  }
  Connection* connection = Outbound(request.address);
  if (connection == nullptr) connection = Dial(request, until);
  if (connection == nullptr) return;
  if (connection->peer == nullptr) {
    connection->unsent.push_back(request);
  } else if (absl::Status status = SendResolve(*connection, request); !status.ok()) {
    End(*connection, status);
  }
}

SharedWire::Connection* SharedWire::Dial(const ConnectRequest& request, TimePoint until) {
  auto socket = ControlSocket::Connect(request.address);
  if (absl::IsAborted(socket.status())) {
    if (now_ < until && busy_.size() < kMaxBusyPeers) {
      busy_.push_back({request.address, SaturatingAdd(now_, kBusyDelay), until, {request}});
      return nullptr;
    }
    socket = absl::UnavailableError(socket.status().message());
  }
  if (!socket.ok()) {
    VERBENA_LOG_THROTTLED(
        log_, kInfo, now_,
        fmt::format("{}: no soft device of this host answers under {}: {}", state_.name(),
                    AddressText(request.address), socket.status().ToString()),
        {{"device", state_.name()}, {"peer", AddressText(request.address)}});
    host_.ConnectByTcp(request, socket.status());
    return nullptr;
  }
  absl::StatusOr<Connection*> added = Add(*std::move(socket));
  if (!added.ok()) {
    host_.ConnectByTcp(request, added.status());
    return nullptr;
  }
  Connection* connection = *added;
  connection->outbound = true;
  connection->address = request.address;
  if (absl::Status status = SendHello(*connection); !status.ok()) {
    End(*connection, status);
    host_.ConnectByTcp(request, status);
    return nullptr;
  }
  return connection;
}

void SharedWire::ForgetRequest(const ConnectRequest& request) {
  const auto same = [&](const ConnectRequest& one) {
    return one.qpn == request.qpn && one.remote_qpn == request.remote_qpn;
  };
  const auto busy = std::ranges::find(busy_, request.address, &BusyPeer::address);
  if (busy != busy_.end()) std::erase_if(busy->requests, same);
  Connection* connection = Outbound(request.address);
  if (connection == nullptr) return;
  std::erase_if(connection->unsent, same);
  connection->questions.Forget(request);
  absl::Status status = connection->questions.CheckUnanswered();
  if (!status.ok()) End(*connection, status);
}

void SharedWire::TryBusyPeers() {
  const auto due =
      std::ranges::partition(busy_, [this](const BusyPeer& busy) { return now_ < busy.next; });
  const std::vector<BusyPeer> again(std::make_move_iterator(due.begin()),
                                    std::make_move_iterator(due.end()));
  busy_.erase(due.begin(), due.end());
  for (const BusyPeer& busy : again) {
    for (const ConnectRequest& request : busy.requests) StartRequest(request, busy.until);
  }
}

SharedWire::Connection* SharedWire::Outbound(const DeviceAddress& address) {
  for (auto& connection : connections_) {
    if (connection->outbound && !connection->over && connection->address == address) {
      return connection.get();
    }
  }
  return nullptr;
}

absl::StatusOr<SharedWire::Connection*> SharedWire::Add(std::unique_ptr<ControlSocket> socket) {
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->deadline = SaturatingAdd(now_, kGreetingPatience);
  Connection* raw = connection.get();
  epoll_event event{.events = EPOLLIN, .data = {.ptr = raw}};
  int error = 0;
  for (const int fd : {raw->socket->fd(), raw->socket->pid_fd()}) {
    if (fd >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) error = errno;
  }
  if (error != 0) {
    absl::Status status =
        ErrnoStatus(error, "epoll_ctl(ADD), which fs.epoll.max_user_watches bounds");
    VERBENA_LOG_THROTTLED(log_, kWarning, now_,
                          fmt::format("{} refuses process {}: {}", state_.name(),
                                      raw->socket->pid(), status.ToString()),
                          {{"device", state_.name()}});
    Unwatch(*raw);
    return status;
  }
  connections_.push_back(std::move(connection));
  Until(raw->deadline);
  return raw;
}

void SharedWire::Unwatch(const Connection& connection) {
  // A child of this process may hold copies of the descriptors, which would keep them watched.
  for (const int fd : {connection.socket->fd(), connection.socket->pid_fd()}) {
    if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void SharedWire::Change(int fd, uint32_t events, Connection* connection) {
  epoll_event event{.events = events, .data = {.ptr = connection}};
  const int failed = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  VERBENA_CHECK(failed == 0) << "descriptor " << fd << ", errno " << errno;
}

void SharedWire::Watch(Connection& connection) {
  if (connection.over) return;
  const uint32_t writable = connection.socket->has_waiting() ? uint32_t{EPOLLOUT} : 0;
  Change(connection.socket->fd(), EPOLLIN | writable, &connection);
}

void SharedWire::AcceptSome(TimePoint now) {
  const size_t room = kMaxConnections - std::min(kMaxConnections, connections_.size());
  for (std::unique_ptr<ControlSocket>& socket : listener_->Accept(room, now)) {
    absl::StatusOr<Connection*> connection = Add(std::move(socket));
    if (!connection.ok()) continue;
    absl::Status status = SendHello(**connection);
    if (!status.ok()) End(**connection, status);
  }
  Change(listener_->fd(), listener_->retry() == kNever ? uint32_t{EPOLLIN} : 0, nullptr);
}

void SharedWire::Read(Connection& connection) {
  if (connection.closed) return;
  if (connection.over) {
    AwaitEnd(connection);
    return;
  }
  absl::Status status = connection.socket->Flush().status();
  // Epoll names the connection again if messages are left.
  bool waits = true;
  for (size_t i = 0; i < kMessagesAtOnce && waits && status.ok(); ++i) {
    auto received = connection.socket->Receive();
    waits = !absl::IsUnavailable(received.status());
    if (received.ok()) {
      status = Handle(connection, *std::move(received));
    } else if (waits) {
      status = received.status();
    }
  }
  if (!status.ok()) {
    End(connection, status);
    return;
  }
  // The pidfd of a process that ended, while a child of it still holds the socket. What it said
  // before counts.
  pollfd ended{.fd = connection.socket->pid_fd(), .events = POLLIN, .revents = 0};
  if (!waits && ended.fd >= 0 && poll(&ended, 1, 0) == 1) {
    End(connection, absl::AbortedError("the process of the other soft device ended"));
    return;
  }
  Watch(connection);
}

absl::Status SharedWire::Handle(Connection& connection, ControlSocket::Received received) {
  const ControlMessage& message = received.message;
  if (message.kind == ControlMessage::kHello) {
    return HandleHello(connection, std::move(received));
  }
  if (connection.peer == nullptr) {
    return absl::InvalidArgumentError("a soft device did not introduce itself");
  }
  switch (message.kind) {
    case ControlMessage::kResolve: {
      const std::optional<uint64_t> cq = host_.ReceiveCqOf(message.qpn);
      return connection.socket->Send({.kind = ControlMessage::kResolved,
                                      .request = message.request,
                                      .receive_cq = cq.value_or(0),
                                      .found = cq.has_value() ? 1u : 0u});
    }
    case ControlMessage::kResolved:
      return HandleResolved(connection, message);
    case ControlMessage::kLane:
      return HandleLane(connection, std::move(received));
    case ControlMessage::kLaneRefused:
      host_.FailLane(*connection.peer, message.lane);
      return absl::OkStatus();
    case ControlMessage::kCloseLane:
      host_.RemoveLane(*connection.peer, message.lane);
      return absl::OkStatus();
    case ControlMessage::kArena: {
      if (received.descriptors.size() != 1) {
        return absl::InvalidArgumentError("a soft device announced an arena without its memory");
      }
      VERBENA_ASSIGN_OR_RETURN(
          SharedRegion region,
          SharedRegion::Map(received.descriptors[0].Release(), message.arena_bytes,
                            SharedRegion::Access::kReadWrite));
      // The peer has freed those before it, which its other connection may say later.
      if (message.arena > kMaxArenas) {
        host_.ReleaseArena(*connection.peer, message.arena - kMaxArenas);
      }
      return connection.peer->AddArena(message.arena, std::move(region));
    }
    case ControlMessage::kArenaGone:
      host_.ReleaseArena(*connection.peer, message.arena);
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("a soft device sent a message of unknown kind");
  }
}

absl::Status SharedWire::HandleHello(Connection& connection, ControlSocket::Received received) {
  const ControlMessage& message = received.message;
  if (connection.peer != nullptr || received.descriptors.size() != 3 ||
      (connection.outbound && connection.address != message.address())) {
    return absl::InvalidArgumentError("a soft device introduced itself wrongly");
  }
  // While one of our own devices is being made, another one may dial it.
  const bool is_ours = connection.socket->pid() == getpid();
  if (!is_ours && host_.IsLocal(message.address())) return ClaimsOurs(message.address());
  VERBENA_RETURN_IF_ERROR(
      CheckDoorbell(received.descriptors[2].get(), state_.engine().doorbell_fd()));
  connection.address = message.address();
  connection.deadline = kNever;
  VERBENA_RETURN_IF_ERROR(EndPredecessor(connection, received.descriptors[0].get()));
  auto share = std::make_shared<MappedShare>();
  VERBENA_ASSIGN_OR_RETURN(
      share->controls,
      SharedRegion::Map(received.descriptors[0].Release(), sizeof(CqControl) * kMaxCompletionQueues,
                        SharedRegion::Access::kReadWrite));
  VERBENA_ASSIGN_OR_RETURN(
      share->tables, SharedRegion::Map(received.descriptors[1].Release(), sizeof(DeviceTables),
                                       SharedRegion::Access::kReadOnly));
  const int pid_fd = connection.socket->pid_fd();
  UniqueFd process(pid_fd < 0 ? -1 : fcntl(pid_fd, F_DUPFD_CLOEXEC, 0));
  if (pid_fd >= 0 && !process) {
    return ErrnoStatus(errno, "another descriptor of a soft device's process");
  }
  connection.peer = host_.AddPeer(std::make_shared<Peer>(
      PeerParts{.address = connection.address,
                .controls = reinterpret_cast<CqControl*>(share->controls.data()),
                .tables = reinterpret_cast<const DeviceTables*>(share->tables.data()),
                .doorbell = std::move(received.descriptors[2]),
                .keep_alive = share,
                .pid = connection.socket->pid(),
                .pid_fd = std::move(process),
                .least_by_kernel = state_.options().least_kernel_copy_bytes}));
  // A device of ours may have got that address since, and a peer that this connection must not end.
  if (!is_ours && connection.peer->in_process()) {
    connection.peer = nullptr;
    return ClaimsOurs(connection.address);
  }
  // Before its QPs are connected, so that the first one-sided operation finds them mapped.
  connection.told_of_arenas = true;
  for (const std::shared_ptr<const SharedArena>& arena : host_.SharedArenas()) {
    VERBENA_RETURN_IF_ERROR(SendArena(connection, arena));
  }
  // Those behind one that fails stay, for whoever ends the connection.
  while (!connection.unsent.empty()) {
    const ConnectRequest request = std::move(connection.unsent.back());
    connection.unsent.pop_back();
    VERBENA_RETURN_IF_ERROR(SendResolve(connection, request));
  }
  return absl::OkStatus();
}

absl::Status SharedWire::EndPredecessor(Connection& connection, int controls) {
  struct stat file{};
  if (fstat(controls, &file) != 0) return ErrnoStatus(errno, "fstat of a soft device's memory");
  connection.controls_inode = file.st_ino;
  for (auto& each : connections_) {
    if (each->over || each->peer == nullptr || each->address != connection.address) continue;
    if (IsSameDevice(connection, *each)) continue;
    if (!MayFollow(connection, *each)) {
      return absl::PermissionDeniedError(
          fmt::format("it claims the address {} of process {}, which has not ended: give each "
                      "soft device an address of its own",
                      AddressText(each->address), each->socket->pid()));
    }
    End(*each, absl::AbortedError("another process has its address now"));
  }
  return absl::OkStatus();
}

bool SharedWire::IsSameProcess(const Connection& connection, const Connection& other) {
  const pid_t pid = connection.socket->pid();
  return pid != 0 && pid == other.socket->pid();
}

bool SharedWire::IsSameDevice(const Connection& connection, const Connection& other) {
  if (connection.controls_inode != other.controls_inode) return false;
  const bool are_unseen = connection.socket->pid() == 0 && other.socket->pid() == 0;
  const bool have_met = are_unseen && connection.outbound != other.outbound;
  return have_met || IsSameProcess(connection, other);
}

bool SharedWire::MayFollow(const Connection& connection, const Connection& other) {
  return connection.outbound || IsSameProcess(connection, other) || other.socket->PeerIsGone();
}

absl::Status SharedWire::HandleResolved(Connection& connection, const ControlMessage& message) {
  VERBENA_ASSIGN_OR_RETURN(std::optional<ConnectRequest> asked,
                           connection.questions.Answered(message.request));
  if (!asked.has_value()) return absl::OkStatus();
  const ConnectRequest request = *std::move(asked);
  if (message.found == 0) {
    host_.FinishConnect(request, nullptr, 0);
    request.Found();
    return absl::OkStatus();
  }
  WireHost::NewLane lane = host_.FinishConnect(request, connection.peer, message.receive_cq);
  request.Found();
  if (lane.memory == nullptr) return absl::OkStatus();
  const LaneGeometry& geometry = lane.memory->geometry();
  return connection.socket->Send({.kind = ControlMessage::kLane,
                                  .receive_cq = message.receive_cq,
                                  .lane = lane.id,
                                  .send_cq_index = lane.send_cq_index,
                                  .request_lines = geometry.request_lines,
                                  .answer_lines = geometry.answer_lines},
                                 {lane.memory->fd()}, lane.memory);
}

absl::Status SharedWire::HandleLane(Connection& connection, ControlSocket::Received received) {
  const ControlMessage& message = received.message;
  const LaneGeometry geometry{.request_lines = message.request_lines,
                              .answer_lines = message.answer_lines};
  if (received.descriptors.size() != 1 || !geometry.valid() ||
      message.send_cq_index >= kMaxCompletionQueues) {
    return absl::InvalidArgumentError("a soft device announced a lane that makes no sense");
  }
  VERBENA_ASSIGN_OR_RETURN(SharedRegion region,
                           SharedRegion::Map(received.descriptors[0].Release(), BytesOf(geometry),
                                             SharedRegion::Access::kReadWrite));
  auto memory = std::make_shared<LaneMemory>(std::move(region), geometry);
  if (host_.AcceptLane(connection.peer, message.send_cq_index, message.receive_cq, message.lane,
                       std::move(memory))) {
    return absl::OkStatus();
  }
  return connection.socket->Send({.kind = ControlMessage::kLaneRefused, .lane = message.lane});
}

absl::Status SharedWire::SendHello(Connection& connection) {
  std::shared_ptr<const DeviceShare> share = state_.share();
  return connection.socket->Send(
      {.kind = ControlMessage::kHello, .gid = state_.address().gid, .lid = state_.address().lid},
      {share->controls.fd(), share->tables_read_only.get(), state_.engine().doorbell_fd()}, share);
}

absl::Status SharedWire::SendResolve(Connection& connection, const ConnectRequest& request) {
  const uint64_t id = next_request_++;
  connection.questions.Ask(id, request, now_);
  Until(connection.questions.next());
  absl::Status status = connection.socket->Send(
      {.kind = ControlMessage::kResolve, .request = id, .qpn = request.remote_qpn});
  Watch(connection);
  return status;
}

void SharedWire::End(Connection& connection, const absl::Status& reason) {
  if (connection.over) return;
  const std::shared_ptr<Peer> peer = connection.peer;
  if (peer == nullptr) {
    VERBENA_LOG_THROTTLED(log_, kWarning, now_,
                          fmt::format("{} gives up on process {}: {}", state_.name(),
                                      connection.socket->pid(), reason.ToString()),
                          {{"device", state_.name()}});
    EndSending(connection, reason);
    return;
  }
  VERBENA_LOG_THROTTLED(
      log_, kInfo, now_,
      fmt::format("{}: the soft device {} of process {} is lost: {}", state_.name(),
                  AddressText(connection.address), connection.socket->pid(), reason.ToString()),
      {{"device", state_.name()}, {"peer", AddressText(connection.address)}});
  // In this order: the peer takes the end of our connections for the end of our copies.
  host_.LosePeer(*peer);
  for (auto& each : connections_) {
    if (each->peer == peer && !each->over) EndSending(*each, reason);
  }
}

void SharedWire::EndSending(Connection& connection, const absl::Status& reason) {
  connection.over = true;
  connection.socket->EndSending();
  for (const ConnectRequest& request : connection.unsent) {
    // The process never introduced itself: perhaps it is another user's.
    host_.ConnectByTcp(request, reason);
  }
  for (const ConnectRequest& request : connection.questions.TakeAll()) {
    host_.FinishConnect(request, nullptr, 0);
    request.NotFound(reason);
  }
  connection.unsent.clear();
  Change(connection.socket->fd(), EPOLLIN, &connection);
  AwaitEnd(connection);
}

void SharedWire::AwaitEnd(Connection& connection) {
  // Nobody copies on behalf of a connection without a peer.
  if (connection.peer != nullptr && !connection.socket->PeerHasEnded(kMessagesAtOnce)) return;
  connection.closed = true;
  Unwatch(connection);
  if (connection.peer == nullptr) return;
  // A process that could not take our greeting ends that connection alone.
  for (const auto& each : connections_) {
    if (each->peer == connection.peer && !each->closed) return;
  }
  connection.peer->SetGone();
}

void SharedWire::EndOverdue() {
  next_deadline_ = kNever;
  for (auto& each : connections_) {
    if (each->over) continue;
    if (each->peer == nullptr && each->deadline <= now_) {
      End(*each,
          absl::DeadlineExceededError("it did not introduce itself in time (process stopped?)"));
      continue;
    }
    for (const ConnectRequest& late : each->questions.TakeOverdue(now_)) {
      const absl::Status reason = absl::DeadlineExceededError(
          fmt::format("{} does not say in time how queue pair {} is reached (process stopped?)",
                      AddressText(each->address), late.remote_qpn));
      VERBENA_LOG_THROTTLED(log_, kInfo, now_,
                            fmt::format("{}: {}", state_.name(), std::string(reason.message())));
      host_.FinishConnect(late, nullptr, 0);
      late.NotFound(reason);
    }
    if (absl::Status status = each->questions.CheckUnanswered(); !status.ok()) {
      End(*each, status);
    } else {
      Until(std::min(each->deadline, each->questions.next()));
    }
  }
}

void SharedWire::Sweep() {
  std::erase_if(connections_, [](const auto& connection) { return connection->closed; });
}

}  // namespace verbena::internal::soft
