// Watchdog: ends the run, naming the case, when one case hangs where no deadline can end it
// (destroying a CQ whose events were never acknowledged, say).

#ifndef VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_
#define VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace verbena::conformance {

class Watchdog final : public testing::EmptyTestEventListener {
 public:
  // After InitGoogleTest, once.
  static void Install();

  ~Watchdog() override;

 private:
  Watchdog();
  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestEnd(const testing::TestInfo& test) override;
  void Watch();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string running_;      // empty between cases
  uint64_t generation_ = 0;  // counts cases started
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_
