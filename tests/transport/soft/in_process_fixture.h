// InProcessTest: two devices and two QPs in one process, stepped by hand.
// Over TCP (test_wire.h) a message needs the engines' help, so Poll() lets them run.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"

namespace verbena::internal::soft {

class InProcessTest : public testing::Test {
 protected:
  void SetUp() override;

  void Make(QpEndOptions a, QpEndOptions b);
  void MakeConnected(QpEndOptions a = {}, QpEndOptions b = {});
  std::vector<ibv_wc> Poll(ibv_cq* cq, int room = 64);
  // Lets both engines do what they can.
  void Settle();
  std::vector<ibv_event_type> AsyncEvents(Device& device);

  bool direct_copies_ = true;
  ManualClock clock_;
  std::unique_ptr<SoftDevice> device_a_;
  std::unique_ptr<SoftDevice> device_b_;
  std::unique_ptr<QpEnd> a_;
  std::unique_ptr<QpEnd> b_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_
