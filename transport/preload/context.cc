#include "verbena/transport/preload/context.h"

#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::preload {
namespace {

bool Verbose() {
  static const bool verbose = [] {
    const char* value = std::getenv("VERBENA_SOFT_VERBOSE");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return verbose;
}

int ErrnoOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
      return ENOMEM;
    case absl::StatusCode::kPermissionDenied:
      return EACCES;
    case absl::StatusCode::kNotFound:
      return ENODEV;
    case absl::StatusCode::kUnimplemented:
      return EOPNOTSUPP;
    case absl::StatusCode::kFailedPrecondition:
      return EBUSY;
    case absl::StatusCode::kUnavailable:
      return EAGAIN;
    case absl::StatusCode::kInternal:
      return EIO;
    default:
      return EINVAL;
  }
}

// The number in VERBENA_SOFT_DEVICES, 1 if there is none.
int DevicesWanted() {
  const char* value = std::getenv("VERBENA_SOFT_DEVICES");
  if (value == nullptr) return 1;
  char* end = nullptr;
  const long wanted = std::strtol(value, &end, 10);
  if (end != value && *end == '\0' && wanted >= 0 && wanted <= PreloadedDevices::kMaxDevices) {
    return static_cast<int>(wanted);
  }
  std::fprintf(stderr,
               "verbena soft device: VERBENA_SOFT_DEVICES=%s: a number from 0 to %d is needed; "
               "there is 1 device\n",
               value, PreloadedDevices::kMaxDevices);
  return 1;
}

// Tells hosts apart; 0 where there is no machine-id.
uint32_t HostNumber() {
  unsigned number = 0;
  if (FILE* file = std::fopen("/etc/machine-id", "re"); file != nullptr) {
    if (std::fscanf(file, "%8x", &number) != 1) number = 0;
    std::fclose(file);
  }
  return number;
}

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

constexpr uint32_t kVendor = 0x76626e;  // "vbn"

// Whether all objects of the kind are gone.
template <typename T, typename Destroy>
bool DestroyAll(const Context* owner, Destroy destroy) {
  for (const void* handle : Registry::Get().HandlesOf(owner, T::kKind)) {
    DestroyObject<T>(handle, destroy);
  }
  return Registry::Get().HandlesOf(owner, T::kKind).empty();
}

}  // namespace

void MakeBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

bool AwaitReadable(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return false;
  if ((flags & O_NONBLOCK) != 0) {
    errno = EAGAIN;
    return false;
  }
  pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&watched, 1, -1) == 1;
}

int SetErrno(const absl::Status& status) {
  if (status.ok()) return 0;
  if (Verbose()) {
    std::fprintf(stderr, "verbena soft device: %s\n", std::string(status.message()).c_str());
  }
  return SetErrno(ErrnoOf(status.code()));
}

int SetErrno(int error) {
  errno = error;
  return error;
}

int Refuse(const char* why) {
  static std::mutex mutex;
  // Bounded: the literals of this library.
  static std::vector<const char*>* said = new std::vector<const char*>;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (std::find(said->begin(), said->end(), why) == said->end()) {
      said->push_back(why);
      std::fprintf(stderr, "verbena soft device: %s\n", why);
    }
  }
  return SetErrno(EOPNOTSUPP);
}

void* RealFunction(const char* name) {
  static void* const library = []() -> void* {
    const char* only = std::getenv("VERBENA_SOFT_ONLY");
    if (only == nullptr || std::strcmp(only, "0") != 0) return nullptr;
    return dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
  }();
  return library != nullptr ? dlsym(library, name) : nullptr;
}

// Never destroyed: programs may hold an ibv_device for as long as they like.
PreloadedDevices& PreloadedDevices::Get() {
  static PreloadedDevices* list = new PreloadedDevices;
  return *list;
}

PreloadedDevices::PreloadedDevices() : size_(DevicesWanted()) {
  for (int i = 0; i < size_; ++i) {
    ibv_device& device = entries_[i].device;
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(device.name, sizeof(device.name), "soft%d", i);
    std::snprintf(device.dev_name, sizeof(device.dev_name), "uverbs_soft%d", i);
    // A real device has its files there. These have none.
    std::snprintf(device.dev_path, sizeof(device.dev_path),
                  "/sys/class/infiniband_verbs/uverbs_soft%d", i);
    std::snprintf(device.ibdev_path, sizeof(device.ibdev_path), "/sys/class/infiniband/soft%d", i);
  }
}

int PreloadedDevices::IndexOf(const ibv_device* device) const {
  for (int i = 0; i < size_; ++i) {
    if (&entries_[i].device == device) return i;
  }
  return -1;
}

__be64 PreloadedDevices::GuidOf(int index) {
  VERBENA_CHECK(index >= 0 && index < kMaxDevices) << index;
  static const uint32_t host = HostNumber();
  constexpr uint64_t kLocallyAssigned = 0x0276'6200'0000'0000;  // "vb"
  return htobe64(kLocallyAssigned | uint64_t{host} << 8 | static_cast<uint64_t>(index));
}

