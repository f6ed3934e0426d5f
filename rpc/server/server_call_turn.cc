// The part of a ServerCall for servers with an Admission: the wait for its turn.

#include "absl/status/status.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/server_call.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/cancel.h"

namespace verbena::internal {

void ServerCall::AwaitTurn(bool apart) {
  if (shard_.admission()->queues()) {
    step_ = Step::kQueued;
    request_apart_ = apart;
    shard_.admission()->Enqueue(*this);
    return;
  }
  shard_.NoteStarted();
  Launch(apart);
}

void ServerCall::EndTurn() {
  if (Admission* admission = shard_.admission()) admission->EndRun(*this);
}

void ServerCall::RunQueued() {
  step_ = Step::kHandler;
  if (deadline_ <= shard_.executor().now()) {
    EndTurn();
    Respond(CancelStatus(absl::StatusCode::kDeadlineExceeded), Outcome::kNotExecuted);
    return;
  }
  shard_.NoteStarted();
  // Streams may last for ever.
  if (stream_.get() != nullptr) EndTurn();
  Launch(request_apart_);
}

void ServerCall::RefuseQueued(RefusalReason reason) {
  step_ = Step::kHandler;
  if (bulk_.get() != nullptr || stream_.get() != nullptr) {
    shard_.NoteRefused(reason);
    Respond(shard_.RefusalStatus(reason), Outcome::kNotExecuted);
    return;
  }
  // The Status is encoded already.
  ServerSession& session = *session_;
  const CallId id = id_;
  StopTimer();
  context_.reset();
  cancel_.reset();
  shard_.CountRefusal(reason);
  Finish();
  session.RefuseQueued(id, reason);
}

}  // namespace verbena::internal
