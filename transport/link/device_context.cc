#include "verbena/transport/link/device_context.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

bool IsQpEvent(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

bool IsRoutine(ibv_event_type type) {
  return type == IBV_EVENT_COMM_EST || type == IBV_EVENT_SQ_DRAINED ||
         type == IBV_EVENT_SRQ_LIMIT_REACHED;
}

// What the log says of an event; of links that it ends, each says more. A port that is down ends
// none by itself: what is sent meanwhile is sent again.
std::string Describe(const Device& device, const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      return fmt::format("{}: port {} is down", device.name(), event.element.port_num);
    case IBV_EVENT_PORT_ACTIVE:
      return fmt::format("{}: port {} is active", device.name(), event.element.port_num);
    default:
      return fmt::format("{}: asynchronous event {}", device.name(),
                         ibv_event_type_str(event.event_type));
  }
}

absl::StatusOr<bool> WantsRdmaCm(const std::string& connect, LinkKind kind) {
  if (connect.empty() || connect == "auto") {
    const char* set = std::getenv("VERBENA_CONNECT");
    const std::string from_environment = set == nullptr ? "" : set;
    const bool decides = !from_environment.empty() && from_environment != "auto";
    if (decides) return WantsRdmaCm(from_environment, kind);
    return kind == LinkKind::kIwarp;
  }
  if (connect != "exchange" && connect != "rdma_cm") {
    return absl::InvalidArgumentError(fmt::format(
        "queue pairs cannot be connected by \"{}\": auto, exchange or rdma_cm", connect));
  }
  if (connect == "exchange" && kind == LinkKind::kIwarp) {
    return absl::FailedPreconditionError(
        "iWARP queue pairs are connected through rdma_cm alone, not by exchange");
  }
  return connect == "rdma_cm" && kind != LinkKind::kSoft;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceContext>> DeviceContext::Create(Device& device,
                                                                     const Options& options) {
  const DevicePort port = device.default_port();
  absl::StatusOr<PortAddress> address = ReadPortAddress(device, port);
  if (!address.ok()) return address.status();
  absl::StatusOr<ibv_pd*> pd = device.AllocPd();
  if (!pd.ok()) return pd.status();
  std::unique_ptr<DeviceContext> context(
      new DeviceContext(device, PdHandle(device, *pd), *address));
  if (absl::Status status = context->ChooseConnector(options); !status.ok()) return status;
  if (options.event_thread) {
    if (absl::Status status = context->StartThread(); !status.ok()) return status;
  }
  return context;
}

DeviceContext::DeviceContext(Device& device, PdHandle pd, const PortAddress& address)
    : device_(device), pd_(std::move(pd)), address_(address) {}

DeviceContext::~DeviceContext() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // An eventfd's counter takes this write unless it is at its maximum, and then it is readable
    // already.
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
    thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
}

absl::Status DeviceContext::ChooseConnector(const Options& options) {
  connector_ = options.use_connector;
  if (connector_ != nullptr) return absl::OkStatus();
  absl::StatusOr<bool> wanted = WantsRdmaCm(options.connect, address_.kind);
  if (!wanted.ok()) return wanted.status();
  if (!*wanted) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<RdmaCm>> started = RdmaCm::Start({.device = device_.name(),
                                                                   .port = address_.port,
                                                                   .kind = address_.kind,
                                                                   .gid = address_.gid});
  if (!started.ok()) return started.status();
  owned_connector_ = *std::move(started);
  connector_ = owned_connector_.get();
  return absl::OkStatus();
}

absl::Status DeviceContext::StartThread() {
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return ErrnoStatus(errno, "eventfd for asynchronous device events");
  thread_ = std::thread([this] { ReadEvents(); });
  return absl::OkStatus();
}

void DeviceContext::ReadEvents() {
  pollfd fds[2] = {{device_.async_fd(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, /*timeout=*/-1) < 0 && errno != EINTR) return;
    if ((fds[1].revents & POLLIN) != 0) return;
    PollEvents();
    // A device that was removed has no more events, and would wake us for ever.
    if ((fds[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) fds[0].fd = -1;
  }
}

void DeviceContext::PollEvents() {
  while (true) {
    absl::StatusOr<ibv_async_event> event = device_.GetAsyncEvent();
    if (!event.ok()) return;
    const ibv_event_type type = event->event_type;
    const uint32_t qpn = IsQpEvent(type) ? event->element.qp->qp_num : 0;
    device_.AckAsyncEvent(*event);
    if (qpn != 0) {
      Dispatch(type, qpn);
      continue;
    }
    if (type == IBV_EVENT_DEVICE_FATAL) DispatchToAll(type);
    if (!IsRoutine(type)) {
      Log(LogLevel::kWarning, Describe(device_, *event));
    }
  }
}

void DeviceContext::Dispatch(ibv_event_type type, uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = subscriptions_.find(qpn);
  if (found == subscriptions_.end()) return;
  found->second.executor->PostFunction(
      [handler = found->second.handler, type]() { handler(type); });
}

void DeviceContext::DispatchToAll(ibv_event_type type) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [qpn, subscription] : subscriptions_) {
    subscription.executor->PostFunction(
        [handler = subscription.handler, type]() { handler(type); });
  }
}

void DeviceContext::Subscribe(uint32_t qpn, Executor& executor, EventHandler handler) {
  std::lock_guard<std::mutex> lock(mutex_);
  subscriptions_[qpn] = {&executor, std::move(handler)};
}

void DeviceContext::Unsubscribe(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  subscriptions_.erase(qpn);
}

}  // namespace verbena
