// InProcessTest: two devices and two QPs in one process, stepped by hand.
// Over TCP (test_wire.h) a message needs the engines' help, so Poll() lets them run.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/test_wire.h"

namespace verbena::internal::soft {

class InProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TestWire() == "tcp6" && !HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  }

  void Make(QpEndOptions a, QpEndOptions b) {
    a_.reset();
    b_.reset();
    const SoftDeviceOptions options =
        OnTestWire({.engine_thread = false, .direct_copies = direct_copies_, .clock = &clock_});
    device_a_ = SoftDevice::Create(options).value();
    device_b_ = SoftDevice::Create(options).value();
    a_ = std::make_unique<QpEnd>(*device_a_, a);
    b_ = std::make_unique<QpEnd>(*device_b_, b);
  }
  void MakeConnected(QpEndOptions a = {}, QpEndOptions b = {}) {
    Make(a, b);
    Connect(*a_, *b_);
    if (OverTcp()) Settle();
  }

  std::vector<ibv_wc> Poll(ibv_cq* cq, int room = 64) {
    std::vector<ibv_wc> completions(room);
    int count = ibv_poll_cq(cq, room, completions.data());
    if (OverTcp()) {
      Settle();
      if (count == 0) count = ibv_poll_cq(cq, room, completions.data());
    }
    completions.resize(std::max(count, 0));
    return completions;
  }
  // Lets both engines do what they can.
  void Settle() {
    for (int i = 0; i < 8; ++i) {
      device_a_->Step();
      device_b_->Step();
    }
  }
  std::vector<ibv_event_type> AsyncEvents(Device& device) {
    std::vector<ibv_event_type> types;
    while (true) {
      auto event = device.GetAsyncEvent();
      if (!event.ok()) return types;
      types.push_back(event->event_type);
      device.AckAsyncEvent(*event);
    }
  }

  bool direct_copies_ = true;
  ManualClock clock_;
  std::unique_ptr<SoftDevice> device_a_;
  std::unique_ptr<SoftDevice> device_b_;
  std::unique_ptr<QpEnd> a_;
  std::unique_ptr<QpEnd> b_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_IN_PROCESS_FIXTURE_H_
