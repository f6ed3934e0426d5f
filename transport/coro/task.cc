#include "verbena/transport/coro/task.h"

#include <thread>

namespace verbena::internal {
namespace {

// The bridge's reference to the way home, while the bridge has not been resumed.
class BridgeEnd {
 public:
  explicit BridgeEnd(ForeignReturn& way_home) : way_home_(&way_home) {}
  BridgeEnd(BridgeEnd&& other) noexcept : way_home_(std::exchange(other.way_home_, nullptr)) {}
  BridgeEnd& operator=(BridgeEnd&&) = delete;
  ~BridgeEnd() {
    if (way_home_ != nullptr) way_home_->Drop();
  }
  void Arrive() { std::exchange(way_home_, nullptr)->Arrive(); }

 private:
  ForeignReturn* way_home_;
};

struct Bridge {
  struct promise_type {
    Bridge get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
  std::coroutine_handle<> handle;
};

Bridge Cross(BridgeEnd end) {
  end.Arrive();
  co_return;
}

}  // namespace

std::coroutine_handle<> MakeForeignBridge(ForeignReturn& way_home) {
  return Cross(BridgeEnd(way_home)).handle;
}

void ForeignReturn::Arrive() {
  State waiting = State::kWaiting;
  if (!state_.compare_exchange_strong(waiting, State::kReturning, std::memory_order_acq_rel)) {
    Drop();
    return;
  }
  // Posts on the home's own thread, too: the Task never runs inside a call of the foreign side.
  references_.fetch_add(1, std::memory_order_relaxed);
  home_.Post(*this);
  state_.store(State::kReturned, std::memory_order_release);
  Drop();
}

void ForeignReturn::Leave() {
  VERBENA_CHECK(waiting_ != nullptr) << "an awaiter left twice";
  waiting_ = nullptr;
  State waiting = State::kWaiting;
  if (!state_.compare_exchange_strong(waiting, State::kLeft, std::memory_order_acq_rel)) {
    // The home may be destroyed once this returns. By then the message must be in its inbox, which
    // its destructor empties.
    while (state_.load(std::memory_order_acquire) == State::kReturning) std::this_thread::yield();
  }
  Drop();
}

void ForeignReturn::Run() {
  const State state = state_.load(std::memory_order_acquire);
  VERBENA_CHECK(state == State::kReturning || state == State::kReturned) << "state " << state;
  if (waiting_ != nullptr) home_.Ready(*waiting_);
  Drop();
}

void ForeignReturn::Drop() {
  const int references = references_.fetch_sub(1, std::memory_order_acq_rel);
  VERBENA_CHECK(references > 0) << references;
  if (references == 1) delete this;
}

}  // namespace verbena::internal
