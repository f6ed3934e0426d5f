// Event channels and events, as programs call them.

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "verbena/transport/preload/rdma_cm_id.h"
#include "verbena/transport/preload/rdma_cm_queue_pair.h"
#include "verbena/transport/preload/rdma_cm_release.h"
#include "verbena/transport/preload/rdma_cm_wait.h"

namespace verbena::internal::preload {
namespace {

// Told when an id has one unacknowledged event less. Never destroyed, as CmLoop.
std::condition_variable& Acknowledged() {
  static auto& told = *new std::condition_variable;
  return told;
}

// Takes the queue pair of an id whose peer accepted into service, and tells the peer. Turns the
// event into a failure if that does not work.
void FinishConnecting(CmIdEvent& event) {
  CmId& id = Behind(event.id);
  // Without a queue pair of ours the program finishes, by rdma_establish.
  if (id.qp == nullptr) return;
  const int error = ConnectCmQueuePair(id);
  if (error != 0) BreakCmQueuePair(id);
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  if (error != 0) {
    id.Close(CmKind::kReject);
    event.event = RDMA_CM_EVENT_CONNECT_ERROR;
    event.status = -error;
    return;
  }
  event.event = RDMA_CM_EVENT_ESTABLISHED;
  id.SendReady();
}

}  // namespace

void WaitUntilAcknowledged(CmId& id) {
  std::unique_lock lock(CmLoop::Instance().mutex());
  Acknowledged().wait(lock, [&] { return id.guarded().unacknowledged == 0; });
}

int CompleteCmCall(CmId& id) {
  if (!id.synchronous()) return 0;
  if (id.event != nullptr) rdma_ack_cm_event(std::exchange(id.event, nullptr));
  if (rdma_get_cm_event(id.channel, &id.event) != 0) return -1;
  if (id.event->status == 0) return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED) return CmFail(ECONNREFUSED);
  return CmFail(std::abs(id.event->status));
}

}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;

rdma_event_channel* rdma_create_event_channel() { return CmIdChannel::Create().release(); }

void rdma_destroy_event_channel(rdma_event_channel* channel) { delete &Behind(channel); }

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** result) {
  if (channel == nullptr || result == nullptr) return CmFail(EINVAL);
  while (true) {
    if (const int error = Behind(channel).Wait(); error != 0) return CmFail(error);
    std::unique_ptr<CmIdEvent> event;
    {
      const std::scoped_lock lock(CmLoop::Instance().mutex());
      event = Behind(channel).Pop();
      // Its event went with its id, or moved to another channel.
      if (event == nullptr) continue;
      CmId::Guarded& held = event->held->guarded();
      ++held.unacknowledged;
      if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) --held.waiting_requests;
    }
    if (event->connects_queue_pair) FinishConnecting(*event);
    *result = event.release();
    return 0;
  }
}

int rdma_ack_cm_event(rdma_cm_event* visible) {
  if (visible == nullptr) return CmFail(EINVAL);
  const std::unique_ptr<CmIdEvent> event(static_cast<CmIdEvent*>(visible));
  const std::scoped_lock lock(CmLoop::Instance().mutex());
  --event->held->guarded().unacknowledged;
  Acknowledged().notify_all();
  return 0;
}

const char* rdma_event_str(rdma_cm_event_type event) {
  static constexpr const char* kNames[] = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  const auto number = static_cast<size_t>(event);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN EVENT";
}

}  // extern "C"
