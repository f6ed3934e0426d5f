#include "tests/transport/soft/in_process_fixture.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace verbena::internal::soft {

void InProcessTest::SetUp() {
  if (TestWire() == "tcp6" && !HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
}

void InProcessTest::Make(QpEndOptions a, QpEndOptions b) {
  a_.reset();
  b_.reset();
  const SoftDeviceOptions options =
      OnTestWire({.engine_thread = false, .direct_copies = direct_copies_, .clock = &clock_});
  device_a_ = SoftDevice::Create(options).value();
  device_b_ = SoftDevice::Create(options).value();
  a_ = std::make_unique<QpEnd>(*device_a_, a);
  b_ = std::make_unique<QpEnd>(*device_b_, b);
}

void InProcessTest::MakeConnected(QpEndOptions a, QpEndOptions b) {
  Make(a, b);
  Connect(*a_, *b_);
  if (OverTcp()) Settle();
}

std::vector<ibv_wc> InProcessTest::Poll(ibv_cq* cq, int room) {
  std::vector<ibv_wc> completions(room);
  int count = ibv_poll_cq(cq, room, completions.data());
  if (OverTcp()) {
    Settle();
    if (count == 0) count = ibv_poll_cq(cq, room, completions.data());
  }
  completions.resize(std::max(count, 0));
  return completions;
}

void InProcessTest::Settle() {
  for (int i = 0; i < 8; ++i) {
    device_a_->Step();
    device_b_->Step();
  }
}

std::vector<ibv_event_type> InProcessTest::AsyncEvents(Device& device) {
  std::vector<ibv_event_type> types;
  while (true) {
    auto event = device.GetAsyncEvent();
    if (!event.ok()) return types;
    types.push_back(event->event_type);
    device.AckAsyncEvent(*event);
  }
}

}  // namespace verbena::internal::soft
