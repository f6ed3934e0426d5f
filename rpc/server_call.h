// ServerCall: one call that a server runs, from its request frame to its response.
//
// Pooled per method and executor with its messages, so that a call in steady state allocates
// nothing. Owned by its ServerShard, on that executor's thread. The link may be lost while the
// handler runs: the handler is cancelled and runs to its end, and its response goes nowhere.

#ifndef VERBENA_RPC_SERVER_CALL_H_
#define VERBENA_RPC_SERVER_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/landing_lender.h"
#include "verbena/rpc/method_table.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server_bulk.h"
#include "verbena/rpc/server_context.h"
#include "verbena/rpc/server_payloads.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"

namespace verbena {

class ServerLink;
class ServerShard;

// What a request moves one-sided: what its frame says, and where its payload lies already, if that
// has memory.
struct IncomingBulk {
  RequestBulk request;
  UsedLanding landing;
};

class ServerCall final : public IntrusiveNode<ServerCall>,
                         private TaskCompletion,
                         private SendWaiter,
                         private Timer,
                         private TransferListener,
                         private ServerPayloads {
 public:
  // Messages that were larger than this on the wire are not kept for the next call.
  static constexpr size_t kMaxPooledMessageBytes = 64 * 1024;

  ServerCall(ServerShard& shard, int method_index);
  ~ServerCall() override;

  // Parses the request and runs the handler up to its first wait. `bulk`, which `body` begins with,
  // may be null; its landing is taken.
  void Start(ServerLink& link, CallId id, const FrameHeader& frame, const char* body,
             IncomingBulk* bulk);
  // The memory that the response waits for.
  absl::Status OnLanding(const RemoteRange& landing);
  // The caller gave up, or the server wants it to.
  void Cancel(absl::StatusCode reason);
  // No response can be sent any more. Ends the call if the response was all that was left of it.
  void OnLinkDown();

  CallId id() const { return id_; }
  int method_index() const { return method_index_; }

 private:
  void OnTaskDone() override;
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;

  // ServerPayloads
  size_t request_payload_bytes() const override;
  Buffer TakeRequestPayload() override;
  Task<absl::StatusOr<Buffer>> AllocateBuffer(size_t bytes) override;
  void SetResponsePayload(Payload payload) override;
  size_t response_payload_room() const override;
  VERBENA_CORO_WRAPPER Task<absl::Status> WriteResponsePayload(BufferView part) override;
  absl::StatusOr<RemoteMemory> Remote(const RemoteMemoryHandle& handle) override;
  Task<absl::StatusOr<Loan>> Lend(BufferView view, LeaseAccess access) override;

  // That of this call, begun if it has none yet; while its context lives.
  ServerBulk& Bulk();
  void BeginBulk(TimePoint deadline, const RequestBulk& bulk, UsedLanding landing);
  void RunHandler();
  Task<absl::Status> FetchAndRun();
  // The handler has ended well.
  void Complete();
  void Respond(const absl::Status& status, Outcome outcome);
  void AppendResponse();
  void WriteResponse(char* body);
  void Finish();

  // What not every call needs is made out of line, so that what all do stays small.
  [[gnu::noinline]] void CompleteWithBulk();
  [[gnu::noinline]] void EndBulkRequest(Link& link);
  // False when there are no WRITEs for the response to wait for.
  [[gnu::noinline]] bool StartBulkResponse(Link& link);
  [[gnu::noinline]] void FinishLarge();
  [[gnu::cold, gnu::noinline]] void RespondUnlikeTheMethod(bool has_payload);
  [[gnu::cold, gnu::noinline]] absl::Status NotParsed() const;
  [[gnu::cold, gnu::noinline]] absl::Status NoTask() const;
  // For the exception that is being handled.
  [[gnu::cold, gnu::noinline]] absl::Status Thrown() const;
  [[gnu::cold, gnu::noinline]] void SetFailure(const absl::Status& status, Outcome outcome,
                                               size_t max_bytes);

  ServerShard& shard_;
  const int method_index_;
  const MethodTable::Entry& entry_;
  std::unique_ptr<google::protobuf::MessageLite> request_;
  std::unique_ptr<google::protobuf::MessageLite> reply_;

  // Of the current call.
  ServerLink* link_ = nullptr;
  CallId id_;
  std::optional<CancelScope> cancel_;
  std::optional<ServerContext> context_;
  Task<absl::Status> task_;
  bool timer_running_ = false;
  // What the call moves one-sided: kept from call to call, null until one does.
  std::unique_ptr<ServerBulk> bulk_;
  bool has_bulk_ = false;      // this one does
  bool fetching_ = false;      // the handler has not started
  bool asks_landing_ = false;  // the handler has ended
  size_t request_bytes_ = 0;
  FrameHeader response_;
  std::string failure_body_;  // of a failed call; empty when reply_ is the body
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_CALL_H_
