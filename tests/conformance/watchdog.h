// Watchdog: ends the run and names the case if a case hangs in a call that no deadline can end,
// such as destroying a CQ whose events were never acknowledged.

#ifndef VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_
#define VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace verbena::internal::conformance {

class Watchdog final : public testing::EmptyTestEventListener {
 public:
  // Call it once, after InitGoogleTest.
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

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_WATCHDOG_H_
