// ServerCall: one call that a server runs, from its request frame to its response.
//
// Pooled per method and executor with its messages, so that a call in steady state allocates
// nothing. Owned by its ServerShard while it is pooled, and by itself while it runs; on that
// executor's thread. The link may be lost while the handler runs: the handler is cancelled and runs
// to its end, and its response goes nowhere.

#ifndef VERBENA_RPC_SERVER_SERVER_CALL_H_
#define VERBENA_RPC_SERVER_SERVER_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/internal/call_id.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server/grants_given.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/server_bulk.h"
#include "verbena/rpc/server_context.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class ServerSession;
class ServerShard;

// A request's one-sided part: the header in its frame, and the landing to which its payload was
// written, if any.
struct IncomingBulk {
  RequestBulk request;
  UsedGrant landing;
};

class ServerCall final : public IntrusiveNode<ServerCall>,
                         private TaskCompletion,
                         private SendWaiter,
                         private Timer,
                         private TransferListener {
 public:
  // Messages that were larger than this on the wire are not kept for the next call.
  static constexpr size_t kMaxPooledMessageBytes = 16 * 1024;
  // Requests that were larger than this are not kept while their response waits for room: parsed, a
  // message of small parts takes up to twenty times its bytes.
  static constexpr size_t kMaxWaitingRequestBytes = 256;

  ServerCall(ServerShard& shard, int method_index);
  ~ServerCall() override;

  // Parses the request and runs the handler up to its first wait. `bulk`, which `body` begins with,
  // may be null; its landing is taken.
  void Start(ServerSession& session, CallId id, const FrameHeader& frame, const char* body,
             IncomingBulk* bulk);
  // The memory that the response waits for has come.
  absl::Status OnLanding(const RemoteRange& landing);
  // The caller gave up, or the server ends the call.
  void Cancel(absl::StatusCode reason);
  // No response can be sent any more. Ends the call if the response was all that was left of it.
  void OnLinkDown();

  CallId id() const { return id_; }
  int method_index() const { return method_index_; }
  const char* method_name() const { return entry_.method->descriptor->full_name; }
  // The handler has not ended; otherwise only the response is left to be sent.
  bool running() const { return context_.has_value(); }

 private:
  friend ServerContext;

  void OnTaskDone() override;
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnTransferPosted() override;
  void OnTransferDone(const absl::Status& status) override;

  // This call's ServerBulk, made now if there is none. Valid while the call's context lives.
  ServerBulk& Bulk();
  void BeginBulk(TimePoint deadline, const RequestBulk& bulk, UsedGrant landing);
  void RunHandler();
  Task<absl::Status> FetchAndRun();
  // The handler has ended well.
  void Complete();
  void Respond(const absl::Status& status, Outcome outcome);
  void AppendResponse();
  // The response finds no room, so it waits. If it waits too long, the link closes.
  [[gnu::cold, gnu::noinline]] void AwaitRoom(Link& link);
  void StartResponseTimer(TimePoint until);
  void StopTimer();
  void OnResponseOverdue();
  void WriteResponse(char* body);
  // The length of the bulk header at the start of the body; 0 if there is none.
  size_t response_prefix() const { return response_.flags != 0 ? ResponseBulk::kEncodedBytes : 0; }
  void Finish();

  // Rare paths are out of line to keep the hot path small.
  [[gnu::noinline]] void CompleteWithBulk();
  [[gnu::noinline]] void EndBulkRequest(Link& link);
  // False when there are no WRITEs for the response to wait for.
  [[gnu::noinline]] bool StartBulkResponse(Link& link);
  [[gnu::noinline]] void FinishLarge();
  // For a call whose handler has ended. Each frees its message if that is larger than `most` bytes.
  [[gnu::noinline]] void DropRequestBeyond(size_t most);
  [[gnu::noinline]] void DropReplyBeyond(size_t most);
  [[gnu::cold, gnu::noinline]] void DropFailedReply();
  // Call it before a response that had to wait is serialized.
  [[gnu::noinline]] void CheckReply();
  [[gnu::cold, gnu::noinline]] void RespondUnlikeTheMethod();
  [[gnu::cold, gnu::noinline]] absl::Status NotParsed() const;
  [[gnu::cold, gnu::noinline]] absl::Status NoTask() const;
  // The error that the caller gets for the exception that is being handled.
  [[gnu::cold, gnu::noinline]] absl::Status Thrown() const;
  [[gnu::cold, gnu::noinline]] void SetFailure(const absl::Status& status, Outcome outcome,
                                               size_t max_bytes);

  ServerShard& shard_;
  const int method_index_;
  const MethodTable::Entry& entry_;
  std::unique_ptr<google::protobuf::MessageLite> request_;
  std::unique_ptr<google::protobuf::MessageLite> reply_;

  // State of the current call.
  ServerSession* session_ = nullptr;
  CallId id_;
  std::optional<CancelScope> cancel_;
  std::optional<ServerContext> context_;
  Task<absl::Status> task_;
  TimePoint deadline_ = kNever;
  bool timer_running_ = false;  // for the deadline, then for a response that waits
  uint64_t frames_sent_ = 0;    // over the link, when the response began to wait
  // The call's one-sided part: kept from call to call, null until a call has one.
  std::unique_ptr<ServerBulk> bulk_;
  bool has_bulk_ = false;      // this one does
  bool fetching_ = false;      // the handler has not started
  bool asks_landing_ = false;  // the handler has ended
  size_t request_bytes_ = 0;
  size_t reply_bytes_ = 0;  // when the handler ended
  FrameHeader response_;
  std::string failure_body_;  // of a failed call; empty when reply_ is the body
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVER_CALL_H_
