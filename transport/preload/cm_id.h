// CmId, CmIdEvent and CmIdChannel: the objects behind the public structs of librdmacm.
//
// A program holds pointers to the public parts, and reads and writes some of their fields without a
// lock, as the manual allows. All other fields are guarded by CmLoop's lock. An id belongs to the
// program from the call or the event that gave it until rdma_destroy_id; an event from
// rdma_get_cm_event until rdma_ack_cm_event.

#ifndef VERBENA_TRANSPORT_PRELOAD_CM_ID_H_
#define VERBENA_TRANSPORT_PRELOAD_CM_ID_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "verbena/transport/base/process.h"
#include "verbena/transport/preload/cm_loop.h"
#include "verbena/transport/preload/cm_message.h"

namespace verbena::internal::preload {

class CmId;

// An event of an id. Owned by its channel until the program gets it, then by the program until it
// is acknowledged.
struct CmIdEvent final : rdma_cm_event {
  CmIdEvent(CmId& subject, rdma_cm_event_type type, int status);

  // The id whose destruction waits until this event is acknowledged. For a connect request it is
  // the listening id, whose backlog the request takes.
  CmId* held;
  // Moves the queue pair of `id` when the program gets the event, if there is one.
  bool connects_queue_pair = false;
  std::array<uint8_t, kCmReplyPrivateBytes> private_data = {};
};

// A queue of events. Its descriptor counts them, so that poll() and a blocking or non-blocking read
// of it do what the program asks for. Bounded by the ids: each has a few events in its life, and a
// listening one no more requests than its backlog.
class CmIdChannel final : public rdma_event_channel {
 public:
  // Null if there are no descriptors left; errno says so.
  static std::unique_ptr<CmIdChannel> Create();
  ~CmIdChannel();
  CmIdChannel(const CmIdChannel&) = delete;
  CmIdChannel& operator=(const CmIdChannel&) = delete;

  // Under CmLoop's lock.
  void Post(std::unique_ptr<CmIdEvent> event);
  // The oldest event, or null.
  std::unique_ptr<CmIdEvent> Pop();
  // Takes the events out that hold `id`.
  std::deque<std::unique_ptr<CmIdEvent>> Remove(const CmId& id);

  // Without the lock: waits until an event is there, or as the descriptor's flags say. 0 or an
  // errno.
  int Wait() const;

 private:
  CmIdChannel() = default;
  // Takes one event's count without waiting. False if there is none.
  bool TakeCount() const;

  std::deque<std::unique_ptr<CmIdEvent>> events_;
};

enum class CmState {
  kIdle,
  kBound,
  kListening,
  kAddressResolved,
  kRouteResolved,
  kConnecting,  // active: until the reply; passive: never
  kReplied,     // active: the reply is there, kReady is not sent
  kRequested,   // passive: until rdma_accept or rdma_reject
  kAccepted,    // passive: until kReady
  kConnected,
  kDisconnected,  // also after an attempt that failed
};

// The terms of a connection: ours, and the peer's offer.
struct CmTerms {
  uint32_t psn = 0;  // ours; never changes
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 7;
  uint8_t ack_timeout = 14;     // about 67 ms, in InfiniBand's encoding (start)
  uint8_t rnr_retry_count = 7;  // the peer's wish for our sends
  uint8_t traffic_class = 0;    // the id's type of service
  CmMessage peer;               // its request or reply
};

// The arguments of rdma_create_ep that make the queue pairs of a listening id's requests.
struct CmPassiveQp {
  ibv_pd* pd;
  ibv_qp_init_attr init;
};

// An id of librdmacm: its state, and its connection or listening socket. Owned by the program until
// rdma_destroy_id. Guarded by CmLoop's lock, except the fields that the program may use without.
class CmId final : public rdma_cm_id, public CmStreamOwner, public CmRequestListener {
 public:
  explicit CmId(rdma_port_space space);
  ~CmId();
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;

