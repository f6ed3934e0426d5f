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
#include "verbena/rpc/method_table.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server_context.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"

namespace verbena {

class ServerLink;
class ServerShard;

class ServerCall final : public IntrusiveNode<ServerCall>,
                         private TaskCompletion,
                         private SendWaiter,
                         private Timer {
 public:
  // Messages that were larger than this on the wire are not kept for the next call.
  static constexpr size_t kMaxPooledMessageBytes = 64 * 1024;

  ServerCall(ServerShard& shard, int method_index);
  ~ServerCall() override;

  // Parses the request and runs the handler up to its first wait.
  void Start(ServerLink& link, CallId id, const FrameHeader& frame, const char* body);
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
  absl::Status RunHandler();
  void Respond(absl::Status status, Outcome outcome);
  void SetFailure(const absl::Status& status, Outcome outcome, size_t max_bytes);
  void WriteResponse(char* body);
  void Finish();

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
  size_t request_bytes_ = 0;
  FrameHeader response_;
  std::string failure_body_;  // of a failed call; empty when reply_ is the body
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_CALL_H_
