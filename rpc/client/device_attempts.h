// DeviceAttempts: the devices that one attempt to connect may go over, in their order, and how
// those that were tried have failed.
//
// The log says which device was taken and why, once for each device of a runtime;
// DeviceStats::passed_over says why not the others.
//
// A local of the attempt's coroutine, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_DEVICE_ATTEMPTS_H_
#define VERBENA_RPC_CLIENT_DEVICE_ATTEMPTS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena::internal {

class Shard;

class DeviceAttempts {
 public:
  // `stream` is the bootstrap connection to the peer.
  DeviceAttempts(Shard& shard, const MessageStream& stream);

  // The devices to try, by index in the shard.
  const std::vector<size_t>& order() const { return order_; }
  // Device order()[i] does not reach the peer.
  void AddFailure(size_t i, const absl::Status& why);
  // Why no device reaches `address`, after a failure of each. With a single device, its own error.
  absl::Status Failure(const std::string& address) const;
  // The link to `target` goes over device order()[i].
  void NoteChoice(size_t i, const std::string& target) const;

 private:
  std::string NameOf(size_t device) const;

  Shard& shard_;
  const bool same_host_;
  std::vector<size_t> order_;
  std::vector<absl::Status> failures_;  // of the first in order_
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_DEVICE_ATTEMPTS_H_