  CmIdChannel& events() { return *static_cast<CmIdChannel*>(channel); }
  // Posts an event that holds this id.
  void Post(rdma_cm_event_type type, int status);
  void PostEvent(std::unique_ptr<CmIdEvent> event) { events().Post(std::move(event)); }
  // Ends the connection or the attempt. Tells the peer, if it is still there, by `kind`.
  void Close(CmKind kind);
  // Tells the peer that our queue pair receives. Does nothing if the connection is lost.
  void SendReady();

  // All of them under CmLoop's lock.
  struct Guarded {
    CmState state = CmState::kIdle;
    // Events that the program has and did not acknowledge.
    int unacknowledged = 0;
    // Its socket from rdma_bind_addr until it listens or connects.
    UniqueFd bound;
    bool address_family_only = false;
    bool reuse_address = false;
    std::unique_ptr<CmAcceptor> acceptor;
    std::unique_ptr<CmStream> stream;
    // Requests in the channel that the program did not get; at most `backlog`.
    int waiting_requests = 0;
    int backlog = 0;
    CmTerms terms;
    // rdma_notify told that the connection is there, ahead of kReady.
    bool notified = false;
    // The request of an id that connects, until its TCP connection is there.
    std::optional<CmMessage> unsent_request;
    // For an id without a channel of the program's: its calls wait for their events.
    std::unique_ptr<CmIdChannel> own_channel;
    std::optional<CmPassiveQp> passive_qp;
    // The target of route.path_rec once the route is resolved.
    ibv_sa_path_rec path = {};
  };
  Guarded& guarded() { return guarded_; }
  bool synchronous() const { return guarded_.own_channel != nullptr; }

  void OnStreamConnected() override;
  void OnStreamMessage(const CmMessage& message) override;
  void OnStreamLost(int error) override;
  bool OnRequest(std::unique_ptr<CmStream>& stream, const CmMessage& message) override;

 private:
  // Ends an attempt or a connection whose stream is of no more use, and posts an event.
  void Lose(rdma_cm_event_type type, int status);
  // The effects of messages; false if a message comes in a state that does not expect it.
  bool TakeReply(const CmMessage& message);
  bool TakeReady();
  bool TakeReject(const CmMessage& message);
  bool TakeDisconnect();

  Guarded guarded_;
};

// How calls of librdmacm fail.
inline int CmFail(int error) {
  errno = error;
  return -1;
}

// For what the soft device does not have: EOPNOTSUPP, and `why` in the log.
int CmRefuse(const char* why);

// The id or channel behind a program's pointer.
inline CmId& Behind(rdma_cm_id* id) { return *static_cast<CmId*>(id); }
inline CmIdChannel& Behind(rdma_event_channel* channel) {
  return *static_cast<CmIdChannel*>(channel);
}

// CmDevices: the devices that ids are bound to, opened once for the process.
//
// Each has a protection domain for programs that bring none. Never closed, as the manual of
// rdma_get_devices promises.
class CmDevices {
 public:
  struct Device {
    ibv_context* verbs;
    ibv_pd* pd;
    ibv_gid gid;
    // READs and atomics in flight that a queue pair serves and starts.
    uint8_t responder_resources;
    uint8_t initiator_depth;
  };

  // Opens them with the first call, which must not hold CmLoop's lock. Safe from any thread.
  static const CmDevices& Get();

  const std::vector<Device>& devices() const { return devices_; }
  // Binds an id to the first device, through which every address is reached. Calls no verbs.
  // Precondition: there is a device.
  void Bind(rdma_cm_id& id) const;
  // The device of a bound id.
  const Device& Of(const rdma_cm_id& id) const;

  // Fills in where the id's device is reached: GID, LID and MTU. 0 or an errno.
  static int Describe(const rdma_cm_id& id, CmMessage& message);

 private:
  CmDevices();

  std::vector<Device> devices_;
};

// How ids without a channel of the program's wait: their calls return when the event is there.

// The end of a call that leads to an event. Returns 0 at once if the program gets events itself.
// Otherwise acknowledges the id's last event, waits for the next, leaves it in id.event, and
// returns 0, or -1 and errno if it tells of a failure.
int CompleteCmCall(CmId& id);

// The end of ids.

// Waits until the program has acknowledged every event that it got of `id`.
void WaitUntilAcknowledged(CmId& id);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CM_ID_H_
