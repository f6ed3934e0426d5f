#include "tests/conformance/watchdog.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "fmt/format.h"
#include "tests/conformance/patience.h"

namespace verbena::internal::conformance {
namespace {

constexpr std::chrono::milliseconds kLongestCase(4 * kPatienceMs);

}  // namespace

// gtest owns its listeners.
void Watchdog::Install() { testing::UnitTest::GetInstance()->listeners().Append(new Watchdog()); }

Watchdog::Watchdog() : thread_([this] { Watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::OnTestStart(const testing::TestInfo& test) {
  {
    std::lock_guard lock(mutex_);
    running_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
    ++generation_;
  }
  changed_.notify_one();
}

void Watchdog::OnTestEnd(const testing::TestInfo&) {
  {
    std::lock_guard lock(mutex_);
    running_.clear();
    ++generation_;
  }
  changed_.notify_one();
}

void Watchdog::Watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const uint64_t generation = generation_;
    const auto changed = [&] { return ending_ || generation_ != generation; };
    if (running_.empty()) {
      changed_.wait(lock, changed);
    } else if (!changed_.wait_for(lock, kLongestCase, changed)) {
      fmt::print(stderr, "{} hangs: ended after {} ms\n", running_, kLongestCase.count());
      std::abort();
    }
  }
}

}  // namespace verbena::internal::conformance
