// ServerPayloads: what a ServerContext asks of the call behind it. Implemented by ServerCall.

#ifndef VERBENA_RPC_SERVER_PAYLOADS_H_
#define VERBENA_RPC_SERVER_PAYLOADS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/loan.h"
#include "verbena/rpc/payload.h"
#include "verbena/rpc/remote_memory.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// As the methods of the same names in ServerContext say.
class ServerPayloads {
 public:
  virtual ~ServerPayloads() = default;
  virtual bool has_request_payload() const = 0;
  virtual size_t request_payload_bytes() const = 0;
  virtual Buffer TakeRequestPayload() = 0;
  virtual Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes) = 0;
  virtual std::string device_name() const = 0;
  virtual void SetResponsePayload(Payload payload) = 0;
  virtual size_t response_payload_room() const = 0;
  virtual Task<absl::Status> WriteResponsePayload(BufferView part) = 0;
  virtual absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle) = 0;
  virtual Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access) = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_PAYLOADS_H_
