#include "verbena/transport/soft/soft_device.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/fabric.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/objects.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/tcp_format.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal {
namespace {

absl::StatusOr<bool> AnySourceFromEnvironment() {
  const char* set = std::getenv("VERBENA_SOFT_ANY_SOURCE");
  const std::string_view value = set == nullptr ? "" : set;
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  return absl::InvalidArgumentError(
      fmt::format("VERBENA_SOFT_ANY_SOURCE is \"{}\", but must be 0 or 1", value));
}

absl::Status CheckRing(const char* option, uint32_t bytes, const SoftDeviceOptions& options) {
  constexpr uint32_t kSmallest =
      std::bit_ceil(4 * (soft::kMaxFragmentBytes + uint32_t{soft::kLineBytes}));
  const uint32_t most = options.tcp.has_value()
                            ? soft::TcpGreeting::kMaxRingLines * uint32_t{soft::kLineBytes}
                            : std::bit_floor(~uint32_t{0});
  if (std::has_single_bit(bytes) && bytes >= kSmallest && bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, but must be a power of two from {} to {}{}", option, bytes, kSmallest,
                  most, options.tcp.has_value() ? " with a TCP wire" : ""));
}

absl::Status CheckOptions(const SoftDeviceOptions& options) {
  VERBENA_RETURN_IF_ERROR(CheckRing("request_ring_bytes", options.request_ring_bytes, options));
  VERBENA_RETURN_IF_ERROR(CheckRing("answer_ring_bytes", options.answer_ring_bytes, options));
  if (options.tcp.has_value()) {
    VERBENA_RETURN_IF_ERROR(CheckRing("least_ring_bytes", options.tcp->least_ring_bytes, options));
  }
  if (options.max_queue_pairs == 0 || options.max_queue_pairs > soft::kMaxQueuePairs) {
    return absl::InvalidArgumentError(fmt::format("max_queue_pairs is {}, but must be from 1 to {}",
                                                  options.max_queue_pairs, soft::kMaxQueuePairs));
  }
  constexpr std::chrono::seconds kLongest = std::chrono::hours(1);
  if (options.tcp.has_value() && (options.tcp->silence_limit < std::chrono::seconds(1) ||
                                  options.tcp->silence_limit > kLongest)) {
    return absl::InvalidArgumentError(
        fmt::format("silence_limit is {} s, but must be from 1 to {} s",
                    options.tcp->silence_limit.count(), kLongest.count()));
  }
  // One source may have one of two connections with rings like ours.
  if (options.tcp.has_value()) {
    const size_t least = 4 * BytesOf(soft::TcpLaneGeometryOf(options));
    if (options.tcp->lane_bytes < least) {
      return absl::InvalidArgumentError(
          fmt::format("lane_bytes is {}, but must be at least {}: two connections' rings",
                      options.tcp->lane_bytes, least));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// The four parts of the device, from the ground up.
struct SoftDevice::Parts {
  Parts(const SoftDeviceOptions& options, std::shared_ptr<soft::DeviceShare> share,
        const soft::DeviceAddress& address, uint64_t guid)
      : engine(options.clock != nullptr ? *options.clock : Clock::Real(), options.engine_thread,
               options.unpolled_after),
        state(options, std::move(share), address, guid, engine),
        objects(state),
        fabric(state, objects) {}

  soft::Engine engine;
  soft::SoftState state;
  soft::SoftObjects objects;
  soft::SoftFabric fabric;
};

absl::StatusOr<std::unique_ptr<SoftDevice>> SoftDevice::Create(const SoftDeviceOptions& options) {
  SoftDeviceOptions given = options;
  if (given.profile.has_value()) {
    VERBENA_RETURN_IF_ERROR(given.profile->Check());
  } else {
    VERBENA_ASSIGN_OR_RETURN(given.profile, SoftProfile::FromEnvironment());
  }
  if (given.tcp.has_value() && !given.tcp->any_source.has_value()) {
    VERBENA_ASSIGN_OR_RETURN(given.tcp->any_source, AnySourceFromEnvironment());
  }
  if (given.tcp.has_value() && given.tcp->lane_bytes == 0) {
    given.tcp->lane_bytes = soft::LaneBytesOf(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                              static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  }
  // More than any device has is refused below; a profile lowers the number alone.
  if (given.max_queue_pairs <= SoftProfile().max_qp) {
    given.max_queue_pairs = std::min(given.max_queue_pairs, given.profile->max_qp);
  }
  VERBENA_RETURN_IF_ERROR(CheckOptions(given));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<soft::DeviceShare> share,
                           soft::DeviceShare::Create(given.shared_memory));
  soft::TcpWireListener listener;
  if (given.tcp.has_value()) {
    VERBENA_ASSIGN_OR_RETURN(listener, soft::ListenTcp(given.tcp->address, given.tcp->port));
  } else {
    listener.address.gid =
        given.gid.has_value() ? *given.gid : soft::NewGid(/*predictable=*/!given.engine_thread);
  }
  // Devices of one host may share an IP address, but no GUID.
  const ibv_gid guid =
      given.tcp.has_value() ? soft::NewGid(/*predictable=*/false) : listener.address.gid;
  auto parts =
      std::make_shared<Parts>(given, std::move(share), listener.address, guid.global.interface_id);
  if (parts->state.async_events().fd() < 0 ||
      (given.engine_thread && parts->engine.doorbell_fd() < 0)) {
    return ErrnoStatus(EMFILE, "creating the descriptors of a soft device");
  }
  VERBENA_RETURN_IF_ERROR(parts->fabric.Start(std::move(listener)));
  soft::SoftFabric::Join({parts, &parts->fabric});
  // Its destructor leaves the fabric again if the engine cannot start.
  std::unique_ptr<SoftDevice> device(new SoftDevice(parts));
  VERBENA_RETURN_IF_ERROR(parts->engine.Start(parts->objects, parts->fabric.wires()));
  return device;
}

SoftDevice::SoftDevice(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

SoftDevice::~SoftDevice() {
  parts_->fabric.Hide();
  parts_->engine.Stop();
  parts_->fabric.Leave();
  const size_t leaked = parts_->objects.size(/*with_memory=*/!keeps_memory());
  if (leaked == 0) return;
  VERBENA_LOG_LINE(kDevice, kError,
                   fmt::format("{} is destroyed with {} objects alive", name(), leaked),
                   {{"device", name()}});
}

bool SoftDevice::Step() { return parts_->engine.Step(); }

absl::StatusOr<std::byte*> SoftDevice::AllocateShared(size_t bytes) {
  return parts_->objects.AllocateShared(bytes);
}
absl::Status SoftDevice::FreeShared(std::byte* memory) {
  return parts_->objects.FreeShared(memory);
}

absl::Status SoftDevice::ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access) {
  return parts_->objects.ReregMr(mr, pd, address, bytes, access);
}
absl::Status SoftDevice::ResizeCq(ibv_cq* cq, int entries) {
  return parts_->objects.ResizeCq(cq, entries);
}
void SoftDevice::IgnoreOverrun(ibv_cq* cq) {
  static_cast<soft::CompletionQueue*>(cq)->IgnoreOverrun();
}

CopiedBytes SoftDevice::copied_bytes() const { return parts_->objects.copied_bytes(); }

uint16_t SoftDevice::tcp_port() const { return parts_->state.address().lid; }

const std::string& SoftDevice::name() const { return parts_->state.name(); }
ibv_context* SoftDevice::context() { return &parts_->state.context(); }
const DeviceCapabilities& SoftDevice::capabilities() const { return parts_->state.capabilities(); }
const ibv_device_attr& SoftDevice::attributes() const { return parts_->state.attributes(); }

absl::StatusOr<ibv_port_attr> SoftDevice::QueryPort(uint8_t port) {
  if (port != 1) return ErrnoStatus(EINVAL, fmt::format("port {} of {}", port, name()));
  return parts_->state.port_attributes();
}
absl::StatusOr<ibv_gid> SoftDevice::QueryGid(uint8_t port, int index) {
  if (port != 1 || index != 0) {
    return ErrnoStatus(EINVAL, fmt::format("GID {} of port {} of {}", index, port, name()));
  }
  return parts_->state.address().gid;
}

absl::StatusOr<ibv_pd*> SoftDevice::AllocPd() { return parts_->objects.AllocPd(); }
absl::Status SoftDevice::DeallocPd(ibv_pd* pd) { return parts_->objects.DeallocPd(pd); }
absl::StatusOr<ibv_mr*> SoftDevice::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  return parts_->objects.RegMr(pd, address, bytes, access);
}
absl::Status SoftDevice::DeregMr(ibv_mr* mr) { return parts_->objects.DeregMr(mr); }

absl::StatusOr<ibv_mw*> SoftDevice::AllocMw(ibv_pd* pd) { return parts_->objects.AllocMw(pd); }
absl::Status SoftDevice::DeallocMw(ibv_mw* mw) { return parts_->objects.DeallocMw(mw); }

absl::StatusOr<ibv_comp_channel*> SoftDevice::CreateCompChannel() {
  return parts_->objects.CreateCompChannel();
}
absl::Status SoftDevice::DestroyCompChannel(ibv_comp_channel* channel) {
  return parts_->objects.DestroyCompChannel(channel);
}
absl::StatusOr<ibv_cq*> SoftDevice::GetCqEvent(ibv_comp_channel* channel) {
  auto event = static_cast<soft::CompletionChannel*>(channel)->events.Take();
  if (!event.has_value()) return absl::UnavailableError("no completion event waits");
  return static_cast<ibv_cq*>(event->element);
}
void SoftDevice::AckCqEvents(ibv_cq* cq, unsigned count) {
  static_cast<soft::CompletionChannel*>(cq->channel)->events.Acknowledge(cq, count);
}

absl::StatusOr<ibv_cq*> SoftDevice::CreateCq(int entries, void* cq_context,
                                             ibv_comp_channel* channel) {
  return parts_->objects.CreateCq(entries, cq_context, channel);
}
absl::Status SoftDevice::DestroyCq(ibv_cq* cq) { return parts_->objects.DestroyCq(cq); }

absl::StatusOr<ibv_srq*> SoftDevice::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
  return parts_->objects.CreateSrq(pd, attributes);
}
absl::Status SoftDevice::ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) {
  return parts_->objects.ModifySrq(srq, attributes, mask);
}
absl::StatusOr<ibv_srq_attr> SoftDevice::QuerySrq(ibv_srq* srq) {
  return static_cast<soft::SharedReceiveQueue*>(srq)->Attributes();
}
bool SoftDevice::TakeNewestReceivesFirst(ibv_srq* srq) {
  static_cast<soft::SharedReceiveQueue*>(srq)->TakeNewestFirst();
  return true;
}
absl::Status SoftDevice::DestroySrq(ibv_srq* srq) { return parts_->objects.DestroySrq(srq); }

