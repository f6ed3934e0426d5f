#include "verbena/transport/preload/context.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <utility>

#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/preload/calls.h"
#include "verbena/transport/preload/descriptor.h"
#include "verbena/transport/preload/preloaded_devices.h"

namespace verbena::internal::preload {
namespace {

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

Context* Context::From(const ibv_context* visible) { return Alive<Context>(visible); }

void Context::Close(Context* context) {
  const bool gone = context->DestroyObjects();
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
