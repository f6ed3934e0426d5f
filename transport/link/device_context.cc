#include "verbena/transport/link/device_context.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/rdma_cm.h"
#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
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

// The port, and how peers reach it, may be different now.
bool ChangesAddress(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return true;
    default:
      return false;
  }
}

bool IsRoutine(ibv_event_type type) {
  return type == IBV_EVENT_COMM_EST || type == IBV_EVENT_SQ_DRAINED ||
         type == IBV_EVENT_SRQ_LIMIT_REACHED;
}

bool SameAddress(const PortAddress& one, const PortAddress& other) {
  return one.gid_index == other.gid_index && one.lid == other.lid &&
         std::memcmp(one.gid.raw, other.gid.raw, sizeof(one.gid.raw)) == 0;
}

// The log's line about an event; each link that the event ends logs its own. A port that is down
// ends no link by itself: whatever is sent meanwhile is sent again.
std::string Describe(const Device& device, const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      return fmt::format("{}: port {} is down", device.name(), event.element.port_num);
    case IBV_EVENT_PORT_ACTIVE:
      return fmt::format("{}: port {} is active", device.name(), event.element.port_num);
    case IBV_EVENT_DEVICE_FATAL:
      return fmt::format("{} has failed, or was removed ({}): its links are lost", device.name(),
                         ibv_event_type_str(event.event_type));
    default:
      return fmt::format("{}: asynchronous event {}", device.name(),
                         ibv_event_type_str(event.event_type));
  }
}

// The soft device has one vector.
int CompVectors(Device& device) {
  return device.kind() == DeviceKind::kSoft ? 1 : std::max(device.context()->num_comp_vectors, 1);
}

absl::Status CheckCompVectors(Device& device, const RdmaOptions& options) {
  if (device.kind() == DeviceKind::kSoft) return absl::OkStatus();
  const int last = CompVectors(device) - 1;
  for (const int vector : options.comp_vectors) {
    if (vector >= 0 && vector <= last) continue;
    return absl::InvalidArgumentError(
        fmt::format("RdmaOptions::comp_vectors has {}, but must be in [0, {}]: {} has {} "
                    "completion vectors",
                    vector, last, device.name(), last + 1));
  }
  return absl::OkStatus();
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
  return connect == "rdma_cm" && kind != LinkKind::kSoft && kind != LinkKind::kTcp;
}

bool HasIp(const PortAddress& address, const IpAddress& ip) {
  return std::to_array(address.gid.raw) == ip;
}

// The chosen address of the port, and behind it those like it.
absl::StatusOr<std::vector<PortAddress>> ReadAddresses(Device& device, const DevicePort& port,
                                                       const RdmaOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const PortAddress chosen, ReadPortAddress(device, port, options));
  std::vector<PortAddress> addresses = {chosen};
  for (const uint8_t index : port.alike) {
    const absl::StatusOr<ibv_gid> gid = device.QueryGid(port.port, index);
    if (!gid.ok()) continue;  // it was taken away just now
    addresses.push_back(chosen);
    addresses.back().gid_index = index;
    addresses.back().gid = *gid;
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceContext>> DeviceContext::Create(Device& device,
                                                                     const Options& options) {
  VERBENA_RETURN_IF_ERROR(CheckRdmaOptions(options.rdma));
  VERBENA_RETURN_IF_ERROR(CheckCompVectors(device, options.rdma));
  const DevicePort port = device.default_port();
  VERBENA_ASSIGN_OR_RETURN(std::vector<PortAddress> addresses,
                           ReadAddresses(device, port, options.rdma));
  VERBENA_ASSIGN_OR_RETURN(ibv_pd * pd, device.AllocPd());
  std::unique_ptr<DeviceContext> context(
      new DeviceContext(device, PdHandle(device, pd), std::move(addresses), options));
  VERBENA_RETURN_IF_ERROR(context->ChooseConnector(options));
  context->control_ =
      std::make_unique<ControlPool>(ControlPool::Options{.threads = options.control_threads});
  if (options.event_thread) {
    VERBENA_RETURN_IF_ERROR(context->StartThread(options.start_thread));
  }
  return context;
}

DeviceContext::DeviceContext(Device& device, PdHandle pd, std::vector<PortAddress> addresses,
                             const Options& options)
    : device_(device),
      rdma_(options.rdma),
      on_failure_(options.on_failure),
      pd_(std::move(pd)),
      address_(addresses.front()),
      alike_(addresses.begin() + 1, addresses.end()) {}

DeviceContext::~DeviceContext() {
  StopThread();
  if (stop_fd_ >= 0) close(stop_fd_);
}

void DeviceContext::StopThread() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  // An eventfd's counter takes this write unless it is at its maximum, and then it is readable
  // already.
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
}

