// The part of a ServerCall for servers with interceptors: runs them around the handler.

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "verbena/rpc/server/server_call.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/rpc/stream/message_hooks.h"

namespace verbena::internal {

class ServerCall::Chain final : public InterceptorChain<ServerInterceptor, ServerCallView> {
 public:
  Chain(ServerCall& call, ServerCallView& view)
      : InterceptorChain(call.shard_.limits().interceptors, view), call_(call) {}

 private:
  Task<absl::Status> Last() override {
    call_.step_ = Step::kHandler;
    Task<absl::Status> handler = call_.InvokeHandler();
    if (!handler) co_return call_.NoTask();
    co_return co_await std::move(handler);
  }

  ServerCall& call_;
};

Task<absl::Status> ServerCall::RunIntercepted() {
  ServerCallView view(*context_, carried_.incoming_metadata(), messages_.request(),
                      messages_.reply());
  Chain chain(*this, view);
  using Hooks = MessageHooks<ServerInterceptor, ServerCallView>;
  std::optional<Hooks> hooks;
  ServedStream* const stream = stream_.get();
  if (stream != nullptr && Hooks::AreWanted(shard_.limits().interceptors)) {
    hooks.emplace(shard_.limits().interceptors, view, Streams::kServer, stream->sender(),
                  stream->receiver());
  }
  co_return co_await chain.Run();
}

}  // namespace verbena::internal
