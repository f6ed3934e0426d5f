#include "verbena/transport/preload/process_device.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/preload/preloaded_devices.h"
#include "verbena/transport/soft/quiet_thread.h"

namespace verbena::internal::preload {
namespace {

// The unicast LIDs of InfiniBand.
constexpr unsigned kFirstLid = 1;
constexpr unsigned kLastLid = 0xbfff;
constexpr int kLidAttempts = 64;

// A device of PreloadedDevices, perhaps open.
struct Known {
  std::weak_ptr<ProcessDevice> open;
  uint16_t last_lid = 0;  // 0: never opened
};

struct KnownDevices {
  std::mutex mutex;
  Known devices[PreloadedDevices::kMaxDevices];
};

// Never destroyed: threads of the program may still use it while the process ends.
KnownDevices& AllKnown() {
  static KnownDevices* known = new KnownDevices;
  return *known;
}

// The GID of this user's soft device with that LID: an IPv6 address of a locally assigned prefix,
// the user, and the LID.
ibv_gid GidOfLid(uint16_t lid) {
  static constexpr uint8_t kPrefix[] = {0xfd, 'v', 'b', 'n'};
  ibv_gid gid{};
  std::memcpy(gid.raw, kPrefix, sizeof(kPrefix));
  const uint32_t user = getuid();
  for (size_t i = 0; i < sizeof(user); ++i) {
    gid.raw[8 + i] = static_cast<uint8_t>(user >> (8 * (sizeof(user) - 1 - i)));
  }
  gid.raw[14] = static_cast<uint8_t>(lid >> 8);
  gid.raw[15] = static_cast<uint8_t>(lid);
  return gid;
}

// The TCP port that the environment names for the device, 0 for any. INVALID_ARGUMENT for a text
// that is no port.
absl::StatusOr<uint16_t> PortWanted(int index) {
  constexpr long kLastPort = 0xffff;
  const char* text = std::getenv("VERBENA_SOFT_PORT");
  if (text == nullptr || *text == '\0') return uint16_t{0};
  char* end = nullptr;
  const long port = std::strtol(text, &end, 10);
  if (*end != '\0' || port < 0 || port > kLastPort - index) {
    return absl::InvalidArgumentError(std::string("VERBENA_SOFT_PORT=") + text +
                                      ": a number from 0 to " + std::to_string(kLastPort - index) +
                                      " is needed, and 0 is for any port");
  }
  return static_cast<uint16_t>(port == 0 ? 0 : port + index);
}

// The TCP wire that the environment asks for, if it does.
absl::StatusOr<std::optional<TcpWireOptions>> TcpWanted(int index) {
  const char* address = std::getenv("VERBENA_SOFT_ADDRESS");
  if (address == nullptr || *address == '\0') return std::nullopt;
  TcpWireOptions tcp{.address = std::strcmp(address, "auto") == 0 ? "" : address};
  VERBENA_ASSIGN_OR_RETURN(tcp.port, PortWanted(index));
  return tcp;
}

absl::StatusOr<std::unique_ptr<SoftDevice>> Create(const char* name, uint16_t lid,
                                                   const std::optional<TcpWireOptions>& tcp) {
  const char* shared = std::getenv("VERBENA_SOFT_SHARED_MEMORY");
  const bool tcp_only = tcp.has_value() && shared != nullptr && std::strcmp(shared, "0") == 0;
  return SoftDevice::Create({.name = name,
                             .shared_memory = !tcp_only,
                             .tcp = tcp,
                             .gid = GidOfLid(lid),
                             // Programs wait for bytes as well as for completions.
                             .least_kernel_copy_bytes = 1,
                             .unpolled_after = std::chrono::microseconds(250)});
}

// The context of the object that `event` concerns, and the event as the program is to see it. The
// object lives until the device's event is acknowledged.
Context* Translate(ibv_async_event& event) {
  const ibv_context* visible = nullptr;
  if (event.event_type == IBV_EVENT_CQ_ERR) {
    auto* cq = static_cast<VisibleCq*>(event.element.cq->cq_context);
    event.element.cq = cq->handle_of();
    visible = cq->context;
  } else if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
    auto* srq = static_cast<VisibleSrq*>(event.element.srq->srq_context);
    event.element.srq = srq;
    visible = srq->context;
  } else {
    auto* qp = static_cast<VisibleQp*>(event.element.qp->qp_context);
    event.element.qp = &qp->qp_base;
    visible = qp->qp_base.context;
  }
  return Context::From(visible);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessDevice>> ProcessDevice::Open(int index, const char* name) {
  std::lock_guard<std::mutex> lock(AllKnown().mutex);
  Known& known = AllKnown().devices[index];
  if (std::shared_ptr<ProcessDevice> open = known.open.lock(); open != nullptr) return open;
  VERBENA_ASSIGN_OR_RETURN(const std::optional<TcpWireOptions> tcp, TcpWanted(index));
  std::random_device random;
  uint16_t lid = known.last_lid;
  absl::Status status;
  // Another LID helps nobody whose address or port is wrong.
  const int attempts = tcp.has_value() ? 1 : kLidAttempts;
  for (int attempt = 0; attempt < attempts; ++attempt, lid = 0) {
    if (lid == 0) lid = static_cast<uint16_t>(kFirstLid + random() % (kLastLid - kFirstLid + 1));
    // Fails while another device has this LID.
    absl::StatusOr<std::unique_ptr<SoftDevice>> device = Create(name, lid, tcp);
    if (!device.ok()) {
      status = device.status();
      continue;
    }
    const int stop_fd = eventfd(0, EFD_CLOEXEC);
    if (stop_fd < 0) return ErrnoStatus(EMFILE, "ibv_open_device");
    std::shared_ptr<ProcessDevice> shared(new ProcessDevice(*std::move(device), lid, stop_fd));
    known.open = shared;
    known.last_lid = lid;
    return shared;
  }
  return status;
}

ProcessDevice::ProcessDevice(std::unique_ptr<SoftDevice> device, uint16_t lid, int stop_fd)
    : device_(std::move(device)), lid_(lid), stop_fd_(stop_fd) {
  const absl::StatusOr<ibv_port_attr> port = device_->QueryPort(1);
  addressed_by_lid_ = port.ok() && port->lid != 0;
  if (addressed_by_lid_) lid_ = port->lid;
  events_ = soft::StartQuietThread([this] { HandOnEvents(); });
}

ProcessDevice::~ProcessDevice() {
  eventfd_write(stop_fd_, 1);
  events_.join();
  close(stop_fd_);
}

ibv_ah_attr ProcessDevice::Resolve(const ibv_ah_attr& address) const {
  if (addressed_by_lid_) return address;
  ibv_ah_attr resolved = address;
  resolved.dlid = 0;
  if (address.is_global != 0) return resolved;
  resolved.is_global = 1;
  resolved.grh = {};
  resolved.grh.dgid = GidOfLid(address.dlid);
  return resolved;
}

void ProcessDevice::HandOnEvents() {
  pollfd watched[2] = {{.fd = device_->async_fd(), .events = POLLIN, .revents = 0},
                       {.fd = stop_fd_, .events = POLLIN, .revents = 0}};
  while (true) {
    poll(watched, 2, -1);
    if (watched[1].revents != 0) return;
    absl::StatusOr<ibv_async_event> event = device_->GetAsyncEvent();
    if (!event.ok()) continue;
    ibv_async_event inner = *event;
    Translate(*event)->events().Push({.element = event->element.qp, .type = event->event_type});
    device_->AckAsyncEvent(inner);
  }
}

}  // namespace verbena::internal::preload
