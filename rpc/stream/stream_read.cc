// One Read of a stream: how it begins, waits, takes a message, and leaves if its coroutine does.

#include <utility>

#include "verbena/rpc/stream/stream_receiver.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

void StreamReceiver::BeginMemoryWait(StreamMemoryWait& wait) {
  VERBENA_CHECK(memory_wait_ == nullptr) << "two Reads of one stream at once";
  memory_wait_ = &wait;
  // The message may be gone since its Read was told of it.
  if (!failure_.ok() || discards_) wait.EndEarly();
}

void StreamReceiver::DropCancelledRead() {
  if (memory_wait_ != nullptr && memory_wait_->scope().requested()) {
    std::exchange(memory_wait_, nullptr)->Forget();
  }
  if (reader_ == nullptr || reader_waits()) return;
  StreamRead& read = *reader_;
  if (read.scope_ == nullptr || !read.scope_->requested()) return;
  Leave(read);
  read.receiver_ = nullptr;
  if (read.state_ == StreamRead::State::kEnd || read.state_ == StreamRead::State::kFailed) return;
  read.status_ = read.scope_->status();
  read.state_ = StreamRead::State::kFailed;
}

bool StreamReceiver::Start(StreamRead& read) {
  if (reader_ != nullptr || memory_wait_ != nullptr) [[unlikely]]
    DropCancelledRead();
  VERBENA_CHECK(reader_ == nullptr && memory_wait_ == nullptr) << "two Reads of one stream at once";
  if (read.payload_ != nullptr) read.payload_->wanted = 0;
  if (returned_ != nullptr) {
    // This message was parsed once already.
    (void)read.into_.ParseFromString(returned_->message);
    if (read.payload_ != nullptr && returned_->has_payload) {
      read.payload_->buffer = std::move(returned_->payload);
      read.payload_->present = true;
    }
    returned_.reset();
    read.state_ = StreamRead::State::kMessage;
    return false;
  }
  EndCounted();
  reader_ = &read;
  const Taken taken = failure_.ok() ? TakeKept(read) : Taken::kFailed;
  if (taken == Taken::kPart && !ended_) {
    read.state_ = StreamRead::State::kWaiting;
    SetPeerOwes(true);
    return true;
  }
  reader_ = nullptr;
  if (taken == Taken::kMessage) {
    read.state_ = StreamRead::State::kMessage;
  } else if (taken == Taken::kNeedsMemory) {
    read.state_ = StreamRead::State::kNeedsMemory;
  } else if (taken == Taken::kPart) {
    EndAssembly();
    read.state_ = StreamRead::State::kEnd;
  } else {
    read.status_ = failure_;
    read.state_ = StreamRead::State::kFailed;
  }
  return false;
}

// The message that had come for it is the next Read's.
void StreamReceiver::Leave(StreamRead& read) {
  reader_ = nullptr;
  SetPeerOwes(false);
  if (read.state_ != StreamRead::State::kMessage) return;
  returned_ = std::make_unique<Returned>();
  read.into_.SerializeToString(&returned_->message);
  if (read.payload_ == nullptr) return;
  returned_->has_payload = std::exchange(read.payload_->present, false);
  if (returned_->has_payload) returned_->payload = std::move(read.payload_->buffer);
}

StreamRead::~StreamRead() {
  // The receiver may be gone if this was never awaited.
  if (state_ != State::kNew && receiver_ != nullptr) receiver_->Leave(*this);
}

bool StreamRead::Await(PromiseBase& caller) {
  StreamReceiver* const receiver = std::exchange(receiver_, nullptr);
  if (Cancelled(caller)) {
    status_ = cancel_status();
    state_ = State::kFailed;
    return false;
  }
  scope_ = caller.cancel;
  if (!receiver->Start(*this)) return false;
  receiver_ = receiver;
  Suspend(caller);
  return true;
}

void StreamRead::End(State state) {
  state_ = state;
  Resume();
}

// The receiver knows it until its coroutine resumes, or another Read begins before.
void StreamRead::Detach() {
  if (receiver_ != nullptr) receiver_->SetPeerOwes(false);
  status_ = cancel_status();
  state_ = State::kFailed;
}

absl::StatusOr<bool> StreamRead::await_resume() {
  if (receiver_ != nullptr) std::exchange(receiver_, nullptr)->reader_ = nullptr;
  const State state = std::exchange(state_, State::kTaken);
  if (state == State::kNeedsMemory) return false;
  if (payload_ != nullptr) payload_->wanted = 0;
  if (state == State::kMessage) return true;
  if (state == State::kEnd) return false;
  return std::move(status_);
}

}  // namespace verbena::internal