absl::Status DeviceContext::Close() {
  StopThread();
  // A pool that is gone may have left it registering an arena.
  control_.reset();
  VERBENA_RETURN_IF_ERROR(device_.DeallocPd(pd_.get()));
  pd_.Release();
  return absl::OkStatus();
}

absl::Status DeviceContext::ChooseConnector(const Options& options) {
  connector_ = options.use_connector;
  if (connector_ != nullptr) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(bool wanted, WantsRdmaCm(options.connect, address_.kind));
  if (!wanted) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(
      owned_connector_,
      RdmaCm::Start({.device = device_.name(),
                     .port = address_.port,
                     .kind = address_.kind,
                     .gid = address_.gid,
                     .traffic_class = static_cast<uint8_t>(rdma_.traffic_class)}));
  connector_ = owned_connector_.get();
  return absl::OkStatus();
}

absl::Status DeviceContext::StartThread(const ThreadStarter& start_thread) {
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return ErrnoStatus(errno, "eventfd for asynchronous device events");
  const auto read = [this] { ReadEvents(); };
  try {
    thread_ = start_thread != nullptr ? start_thread(read) : std::thread(read);
  } catch (const std::system_error& refused) {
    return absl::ResourceExhaustedError(fmt::format(
        "the system starts no thread that reads events of {}: {}", device_.name(), refused.what()));
  }
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
    // Until an event is acknowledged, what it names is not destroyed. Afterwards the device may
    // give the number of the queue pair, or the address of the queue, to another owner. So the
    // owner is looked up first.
    OnEvent(*event);
    device_.AckAsyncEvent(*event);
  }
}

void DeviceContext::OnEvent(const ibv_async_event& event) {
  const ibv_event_type type = event.event_type;
  if (IsQpEvent(type)) {
    Dispatch(type, event.element.qp->qp_num);
    return;
  }
  if (!IsRoutine(type))
    VERBENA_LOG_LINE(kLink, kWarning, Describe(device_, event), {{"device", device_.name()}});
  if (ChangesAddress(type)) RereadAddress();
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      DispatchToQueue(type, event.element.cq);
      break;
    case IBV_EVENT_SRQ_ERR:
      DispatchToQueue(type, event.element.srq);
      break;
    case IBV_EVENT_WQ_FATAL:
      // Links have no work queues of that kind: whose it is cannot be told.
      DispatchToQueues(type);
      break;
    case IBV_EVENT_DEVICE_FATAL:
      DispatchToAll(type);
      if (on_failure_) on_failure_();
      break;
    default:
      break;
  }
}

absl::StatusOr<std::vector<PortAddress>> DeviceContext::ReadAddressesAgain() {
  VERBENA_ASSIGN_OR_RETURN(DevicePort port, device_.ChoosePortAgain());
  absl::StatusOr<std::vector<PortAddress>> read = ReadAddresses(device_, port, rdma_);
  if (!read.ok() || connector_ == nullptr) return read;
  VERBENA_RETURN_IF_ERROR(connector_->MoveTo(read->front().gid));
  return read;
}

void DeviceContext::RereadAddress() {
  // Without an event thread several executors may be here; the last to read has to be the last to
  // keep.
  std::lock_guard<std::mutex> one_at_a_time(reread_mutex_);
  absl::StatusOr<std::vector<PortAddress>> read = ReadAddressesAgain();
  std::lock_guard<std::mutex> lock(mutex_);
  port_status_ = read.status();
  if (!read.ok()) {
    // An address that is missing may come back, whatever opening the device would say of it.
    port_status_ = absl::UnavailableError(std::string(read.status().message()));
    VERBENA_LOG_LINE(kLink, kWarning,
                     fmt::format("{}: no new links for now: {}", device_.name(),
                                 std::string(read.status().message())),
                     {{"device", device_.name()}});
    return;
  }
  const PortAddress& first = read->front();
  if (!SameAddress(first, address_)) {
    VERBENA_LOG_LINE(kLink, kWarning,
                     fmt::format("{}: new links use GID {} and LID {:#x} of port {}",
                                 device_.name(), first.gid_index, first.lid, first.port),
                     {{"device", device_.name()}});
  }
  address_ = first;
  alike_.assign(read->begin() + 1, read->end());
}