absl::StatusOr<std::shared_ptr<ProcessDevice>> ProcessDevice::Open(int index, const char* name) {
  VERBENA_CHECK(index >= 0 && index < PreloadedDevices::Get().size()) << index;
  // Programs may unmap memory that is registered.
  soft::GuardUserMemory();
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
    std::shared_ptr<ProcessDevice> shared;
    try {
      shared.reset(new ProcessDevice(*std::move(device), lid, stop_fd));
    } catch (const std::system_error& error) {
      close(stop_fd);
      return ErrnoStatus(error.code().value(), "ibv_open_device");
    }
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
  events_ = StartQuietThread([this] { HandOnEvents(); });
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

absl::StatusOr<Context*> Context::Open(ibv_device* visible) {
  VERBENA_ASSIGN_OR_RETURN(
      std::shared_ptr<ProcessDevice> shared,
      ProcessDevice::Open(PreloadedDevices::Get().IndexOf(visible), visible->name));
  auto* context = new Context(visible, std::move(shared));
  if (context->events_.fd() < 0) {
    delete context;
    return ErrnoStatus(EMFILE, "ibv_open_device");
  }
  Registry::Get().Add(Kind::kContext, context->visible(), context, nullptr);
  return context;
}

Context::Context(ibv_device* visible, std::shared_ptr<ProcessDevice> shared)
    : shared_(std::move(shared)) {
  ibv_context& context = verbs_.context;
  context.device = visible;
  // Nothing is read from it or written to it, but programs duplicate it.
  context.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  context.async_fd = events_.fd();
  MakeBlocking(events_.fd());
  context.num_comp_vectors = 1;
  pthread_mutex_init(&context.mutex, nullptr);
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs_.sz = sizeof(verbs_);
  FillQueryCalls(verbs_);
  FillMemoryCalls(verbs_);
  FillCqCalls(verbs_);
  FillSrqCalls(verbs_);
  FillQpCalls(verbs_);
}

Context::~Context() {
  if (verbs_.context.cmd_fd >= 0) close(verbs_.context.cmd_fd);
  pthread_mutex_destroy(&verbs_.context.mutex);
}

Context* Context::From(const ibv_context* visible) {
  auto* const context = Alive<Context>(visible);
  VERBENA_CHECK(context != nullptr) << "an object outlives its context";
  return context;
}

void Context::Close(Context* context) {
  const bool gone = context->DestroyObjects();
  Registry::Get().OrphanObjectsOf(context);
  Registry::Get().EndDestroying(context->visible(), /*destroyed=*/true);
  if (gone) {
    delete context;
    return;
  }
  // Only a frozen peer can cause this.
  std::fprintf(stderr,
               "verbena soft device: %s was closed while a peer may use its memory; it keeps what "
               "it has until the process ends\n",
               context->visible()->device->name);
}

// In the order that verbs demands. Nobody acknowledges these objects' events any more.
bool Context::DestroyObjects() {
  SoftDevice& device = shared_->device();
  bool gone = DestroyAll<VisibleQp>(this, [&](VisibleQp& qp) {
    events_.Acknowledge(&qp.qp_base, UINT_MAX);
    return DestroyQp(qp);
  });
  gone &= DestroyAll<VisibleSrq>(this, [&](VisibleSrq& srq) {
    events_.Acknowledge(&srq, UINT_MAX);
    return DestroySrq(srq);
  });
  gone &= DestroyAll<VisibleCq>(this, [&](VisibleCq& cq) {
    events_.Acknowledge(&cq, UINT_MAX);
    if (cq.channel != nullptr) device.AckCqEvents(cq.inner, UINT_MAX);
    return DestroyCq(cq);
  });
  gone &= DestroyAll<VisibleChannel>(
      this, [&](VisibleChannel& channel) { return device.DestroyCompChannel(channel.inner); });
  gone &= DestroyAll<VisibleWindow>(
      this, [&](VisibleWindow& window) { return device.DeallocMw(window.inner); });
  gone &= DestroyAll<VisibleRegion>(
      this, [&](VisibleRegion& region) { return device.DeregMr(region.inner); });
  // Parent domains go before the domains that they refer to.
  DestroyAll<VisibleDomain>(this, DestroyDomain);
  gone &= DestroyAll<VisibleDomain>(this, DestroyDomain);
  return gone & DestroyAll<VisibleThreadDomain>(
                    this, [](VisibleThreadDomain&) { return absl::OkStatus(); });
}

ibv_device_attr Context::attributes() {
  ibv_device_attr attributes = device().attributes();
  const int index = PreloadedDevices::Get().IndexOf(verbs_.context.device);
  attributes.node_guid = attributes.sys_image_guid = PreloadedDevices::GuidOf(index);
  // Programs take 0 for a failure.
  attributes.vendor_id = kVendor;
  attributes.vendor_part_id = 1;
  // UCX knows this value alone, which RDMA NICs report. The device's atomics are atomic to the
  // processor, too. A profile may withhold them.
  if (attributes.atomic_cap != IBV_ATOMIC_NONE) attributes.atomic_cap = IBV_ATOMIC_HCA;
  return attributes;
}

// The port is one of InfiniBand: programs then send their peers the LID, too.
absl::StatusOr<ibv_port_attr> Context::QueryPort(uint8_t port) {
  VERBENA_ASSIGN_OR_RETURN(ibv_port_attr attributes, device().QueryPort(port));
  attributes.lid = attributes.sm_lid = shared_->lid();
  attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  return attributes;
}

}  // namespace verbena::internal::preload
