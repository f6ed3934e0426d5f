#include "tests/transport/executor/fake_device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <utility>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace {

struct FakeCq : ibv_cq {
  explicit FakeCq(FakeDevice& its_device) : ibv_cq{}, device(its_device) {}
  FakeDevice& device;
  std::mutex mutex;
  std::deque<uint64_t> completions;
  bool armed = false;
  int events = 0;  // raised and not acknowledged
};

struct FakeChannel : ibv_comp_channel {
  FakeCq* cq = nullptr;
};

}  // namespace

FakeDevice::FakeDevice() {
  context_.ops.poll_cq = &PollCq;
  context_.ops.req_notify_cq = &ReqNotifyCq;
}

FakeDevice::~FakeDevice() {
  EXPECT_EQ(live_cqs_, 0);
  EXPECT_EQ(live_channels_, 0);
}

void FakeDevice::Push(ibv_cq* cq, uint64_t wr_id) {
  auto* fake = static_cast<FakeCq*>(cq);
  std::lock_guard lock(fake->mutex);
  fake->completions.push_back(wr_id);
  if (!std::exchange(fake->armed, false)) return;
  ++fake->events;
  const uint64_t one = 1;
  ASSERT_EQ(write(fake->channel->fd, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

int FakeDevice::PollCq(ibv_cq* cq, int count, ibv_wc* completions) {
  auto* fake = static_cast<FakeCq*>(cq);
  if (fake->device.poll_error_ != 0) return fake->device.poll_error_;
  std::lock_guard lock(fake->mutex);
  int polled = 0;
  for (; polled < count && !fake->completions.empty(); ++polled) {
    completions[polled] = {};
    completions[polled].wr_id = fake->completions.front();
    fake->completions.pop_front();
  }
  return polled;
}

int FakeDevice::ReqNotifyCq(ibv_cq* cq, int) {
  auto* fake = static_cast<FakeCq*>(cq);
  FakeDevice& device = fake->device;
  if (device.arm_error_ != 0) return device.arm_error_;
  if (device.before_arming_) device.before_arming_(cq);
  ++device.arms_;
  std::lock_guard lock(fake->mutex);
  fake->armed = true;
  return 0;
}

absl::StatusOr<ibv_comp_channel*> FakeDevice::CreateCompChannel() {
  auto* channel = new FakeChannel;
  channel->context = &context_;
  channel->fd = eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
  ++live_channels_;
  return channel;
}

absl::Status FakeDevice::DestroyCompChannel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete static_cast<FakeChannel*>(channel);
  --live_channels_;
  return absl::OkStatus();
}

absl::StatusOr<ibv_cq*> FakeDevice::GetCqEvent(ibv_comp_channel* channel) {
  uint64_t one = 0;
  if (read(channel->fd, &one, sizeof(one)) < 0) return absl::UnavailableError("no event");
  return static_cast<FakeChannel*>(channel)->cq;
}

void FakeDevice::AckCqEvents(ibv_cq* cq, unsigned count) {
  ++acknowledgements_;
  static_cast<FakeCq*>(cq)->events -= static_cast<int>(count);
}

absl::StatusOr<ibv_cq*> FakeDevice::CreateCq(int entries, void* cq_context,
                                             ibv_comp_channel* channel) {
  if (!create_cq_status_.ok()) return create_cq_status_;
  auto* cq = new FakeCq(*this);
  cq->context = &context_;
  cq->cq_context = cq_context;
  cq->channel = channel;
  cq->cqe = entries;
  static_cast<FakeChannel*>(channel)->cq = cq;
  ++live_cqs_;
  return cq;
}

absl::Status FakeDevice::DestroyCq(ibv_cq* cq) {
  if (!destroy_cq_status_.ok()) return destroy_cq_status_;
  auto* fake = static_cast<FakeCq*>(cq);
  EXPECT_EQ(fake->events, 0) << "an event was not acknowledged: verbs would wait for ever";
  delete fake;
  --live_cqs_;
  return absl::OkStatus();
}

}  // namespace verbena::internal
