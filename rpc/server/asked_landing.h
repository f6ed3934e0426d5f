// AskedLanding: memory that a server's call asks its client for, and the wait for it.
//
// Part of a WrittenResponse, on its executor's thread.

#ifndef VERBENA_RPC_SERVER_ASKED_LANDING_H_
#define VERBENA_RPC_SERVER_ASKED_LANDING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/server/served_call.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class AskedLanding final : private SendWaiter {
 public:
  explicit AskedLanding(const ServedCall& call) : call_(call) {}
  AskedLanding(const AskedLanding&) = delete;
  AskedLanding& operator=(const AskedLanding&) = delete;
  ~AskedLanding() override = default;

  // Asks for `wanted` over `link`, now or when there is room. Then await Arrival().
  void Ask(Link& link, const LandingRequest& wanted);
  // Ends when the landing has come.
  Task<absl::Status> Arrival();
  // A landing that comes from now on is late.
  void StopWaiting() { awaited_ = false; }
  // The client has leased `landing`. A failed Status closes the link.
  absl::Status OnLanding(const RemoteRange& landing);
  // The call is over, or its link is.
  void Clear();

  // The landing; without bytes if none has come.
  const RemoteRange& range() const { return range_; }
  // The bytes that were asked for the payload, ahead of those for the message.
  uint64_t payload_bytes() const { return wanted_.payload_bytes; }

 private:
  void OnWritable(Link& link) override;

  const ServedCall& call_;
  LandingRequest wanted_;
  bool awaited_ = false;
  RemoteRange range_;
  Event arrived_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ASKED_LANDING_H_
