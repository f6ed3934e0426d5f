#include "verbena/transport/soft/soft_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/rnic.h"
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

}  // namespace

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
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<soft::Rnic> rnic, soft::Rnic::Create(given));
  return std::unique_ptr<SoftDevice>(new SoftDevice(std::move(rnic)));
}

SoftDevice::SoftDevice(std::shared_ptr<soft::Rnic> rnic) : rnic_(std::move(rnic)) {}

SoftDevice::~SoftDevice() { rnic_->Shutdown(); }

bool SoftDevice::Step() { return rnic_->engine().Step(); }

absl::StatusOr<std::byte*> SoftDevice::AllocateShared(size_t bytes) {
  return rnic_->AllocateShared(bytes);
}
absl::Status SoftDevice::FreeShared(std::byte* memory) { return rnic_->FreeShared(memory); }

absl::Status SoftDevice::ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access) {
  return rnic_->ReregMr(mr, pd, address, bytes, access);
}
absl::Status SoftDevice::ResizeCq(ibv_cq* cq, int entries) { return rnic_->ResizeCq(cq, entries); }

CopiedBytes SoftDevice::copied_bytes() const { return rnic_->copied_bytes(); }

uint16_t SoftDevice::tcp_port() const { return rnic_->state().address().lid; }

const std::string& SoftDevice::name() const { return rnic_->state().name(); }
ibv_context* SoftDevice::context() { return &rnic_->state().context(); }
const DeviceCapabilities& SoftDevice::capabilities() const { return rnic_->state().capabilities(); }
const ibv_device_attr& SoftDevice::attributes() const { return rnic_->state().attributes(); }

absl::StatusOr<ibv_port_attr> SoftDevice::QueryPort(uint8_t port) { return rnic_->QueryPort(port); }
absl::StatusOr<ibv_gid> SoftDevice::QueryGid(uint8_t port, int index) {
  return rnic_->QueryGid(port, index);
}

absl::StatusOr<ibv_pd*> SoftDevice::AllocPd() { return rnic_->AllocPd(); }
absl::Status SoftDevice::DeallocPd(ibv_pd* pd) { return rnic_->DeallocPd(pd); }
absl::StatusOr<ibv_mr*> SoftDevice::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  return rnic_->RegMr(pd, address, bytes, access);
}
absl::Status SoftDevice::DeregMr(ibv_mr* mr) { return rnic_->DeregMr(mr); }

absl::StatusOr<ibv_mw*> SoftDevice::AllocMw(ibv_pd* pd) { return rnic_->AllocMw(pd); }
absl::Status SoftDevice::DeallocMw(ibv_mw* mw) { return rnic_->DeallocMw(mw); }

absl::StatusOr<ibv_comp_channel*> SoftDevice::CreateCompChannel() {
  return rnic_->CreateCompChannel();
}
absl::Status SoftDevice::DestroyCompChannel(ibv_comp_channel* channel) {
  return rnic_->DestroyCompChannel(channel);
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
  return rnic_->CreateCq(entries, cq_context, channel);
}
absl::Status SoftDevice::DestroyCq(ibv_cq* cq) { return rnic_->DestroyCq(cq); }

absl::StatusOr<ibv_srq*> SoftDevice::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
  return rnic_->CreateSrq(pd, attributes);
}
absl::Status SoftDevice::ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) {
  return rnic_->ModifySrq(srq, attributes, mask);
}
absl::StatusOr<ibv_srq_attr> SoftDevice::QuerySrq(ibv_srq* srq) {
  return static_cast<soft::SharedReceiveQueue*>(srq)->Attributes();
}
bool SoftDevice::TakeNewestReceivesFirst(ibv_srq* srq) {
  static_cast<soft::SharedReceiveQueue*>(srq)->TakeNewestFirst();
  return true;
}
absl::Status SoftDevice::DestroySrq(ibv_srq* srq) { return rnic_->DestroySrq(srq); }

absl::StatusOr<ibv_qp*> SoftDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  return rnic_->CreateQp(pd, attributes);
}
absl::Status SoftDevice::ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) {
  return rnic_->ModifyQp(qp, attributes, mask);
}
absl::StatusOr<ibv_qp_attr> SoftDevice::QueryQp(ibv_qp* qp, int) { return rnic_->QueryQp(qp); }
absl::Status SoftDevice::DestroyQp(ibv_qp* qp) { return rnic_->DestroyQp(qp); }
QpIdentity SoftDevice::IdentityOf(const ibv_qp* qp) {
  return static_cast<const soft::QueuePair*>(qp)->identity();
}
bool SoftDevice::Quiesced(QpIdentity qp) { return rnic_->state().quiescence().Quiesced(qp); }

int SoftDevice::async_fd() const { return rnic_->state().async_events().fd(); }

absl::StatusOr<ibv_async_event> SoftDevice::GetAsyncEvent() {
  auto taken = rnic_->state().async_events().Take();
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
  rnic_->state().async_events().Acknowledge(event.element.qp, 1);
}

}  // namespace verbena::internal