absl::StatusOr<ibv_qp*> SoftDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  return parts_->objects.CreateQp(pd, attributes);
}
absl::Status SoftDevice::ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) {
  return parts_->objects.ModifyQp(qp, attributes, mask);
}
absl::Status SoftDevice::AwaitPeer(ibv_qp* qp) { return parts_->objects.AwaitPeer(qp); }

absl::StatusOr<ibv_qp_attr> SoftDevice::QueryQp(ibv_qp* qp, int) {
  return parts_->objects.QueryQp(qp);
}
absl::Status SoftDevice::DestroyQp(ibv_qp* qp) { return parts_->objects.DestroyQp(qp); }
QpIdentity SoftDevice::IdentityOf(const ibv_qp* qp) {
  return static_cast<const soft::QueuePair*>(qp)->identity();
}
bool SoftDevice::Quiesced(QpIdentity qp) { return parts_->state.quiescence().Quiesced(qp); }
bool SoftDevice::AwaitQuiesced(QpIdentity qp) { return parts_->objects.AwaitQuiesced(qp); }

int SoftDevice::async_fd() const { return parts_->state.async_events().fd(); }

absl::StatusOr<ibv_async_event> SoftDevice::GetAsyncEvent() {
  auto taken = parts_->state.async_events().Take();
  if (!taken.has_value()) return absl::UnavailableError("no asynchronous event waits");
  ibv_async_event event{};
  event.event_type = taken->type;
  switch (taken->type) {
    case IBV_EVENT_CQ_ERR:
      event.element.cq = static_cast<ibv_cq*>(taken->element);
      break;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      event.element.srq = static_cast<ibv_srq*>(taken->element);
      break;
    default:
      event.element.qp = static_cast<ibv_qp*>(taken->element);
  }
  return event;
}

void SoftDevice::AckAsyncEvent(ibv_async_event& event) {
  // All members of the union are pointers to what EventQueue knows by address.
  parts_->state.async_events().Acknowledge(event.element.qp, 1);
}

}  // namespace verbena::internal