int DeviceContext::CompVectorOf(uint32_t executor_index) const {
  if (device_.kind() != DeviceKind::kSoft && executor_index < rdma_.comp_vectors.size()) {
    return rdma_.comp_vectors[executor_index];
  }
  return static_cast<int>(executor_index % static_cast<uint32_t>(CompVectors(device_)));
}

PortAddress DeviceContext::address() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return address_;
}

absl::StatusOr<PortAddress> DeviceContext::CurrentAddress(const std::string& own) const {
  const std::optional<IpAddress> named = connector_ == nullptr ? ParseIp(own) : std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_RETURN_IF_ERROR(port_status_);
  if (!named.has_value() || HasIp(address_, *named)) return address_;
  const auto other = std::ranges::find_if(
      alike_, [&](const PortAddress& address) { return HasIp(address, *named); });
  return other == alike_.end() ? address_ : *other;
}

void DeviceContext::Tell(const Subscription& subscription, ibv_event_type type) {
  subscription.executor->PostFunction([handler = subscription.handler, type]() { handler(type); });
}

void DeviceContext::Dispatch(ibv_event_type type, uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = subscriptions_.find(qpn);
  if (found != subscriptions_.end()) Tell(found->second, type);
}

void DeviceContext::DispatchToQueue(ibv_event_type type, const void* queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = queue_subscriptions_.find(queue);
  if (found != queue_subscriptions_.end()) Tell(found->second, type);
}

void DeviceContext::DispatchToQueues(ibv_event_type type) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [queue, subscription] : queue_subscriptions_) Tell(subscription, type);
}

void DeviceContext::DispatchToAll(ibv_event_type type) {
  DispatchToQueues(type);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [qpn, subscription] : subscriptions_) Tell(subscription, type);
}

void DeviceContext::SubscribeQueue(const void* queue, Executor& executor, EventHandler handler) {
  VERBENA_CHECK(queue != nullptr);
  std::lock_guard<std::mutex> lock(mutex_);
  queue_subscriptions_[queue] = {&executor, std::move(handler)};
}

void DeviceContext::UnsubscribeQueue(const void* queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_subscriptions_.erase(queue);
}

void DeviceContext::Subscribe(uint32_t qpn, Executor& executor, EventHandler handler) {
  std::lock_guard<std::mutex> lock(mutex_);
  subscriptions_[qpn] = {&executor, std::move(handler)};
}

void DeviceContext::Unsubscribe(uint32_t qpn) {
  std::lock_guard<std::mutex> lock(mutex_);
  subscriptions_.erase(qpn);
}

Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> RegisterMemory(const DeviceContext& context,
                                                                       void* memory, size_t bytes,
                                                                       int access,
                                                                       Scheduler* home) {
  co_return co_await context.control().Run(
      ControlKind::kMemory, memory,
      [&device = context.device(), pd = context.pd(), memory, bytes, access, home] {
        return RegisteredMemory::Register(device, pd, memory, bytes, access, home);
      });
}

Task<void> DeregisterMemory(const DeviceContext& context,
                            std::unique_ptr<RegisteredMemory> memory) {
  // Takes the memory out of its ring here, on the home thread. The device, which may take long,
  // comes later.
  if (!memory->LeaveRing()) {
    // A Buffer in use may come home before a control thread destroys the memory, and would leave it
    // in the ring of this thread.
    memory.reset();
    co_return;
  }
  const void* const order = memory->region().data();
  (void)co_await context.control().Finish(ControlKind::kMemory, order,
                                          [memory = std::move(memory)]() mutable {
                                            memory.reset();
                                            return absl::OkStatus();
                                          });
}

}  // namespace verbena::internal
