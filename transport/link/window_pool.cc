#include "verbena/transport/link/window_pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// A key's low 8 bits count its bindings (InfiniBand specification, volume 1, 10.6.7.2.7). One of
// the 256 is what the window was allocated with.
constexpr uint32_t kMaxBindings = 255;

}  // namespace

WindowPool::WindowPool(Device& device, ibv_pd* pd, uint32_t max_windows)
    : device_(device), pd_(pd), max_windows_(max_windows), free_(max_windows) {
  all_.reserve(max_windows);
}

absl::Status WindowPool::Allocate(MemoryWindow& window) {
  absl::StatusOr<ibv_mw*> mw = device_.AllocMw(pd_);
  if (!mw.ok()) return mw.status();
  window.mw = MwHandle(device_, *mw);
  window.rkey = (*mw)->rkey;
  window.bindings = 0;
  return absl::OkStatus();
}

absl::StatusOr<MemoryWindow*> WindowPool::Take() {
  // New ones first: that puts off the reuse of a key for longest.
  if (all_.size() < max_windows_) {
    auto window = std::make_unique<MemoryWindow>();
    absl::Status allocated = Allocate(*window);
    if (allocated.ok()) {
      all_.push_back(std::move(window));
      free_[(head_ + free_count_++) % free_.size()] = all_.back().get();
    } else if (all_.empty()) {
      return allocated;
    } else {
      Log(LogLevel::kWarning, fmt::format("a link gets {} memory windows instead of {}: {}",
                                          all_.size(), max_windows_, allocated.ToString()));
      max_windows_ = static_cast<uint32_t>(all_.size());
    }
  }
  if (free_count_ == 0) return nullptr;
  MemoryWindow& window = *free_[head_];
  if (window.bindings == kMaxBindings) {
    window.mw.Reset();
    if (absl::Status allocated = Allocate(window); !allocated.ok()) return allocated;
  }
  head_ = (head_ + 1) % free_.size();
  --free_count_;
  ++in_use_;
  ++window.bindings;
  window.rkey = ibv_inc_rkey(window.rkey);
  return &window;
}

void WindowPool::GiveBack(MemoryWindow& window) {
  assert(in_use_ > 0);
  --in_use_;
  free_[(head_ + free_count_++) % free_.size()] = &window;
}

void WindowPool::DeallocAll() {
  for (const std::unique_ptr<MemoryWindow>& window : all_) window->mw.Reset();
}

}  // namespace verbena
