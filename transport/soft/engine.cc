#include "verbena/transport/soft/engine.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal::soft {

Engine::Engine(Clock& clock, bool threaded, Duration tick)
    : clock_(clock), threaded_(threaded), tick_(tick) {
  if (threaded_) doorbell_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

Engine::~Engine() {
  Stop();
  if (doorbell_fd_ >= 0) close(doorbell_fd_);
}

absl::Status Engine::Start(Client& client, std::vector<Wire*> wires) {
  VERBENA_CHECK(client_ == nullptr) << "the engine drives a device already";
  client_ = &client;
  wires_ = std::move(wires);
  watched_ = {{.fd = doorbell_fd_, .events = POLLIN, .revents = 0}};
  for (const Wire* wire : wires_) {
    watched_.push_back({.fd = wire->fd(), .events = POLLIN, .revents = 0});
  }
  if (!threaded_) return absl::OkStatus();
  try {
    thread_ = StartQuietThread([this] { Run(); });
  } catch (const std::system_error& refused) {
    return absl::ResourceExhaustedError(
        fmt::format("the system starts no thread for a soft device: {}", refused.what()));
  }
  return absl::OkStatus();
}

void Engine::Stop() {
  if (thread_.joinable()) {
    stop_.store(true);
    Wake();
    thread_.join();
  }
  client_ = nullptr;
  wires_.clear();
}

void Engine::Run() {
  while (!stop_.load()) {
    ServeWires();
    client_->Serve();
    FireTimers();
    if (clock_.Now() >= next_tick_) {
      client_->Tick();
      next_tick_ = clock_.Now() + tick_;
    }
    Sleep();
  }
}

bool Engine::Step() {
  bool progress = ServeWires();
  progress |= client_->Serve();
  progress |= FireTimers();
  progress |= client_->Tick();
  return progress;
}

bool Engine::ServeWires() {
  bool progress = false;
  for (Wire* wire : wires_) progress |= wire->Serve(clock_.Now());
  return progress;
}

void Engine::Sleep() {
  const Duration left = TimeToSleep();
  timespec timeout{};
  if (left != Duration::max()) {
    timeout.tv_sec = left.count() / 1'000'000'000;
    timeout.tv_nsec = left.count() % 1'000'000'000;
  }
  ppoll(watched_.data(), watched_.size(), left == Duration::max() ? nullptr : &timeout, nullptr);
  ticking_.store(true, std::memory_order_relaxed);
  eventfd_t count;
  eventfd_read(doorbell_fd_, &count);
}

Duration Engine::TimeToSleep() {
  // In this order: a CQ that becomes polled after the look sees that nobody ticks, and wakes us.
  ticking_.store(false);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  TimePoint until = kNever;
  for (const Wire* wire : wires_) until = std::min(until, wire->next());
  if (client_->NeedsTick()) {
    ticking_.store(true);
    until = std::min(until, next_tick_);
  }
  {
    std::lock_guard<std::mutex> lock(timers_mutex_);
    if (!timers_.empty()) until = std::min(until, timers_.begin()->first);
  }
  if (until == kNever) return Duration::max();
  return std::max(Duration::zero(), until - clock_.Now());
}

int Engine::DuplicateDoorbell() const {
  return doorbell_fd_ < 0 ? -1 : fcntl(doorbell_fd_, F_DUPFD_CLOEXEC, 0);
}

void Engine::Wake() {
  if (doorbell_fd_ >= 0) eventfd_write(doorbell_fd_, 1);
}

void Engine::OnTickNeeded() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ticking_.load(std::memory_order_relaxed)) Wake();
}

void Engine::StartTimer(TimePoint when, uint32_t qpn, uint32_t token) {
  bool sooner;
  {
    std::lock_guard<std::mutex> lock(timers_mutex_);
    auto timer = timers_.emplace(when, Timer{qpn, token});
    sooner = timer == timers_.begin();
  }
  if (sooner) Wake();
}

bool Engine::FireTimers() {
  std::vector<Timer> due;
  {
    std::lock_guard<std::mutex> lock(timers_mutex_);
    if (timers_.empty()) return false;
    const auto end = timers_.upper_bound(clock_.Now());
    for (auto timer = timers_.begin(); timer != end; ++timer) due.push_back(timer->second);
    timers_.erase(timers_.begin(), end);
  }
  for (const Timer& timer : due) client_->OnTimer(timer.qpn, timer.token);
  return !due.empty();
}

}  // namespace verbena::internal::soft
