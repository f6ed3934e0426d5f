// CarriedContext: what a server's call carries beside its messages: the request's context block,
// and the trailing metadata of its answer.
//
// Part of a ServerCall, on its executor's thread. Made when a call first has either, and kept for
// later calls; a call that has neither pays nothing.

#ifndef VERBENA_RPC_SERVER_CARRIED_CONTEXT_H_
#define VERBENA_RPC_SERVER_CARRIED_CONTEXT_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "verbena/rpc/internal/context_format.h"
#include "verbena/rpc/metadata.h"

namespace verbena::internal {

// A request's context block, as its frame has it: the block, or how many bytes of it travel
// one-sided.
struct IncomingContext {
  ContextHeader header;
  CallContext block;  // empty if it travels
};

class CarriedContext {
 public:
  // The request's block; null if it has none.
  const CallContext* incoming() const { return in_use_ ? &state_->incoming : nullptr; }
  // Its metadata, which interceptors may change.
  Metadata& incoming_metadata() { return Make().incoming.metadata; }
  void SetIncoming(CallContext incoming) { Make().incoming = std::move(incoming); }

  // The answer's block; null if it has none. All but the metadata is at its default.
  const CallContext* outgoing() const {
    return in_use_ && !state_->outgoing.metadata.empty() ? &state_->outgoing : nullptr;
  }
  Metadata& trailing() { return Make().outgoing.metadata; }
  // The bytes of the answer's block.
  size_t outgoing_bytes() const {
    const CallContext* block = outgoing();
    return block == nullptr ? 0 : block->encoded_bytes();
  }

  // The handler has ended: metadata does not wait with the response.
  void DropIncoming() {
    if (in_use_) state_->incoming = {};
  }
  // The call is over.
  void Clear() {
    if (!std::exchange(in_use_, false)) return;
    *state_ = {};
  }
  // The request or the answer has a block, or may get one.
  bool in_use() const { return in_use_; }

 private:
  struct State {
    CallContext incoming;
    CallContext outgoing;
  };
  State& Make() {
    if (state_ == nullptr) state_ = std::make_unique<State>();
    in_use_ = true;
    return *state_;
  }

  std::unique_ptr<State> state_;
  bool in_use_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CARRIED_CONTEXT_H_
