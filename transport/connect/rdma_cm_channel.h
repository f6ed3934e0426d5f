// CmChannel: the event channel of rdma_cm, and the thread that reads it.
//
// The thread copies each event, acknowledges it at once (destroying an id waits for that), and
// hands it to the handler of its id. A connection request goes to the listener's handler. All ids
// of the channel share the thread. Stop() ends the thread after the work that was posted; from then
// on Post() refuses.

#ifndef VERBENA_TRANSPORT_CONNECT_RDMA_CM_CHANNEL_H_
#define VERBENA_TRANSPORT_CONNECT_RDMA_CM_CHANNEL_H_

#include <rdma/rdma_cma.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/io_thread.h"

namespace verbena::internal {

// The content of an rdma_cm_event.
struct CmEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
  int status = 0;
  rdma_cm_id* id = nullptr;  // a connection request's new id is the handler's to destroy
  std::string private_data = {};
  uint32_t qp_number = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
};

class CmEventListener {
 public:
  // On the channel's thread.
  virtual void OnCmEvent(const CmEvent& event) = 0;

 protected:
  ~CmEventListener() = default;
};

class CmChannel final : public IoObject, public std::enable_shared_from_this<CmChannel> {
 public:
  // UNAVAILABLE if the kernel has no rdma_cm; the message says what is missing.
  static absl::StatusOr<std::shared_ptr<CmChannel>> Open();
  ~CmChannel() override;

  // From any thread. `handler` must live until the id is destroyed. An id may have events as soon
  // as it is bound, because the device can be removed.
  absl::StatusOr<rdma_cm_id*> CreateId(CmEventListener& handler);
  // From any thread. Destroys the id on the channel's thread, where no event of it is being
  // handled; here and now if Stop() has returned.
  void DestroyId(rdma_cm_id* id);

  // Runs `function` on the thread. False, and it is dropped, once Stop() has been called.
  template <typename Function>
  bool Post(Function function) {
    return io_->Post(std::move(function));
  }
  void Stop() { io_->Stop(); }
  // For timers, none of which may run once the channel is stopped.
  boost::asio::io_context& context() { return io_->context(); }

 private:
  CmChannel(std::shared_ptr<IoThread> io, rdma_event_channel* channel);
  void CloseOnThread() override;
  void ReadWhenReady();
  // False when the channel is broken.
  bool ReadAll();

  const std::shared_ptr<IoThread> io_;
  rdma_event_channel* const channel_;
  boost::asio::posix::stream_descriptor descriptor_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_RDMA_CM_CHANNEL_H_
