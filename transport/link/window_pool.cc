#include "verbena/transport/link/window_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/throttled_log.h"

namespace verbena::internal {
namespace {

// A key's low 8 bits count its bindings (InfiniBand specification, volume 1, 10.6.7.2.7). One of
// the 256 is what the window was allocated with.
constexpr uint32_t kMaxBindings = 255;

// A device that is short of windows is short for each link, and peers connect as often as they
// like.
void LogShortage(const std::string& message) {
  static thread_local ThrottledLog log({.lines = 1, .interval = std::chrono::seconds(10)});
  log.Write(LogLevel::kWarning, Clock::Real().Now(), message);
}

}  // namespace

WindowBatch AllocateWindows(Device& device, ibv_pd* pd, uint32_t count) {
  WindowBatch batch;
  batch.windows.reserve(count);
  while (batch.windows.size() < count) {
    absl::StatusOr<ibv_mw*> mw = device.AllocMw(pd);
    if (!mw.ok()) {
      batch.failure = mw.status();
      break;
    }
    batch.windows.emplace_back(device, *mw);
  }
  return batch;
}

WindowPool::WindowPool(uint32_t max_windows) : max_windows_(max_windows) {
  all_.reserve(max_windows);
  blank_.reserve(max_windows);
  free_.reserve(size_t{2} * max_windows);
}

MemoryWindow* WindowPool::Take() {
  if (free() == 0) return nullptr;
  MemoryWindow& window = *free_[first_free_++];
  // Refill() may have lowered the bound below it.
  if (first_free_ >= max_windows_) {
    free_.erase(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(first_free_));
    first_free_ = 0;
  }
  ++window.bindings;
  window.rkey = ibv_inc_rkey(window.rkey);
  return &window;
}

void WindowPool::GiveBack(MemoryWindow& window) {
  VERBENA_CHECK(free() < allocated_) << "a window is given back twice, key " << window.rkey;
  if (window.bindings < kMaxBindings) {
    free_.push_back(&window);
    return;
  }
  worn_.push_back(std::move(window.mw));
  blank_.push_back(&window);
  --allocated_;
}

uint32_t WindowPool::BeginRefill(uint32_t wanted) {
  const uint32_t enough = std::min(max_windows_, std::max(wanted, kSpareWindows));
  if (expected_ > 0 || free() >= enough || allocated_ >= max_windows_) return 0;
  expected_ = std::min(max_windows_ - allocated_, std::max(enough - free(), kSpareWindows));
  return expected_;
}

void WindowPool::Refill(WindowBatch batch) {
  expected_ = 0;
  failure_ = std::move(batch.failure);
  for (MwHandle& mw : batch.windows) {
    VERBENA_CHECK(allocated_ < max_windows_) << "of " << max_windows_ << " windows";
    MemoryWindow* window = nullptr;
    if (blank_.empty()) {
      all_.push_back(std::make_unique<MemoryWindow>());
      window = all_.back().get();
    } else {
      window = blank_.back();
      blank_.pop_back();
    }
    *window = {.mw = std::move(mw)};
    window->rkey = window->mw->rkey;
    ++allocated_;
    free_.push_back(window);
  }
  if (failure_.ok() || allocated_ == 0 || allocated_ == max_windows_) return;
  LogShortage(fmt::format("a link gets {} memory windows instead of {}: {}", allocated_,
                          max_windows_, failure_.ToString()));
  max_windows_ = allocated_;
}

std::vector<MwHandle> WindowPool::TakeWorn() { return std::exchange(worn_, {}); }

std::vector<MwHandle> WindowPool::TakeAll() {
  std::vector<MwHandle> taken = TakeWorn();
  for (const std::unique_ptr<MemoryWindow>& window : all_) {
    if (window->mw) taken.push_back(std::move(window->mw));
  }
  free_.clear();
  first_free_ = 0;
  allocated_ = max_windows_ = 0;
  return taken;
}

}  // namespace verbena::internal
