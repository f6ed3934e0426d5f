#include "verbena/transport/soft/preload/context.h"

#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>

#include "verbena/transport/soft/preload/calls.h"
#include "verbena/transport/soft/preload/device_list.h"

namespace verbena::internal::preload {
namespace {

// The unicast LIDs of InfiniBand.
constexpr unsigned kFirstLid = 1;
constexpr unsigned kLastLid = 0xbfff;
constexpr int kLidAttempts = 64;

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

// Whether all objects of the kind are gone.
template <typename T, typename Destroy>
bool DestroyAll(const Context* owner, Destroy destroy) {
  for (const void* handle : Registry::Get().HandlesOf(owner, T::kKind)) {
    DestroyObject<T>(handle, destroy);
  }
  return Registry::Get().HandlesOf(owner, T::kKind).empty();
}

// Nobody will acknowledge these events any more, and the objects wait for that.
template <typename T>
void AcknowledgeAll(SoftDevice& device, ibv_event_type type, T& object) {
  ibv_async_event event{};
  event.event_type = type;
  if constexpr (std::is_same_v<T, Cq>) event.element.cq = object.inner;
  if constexpr (std::is_same_v<T, Srq>) event.element.srq = object.inner;
  if constexpr (std::is_same_v<T, Qp>) event.element.qp = object.inner;
  for (; object.async_events > 0; --object.async_events) device.AckAsyncEvent(event);
}

}  // namespace

absl::StatusOr<Context*> Context::Open(ibv_device* visible) {
  SoftDeviceOptions options{.name = visible->name,
                            // Programs wait for bytes as well as for completions.
                            .least_kernel_copy_bytes = 1,
                            .unpolled_after = std::chrono::microseconds(250)};
  std::random_device random;
  absl::Status status;
  for (int attempt = 0; attempt < kLidAttempts; ++attempt) {
    const auto lid = static_cast<uint16_t>(kFirstLid + random() % (kLastLid - kFirstLid + 1));
    options.gid = GidOfLid(lid);
    // Fails while another device has this LID.
    absl::StatusOr<std::unique_ptr<SoftDevice>> device = SoftDevice::Create(options);
    if (device.ok()) {
      auto* context = new Context(visible, *std::move(device), lid);
      Registry::Get().Add(Kind::kContext, context->visible(), context, nullptr);
      return context;
    }
    status = device.status();
  }
  return status;
}

Context::Context(ibv_device* visible, std::unique_ptr<SoftDevice> device, uint16_t lid)
    : device_(std::move(device)), lid_(lid) {
  const absl::StatusOr<ibv_port_attr> port = device_->QueryPort(1);
  addressed_by_lid_ = port.ok() && port->lid != 0;
  ibv_context& context = verbs_.context;
  context.device = visible;
  context.cmd_fd = -1;
  context.async_fd = device_->async_fd();
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

Context::~Context() { pthread_mutex_destroy(&verbs_.context.mutex); }

void Context::Close(Context* context) {
  if (context->DestroyObjects()) {
    delete context;
    return;
  }
  // Only a frozen peer, or a window of one, can cause this.
  std::fprintf(stderr,
               "verbena soft device: %s was closed while objects of it are in use; it keeps its "
               "memory until the process ends\n",
               context->visible()->device->name);
}

// In the order that verbs demands.
bool Context::DestroyObjects() {
  SoftDevice& device = *device_;
  bool gone = DestroyAll<Qp>(this, [&](Qp& qp) {
    AcknowledgeAll(device, IBV_EVENT_QP_FATAL, qp);
    return device.DestroyQp(qp.inner);
  });
  gone &= DestroyAll<Srq>(this, [&](Srq& srq) {
    AcknowledgeAll(device, IBV_EVENT_SRQ_ERR, srq);
    return device.DestroySrq(srq.inner);
  });
  gone &= DestroyAll<Cq>(this, [&](Cq& cq) {
    AcknowledgeAll(device, IBV_EVENT_CQ_ERR, cq);
    if (cq.channel != nullptr) device.AckCqEvents(cq.inner, UINT_MAX);
    return device.DestroyCq(cq.inner);
  });
  gone &= DestroyAll<Channel>(
      this, [&](Channel& channel) { return device.DestroyCompChannel(channel.inner); });
  gone &= DestroyAll<Window>(this, [&](Window& mw) { return device.DeallocMw(mw.inner); });
  gone &= DestroyAll<Region>(this, [&](Region& mr) { return device.DeregMr(mr.inner); });
  gone &= DestroyAll<Domain>(this, [&](Domain& domain) {
    return domain.original != nullptr ? absl::OkStatus() : device.DeallocPd(domain.inner);
  });
  return gone & DestroyAll<ThreadDomain>(this, [](ThreadDomain&) { return absl::OkStatus(); });
}

ibv_device_attr Context::attributes() const {
  ibv_device_attr attributes = device_->attributes();
  const int index = DeviceList::Get().IndexOf(verbs_.context.device);
  attributes.node_guid = attributes.sys_image_guid = DeviceList::GuidOf(index);
  return attributes;
}

// Of InfiniBand, because programs then send their peers the LID, too.
absl::StatusOr<ibv_port_attr> Context::QueryPort(uint8_t port) {
  absl::StatusOr<ibv_port_attr> attributes = device_->QueryPort(port);
  if (!attributes.ok()) return attributes;
  if (attributes->lid == 0) attributes->lid = lid_;
  attributes->sm_lid = attributes->lid;
  attributes->link_layer = IBV_LINK_LAYER_INFINIBAND;
  return attributes;
}

ibv_ah_attr Context::Resolve(const ibv_ah_attr& address) const {
  if (addressed_by_lid_) return address;
  ibv_ah_attr resolved = address;
  resolved.dlid = 0;
  if (address.is_global != 0) return resolved;
  resolved.is_global = 1;
  resolved.grh = {};
  resolved.grh.dgid = GidOfLid(address.dlid);
  return resolved;
}

}  // namespace verbena::internal::preload
