#include "verbena/rpc/client/intercepted_stream.h"

#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/client/client_chain.h"
#include "verbena/rpc/client/context_call.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {

using google::protobuf::MessageLite;

class InterceptedStream::Chain final : public ClientChain {
 public:
  Chain(InterceptedStream& stream, ClientCallView& view)
      : ClientChain(stream.channel_.interceptors, view), stream_(stream) {}

 private:
  Task<absl::Status> Last() override {
    StreamCall& call = stream_.call_;
    const TaskContext task = co_await CurrentContext();
    CallContext context = ClientChain::Start();
    absl::Status checked = CheckContext(context, stream_.channel_.max_metadata_bytes);
    if (!checked.ok()) {
      call.Refuse(std::move(checked));
    } else if (task.cancel == nullptr || !task.cancel->requested()) {
      call.set_context(std::move(context));
      co_await stream_.beginner_.BeginOnceConnected();
    }
    stream_.begun_.Set();
    co_await StreamEndAwaiter(call);
    absl::Status status = call.status();
    if (status.ok() && call.method().streams == Streams::kClient && !call.reply_apart() &&
        !call.ParseReply(*stream_.messages_.reply)) {
      status = call.Unparsed(*stream_.messages_.reply);
    }
    stream_.ended_well_ = status.ok();
    co_return status;
  }

  InterceptedStream& stream_;
};

InterceptedStream::InterceptedStream(InterceptedChannel channel, StreamBeginner& beginner,
                                     StreamCall& call, StreamMessages messages)
    : channel_(channel), beginner_(beginner), call_(call), messages_(std::move(messages)) {}

void InterceptedStream::Start(Scheduler& scheduler, CallContext context,
                              const TraceContext* trace) {
  if (trace != nullptr) scope_.set_trace(*trace);
  view_.emplace(call_.method(), channel_.target, *messages_.request, *messages_.reply,
                call_.deadline(), call_.InfoOr(own_info_).trailing_metadata);
  view_->metadata = std::move(context.metadata);
  view_->trace = std::move(context.trace);
  view_->priority = context.priority;
  view_->request_id = context.request_id;
  if (decltype(hooks_)::value_type::AreWanted(channel_.interceptors)) {
    hooks_.emplace(channel_.interceptors, *view_, Streams::kClient, call_.sender(),
                   call_.receiver());
  }
  task_ = Run();
  task_.Start(scheduler, &scope_, this);
}

Task<absl::Status> InterceptedStream::Run() {
  Chain chain(*this, *view_);
  absl::Status status = co_await WithDeadline(chain.Run(), call_.deadline().when());
  co_return chain.Marked(std::move(status));
}

void InterceptedStream::OnTaskDone() {
  absl::Status status;
  try {
    status = task_.TakeResult();
  } catch (const std::exception& error) {
    status = Thrown(error.what());
  } catch (...) {
    status = Thrown("something unknown");
  }
  task_ = {};
  End(std::move(status));
}

absl::Status InterceptedStream::Thrown(const char* what) const {
  return WithOutcome(absl::InternalError(fmt::format("an interceptor of {} threw: {}",
                                                     call_.method().full_name, what)),
                     call_.begun() ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
}

void InterceptedStream::End(absl::Status status) {
  if (done_.is_set()) return;
  status_ = std::move(status);
  // They may end without the stream, or before it.
  if (!call_.begun()) {
    call_.EndUnbegun(status_);
  } else {
    call_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  }
  begun_.Set();
  done_.Set();
}

Task<void> InterceptedStream::AwaitDone() { (void)co_await done_.Wait(); }

Task<absl::Status> InterceptedStream::Finish() {
  const absl::Status waited = co_await done_.Wait();
  if (!waited.ok()) {
    scope_.Request(waited.code());
    co_await AwaitDone().In(nullptr);
  }
  // The last message may have turned out not to parse after the response came.
  co_return status_.ok() && ended_well_ ? call_.status() : status_;
}

void InterceptedStream::Abandon() {
  task_ = {};
  call_.GiveUp(CancelStatus(absl::StatusCode::kCancelled));
  End(call_.status());
}

}  // namespace verbena::internal
