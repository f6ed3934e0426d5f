// LinkHost: what a link needs of the endpoint that owns it.
//
// The host has as members what all links of the endpoint share, so that a link reaches these
// without a virtual call. Only rare steps are virtual. Endpoint derives from LinkHost, and outlives
// its links. On the thread of the endpoint's executor.

#ifndef VERBENA_TRANSPORT_LINK_HOST_H_
#define VERBENA_TRANSPORT_LINK_HOST_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/supplies.h"

namespace verbena::internal {

class Endpoint;
class Link;

// WatchedLink: a link's place in the list of those that the next liveness check looks at.
class WatchedLink : public IntrusiveNode<WatchedLink> {};

class LinkHost {
 public:
  LinkHost(const LinkHost&) = delete;
  LinkHost& operator=(const LinkHost&) = delete;

  Executor& executor() const { return executor_; }
  DeviceContext& context() const { return context_; }
  Device& device() const { return context_.device(); }
  ibv_pd* pd() const { return context_.pd(); }
  const LinkLimits& limits() const { return limits_; }
  LinkSupplies& supplies() { return supplies_; }
  CreditIssuer& credit_issuer() { return credit_issuer_; }
  const CreditIssuer& credit_issuer() const { return credit_issuer_; }
  // For whoever uses a link: the link itself does not look at it.
  Endpoint& endpoint() const { return endpoint_; }

  // The completion that is being handled is the only one that this turn's poll found.
  bool handles_one_completion() const { return poll_.is_one; }
  // Others were found together with the completion that is being handled.
  bool handles_more_completions() const { return poll_.left > 0; }
  // Whether a SEND may be posted before the turn's end: no link waits for send buffers, no teardown
  // is emptying the completion queue, and no receives are to be posted whose credits the SEND would
  // return.
  bool MaySendNow() const {
    return !poll_.draining && !supplies_.room().is_awaited() && !receives_->needs_post();
  }
  // As MaySendNow(), but posts the missing receives first instead of refusing.
  bool PrepareEarlySend() {
    return !poll_.draining && !supplies_.room().is_awaited() &&
           (!receives_->needs_post() || PostReceives());
  }

  // Has the next liveness check look at `link`. Precondition: it is in no list.
  virtual void WatchLiveness(WatchedLink& link) = 0;
  // A link has opened: liveness checks begin.
  virtual void OnLinkOpened() = 0;
  // A link has borrowed credits, so more receives must be posted.
  virtual void OnCreditsBorrowed() = 0;
  // Has a control thread allocate `count` memory windows for the link of that key, and destroy the
  // `worn` ones. Control verbs of one `order` run one after the other.
  virtual void StartRefill(LinkKey key, const void* order, uint32_t count,
                           std::vector<MwHandle> worn) = 0;
  // `link` has closed for `reason`. Takes it down, and destroys it in the end.
  virtual void StartTeardown(Link& link, const absl::Status& reason) = 0;

 protected:
  // `endpoint` is the one that derives from this. Its links borrow from `shared_credits`.
  LinkHost(Endpoint& endpoint, Executor& executor, DeviceContext& context, const LinkLimits& limits,
           SendMemory memory, uint32_t shared_credits)
      : endpoint_(endpoint),
        executor_(executor),
        context_(context),
        limits_(limits),
        supplies_(std::move(memory), context.device(), limits_),
        credit_issuer_(shared_credits) {}
  ~LinkHost() = default;

  // How much of the current poll is left.
  struct Poll {
    // The completion that is being handled is the only one.
    bool is_one = false;
    // How many are still to be handled after it.
    int left = 0;
    // A teardown empties the queue: nothing may be posted meanwhile.
    bool draining = false;
  };

  // For the endpoint to write.
  Poll poll_;
  // The receives in use, as long as there can be links.
  const ReceiveRing* receives_ = nullptr;

 private:
  // Posts the receives that are due. False if the device fails to.
  virtual bool PostReceives() = 0;

  Endpoint& endpoint_;
  Executor& executor_;
  DeviceContext& context_;
  const LinkLimits limits_;
  LinkSupplies supplies_;
  CreditIssuer credit_issuer_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_HOST_H_
