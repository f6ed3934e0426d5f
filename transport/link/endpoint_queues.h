// EndpointQueues: the completion queue and the receives of one endpoint, and the search for
// receives that a device loses from a shared receive queue.
//
// On a device without shared receive queues the ring is absent, and link_receives() has the buffers
// of the links' own queues, which stay when the completion queue is replaced.
//
// A device may lose either (CQ_ERR, SRQ_ERR). The endpoint then waits until no queue pair uses
// them, and calls Exchange(). Part of an Endpoint, on its executor's thread. Close() or
// TakeReceives() ends its use.

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_QUEUES_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_QUEUES_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/receives.h"

namespace verbena::internal {

class EndpointQueues {
 public:
  // All outlive it. `listener` hears the completions.
  EndpointQueues(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                 LinkTable& links, CompletionListener& listener);

  // The receives of an endpoint. Takes the device long, and runs on any thread.
  static absl::StatusOr<std::unique_ptr<ReceiveRing>> NewRing(DeviceContext& context,
                                                              const LinkLimits& limits);

  // The receives of links with a queue each, made as by NewRing(); nullptr on a device that has
  // shared receive queues.
  static absl::StatusOr<std::unique_ptr<LinkReceives>> NewLinkReceives(DeviceContext& context,
                                                                       const LinkLimits& limits);

  // Makes the completion queue, and takes the receives. The first call.
  absl::Status Create(std::unique_ptr<ReceiveRing> ring,
                      std::unique_ptr<LinkReceives> link_receives = nullptr);
  // Replaces both queues: `ring` is the former one afterwards, and nobody is subscribed. If this
  // fails, nothing has changed, subscriptions included. Precondition: no queue pair uses the
  // queues.
  absl::Status Exchange(std::unique_ptr<ReceiveRing>& ring);

  ibv_cq* cq() const { return cq_; }
  ReceiveRing& receives() { return *receives_; }
  const ReceiveRing& receives() const { return *receives_; }
  // nullptr on a device that has shared receive queues.
  LinkReceives* link_receives() { return link_receives_.get(); }
  const LinkReceives* link_receives() const { return link_receives_.get(); }
  LostReceives& lost_receives() { return lost_receives_; }

  // `handler` hears, on the executor, when a queue is lost, or all of the device is.
  void Subscribe(const DeviceContext::EventHandler& handler);
  void Unsubscribe();

  // How often the queues were replaced.
  uint32_t number() const { return number_; }
  // The queues in use are lost.
  bool are_lost() const { return are_lost_; }
  void MarkLost() { are_lost_ = true; }

  // Destroys the completion queue, and hands the receives to the caller. No completion comes any
  // more. Precondition: Unsubscribe() was called.
  std::unique_ptr<ReceiveRing> TakeReceives();
  // The same for the receives of links, which may be none. Precondition: TakeReceives() was called.
  std::unique_ptr<LinkReceives> TakeLinkReceives() { return std::move(link_receives_); }
  // Unsubscribes and destroys both, unless TakeReceives() was called.
  void Close();

 private:
  absl::StatusOr<ibv_cq*> NewCq();
  void RemoveCq();

  Executor& executor_;
  DeviceContext& context_;
  const LinkLimits& limits_;
  CompletionListener& listener_;
  ibv_cq* cq_ = nullptr;
  std::unique_ptr<ReceiveRing> receives_;
  std::unique_ptr<LinkReceives> link_receives_;
  LostReceives lost_receives_;
  uint32_t number_ = 0;
  bool are_lost_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_QUEUES_H_
