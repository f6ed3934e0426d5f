// Probing finds what a device can do, and refuses some devices. A soft device, with a profile or
// with another post_send, stands for the hardware.

#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/device/delegating_device.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::internal {
namespace probe_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<SoftDevice> MakeDevice(const std::string& name, const SoftProfile& profile) {
  return SoftDevice::Create({.name = name, .engine_thread = false, .profile = profile}).value();
}

// Answers posts to a device's send queues in its place. One exists at a time.
class PostsAnswered {
 public:
  // The result of a post that goes no further, or nullopt to leave it to the device.
  using Answer = std::function<std::optional<int>(const ibv_qp& qp, const ibv_send_wr& request)>;

  PostsAnswered(Device& device, Answer answer) : device_(device) {
    answer_ = std::move(answer);
    post_ = device.context()->ops.post_send;
    device.context()->ops.post_send = [](ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
      const std::optional<int> result = answer_(*qp, *request);
      return result.has_value() ? *result : post_(qp, request, bad);
    };
  }
  PostsAnswered(const PostsAnswered&) = delete;
  PostsAnswered& operator=(const PostsAnswered&) = delete;
  ~PostsAnswered() { device_.context()->ops.post_send = post_; }

 private:
  inline static Answer answer_;
  inline static int (*post_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  Device& device_;
};

// Hides each completion of a device for `polls` polls.
class LateCompletions {
 public:
  LateCompletions(Device& device, int polls) : device_(device) {
    polls_ = polls;
    left_ = polls;
    poll_ = device.context()->ops.poll_cq;
    device.context()->ops.poll_cq = [](ibv_cq* cq, int entries, ibv_wc* completions) {
      if (left_-- > 0) return 0;
      const int found = poll_(cq, entries, completions);
      if (found > 0) left_ = polls_;
      return found;
    };
  }
  LateCompletions(const LateCompletions&) = delete;
  LateCompletions& operator=(const LateCompletions&) = delete;
  ~LateCompletions() { device_.context()->ops.poll_cq = poll_; }

 private:
  inline static int (*poll_)(ibv_cq*, int, ibv_wc*) = nullptr;
  inline static int polls_ = 0;
  inline static int left_ = 0;
  Device& device_;
};

TEST(ProbeTest, ADeviceThatTakesItsTimeHasWindowsAllTheSame) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("busy_0", {});
  const LateCompletions late(*device, 200);
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->memory_windows);
}

TEST(ProbeTest, ADeviceThatNeverEndsABindHasNoWindows) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("stuck_0", {});
  const PostsAnswered posts(*device, [](const ibv_qp&, const ibv_send_wr& request) {
    return request.opcode == IBV_WR_BIND_MW ? std::optional<int>(0) : std::nullopt;
  });
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->memory_windows);
}

TEST(ProbeTest, FindsWhatADeviceSaysThatItHas) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("soft0", {});
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->srq && found->srq_limit_event && found->last_wqe_event && found->atomics &&
              found->memory_windows && found->flushes_in_error);
  EXPECT_GE(found->max_inline_bytes, 2048u);
}

// As EFA: it has ports, GIDs and memory regions, and makes no RC queue pair.
TEST(ProbeTest, ADeviceWithoutReliableConnectionsIsRefusedInWords) {
  const std::unique_ptr<SoftDevice> device = MakeDevice(
      "efa_0",
      {.reliable_connections = false, .srq = false, .atomics = false, .memory_windows = false});
  const absl::Status refused = ProbeCapabilities(*device).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("efa_0 has no reliable connections (RC queue pairs)"),
                    HasSubstr("use another RDMA device, or soft:tcp"), HasSubstr("EOPNOTSUPP")));
}

// Answers EINVAL to queue pairs of the given types.
class PickyDevice final : public DelegatingDevice {
 public:
  PickyDevice(Device& device, std::vector<ibv_qp_type> refused)
      : DelegatingDevice(device), refused_(std::move(refused)) {}
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    if (std::ranges::find(refused_, attributes.qp_type) != refused_.end()) {
      return ErrnoStatus(EINVAL, "ibv_create_qp");
    }
    attributes.qp_type = IBV_QPT_RC;  // all that the software device makes
    return DelegatingDevice::CreateQp(pd, attributes);
  }

 private:
  const std::vector<ibv_qp_type> refused_;
};

// As usNIC: EINVAL to RC, and datagrams.
TEST(ProbeTest, ADeviceThatMakesQueuePairsOfDatagramsAloneHasNoReliableConnections) {
  const std::unique_ptr<SoftDevice> soft = MakeDevice("usnic_0", {});
  PickyDevice device(*soft, {IBV_QPT_RC});
  const absl::Status refused = ProbeCapabilities(device).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has no reliable connections"));
}

TEST(ProbeTest, AnInvalidArgumentThatAllQueuePairsHaveIsNotCalledALackOfReliableConnections) {
  const std::unique_ptr<SoftDevice> soft = MakeDevice("tiny_0", {});
  PickyDevice device(*soft, {IBV_QPT_RC, IBV_QPT_UD});
  const absl::Status refused = ProbeCapabilities(device).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("EINVAL"), Not(HasSubstr("reliable"))));
}

// Makes each queue pair, and grants it 48 inline bytes at most.
class StingyDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override {
    attributes.cap.max_inline_data = std::min(attributes.cap.max_inline_data, 48u);
    return DelegatingDevice::CreateQp(pd, attributes);
  }
};

// As i40iw: a SEND of more inline bytes than were granted is refused, and ends its link.
TEST(ProbeTest, AProviderThatGrantsFewerInlineBytesThanAskedForIsBelieved) {
  const std::unique_ptr<SoftDevice> soft = MakeDevice("i40iw0", {});
  StingyDevice device(*soft);
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->max_inline_bytes, 48u);
}

// As X722: no shared receive queue, and what is posted in ERR never completes.
TEST(ProbeTest, WithoutSharedReceiveQueuesAFlushInErrorIsTriedAllTheSame) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("x722_0", {.srq = false});
  const PostsAnswered posts(*device, [](const ibv_qp& qp, const ibv_send_wr&) {
    return qp.state == IBV_QPS_ERR ? std::optional<int>(0) : std::nullopt;
  });
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->srq);
  EXPECT_FALSE(found->last_wqe_event);
  EXPECT_FALSE(found->flushes_in_error);
}

TEST(ProbeTest, WindowsAreThereOnlyIfTheirRequestsAreTaken) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("soft0", {});
  for (const ibv_wr_opcode refused : {IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV}) {
    const PostsAnswered posts(*device, [refused](const ibv_qp&, const ibv_send_wr& request) {
      return request.opcode == refused ? std::optional<int>(EINVAL) : std::nullopt;
    });
    const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->memory_windows) << refused;
    EXPECT_FALSE(found->windows_checked) << refused;
  }
}

// The device is as rxe: it finds a window only by its present key.
TEST(ProbeTest, AWindowIsBoundAgainUnderItsPresentKey) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("rxe0", {});
  std::map<const ibv_mw*, uint32_t> keys;
  const PostsAnswered posts(
      *device, [&keys](const ibv_qp&, const ibv_send_wr& request) -> std::optional<int> {
        if (request.opcode != IBV_WR_BIND_MW) return std::nullopt;
        const ibv_mw* const window = request.bind_mw.mw;
        if (window->rkey != keys.try_emplace(window, window->rkey).first->second) return EINVAL;
        keys[window] = request.bind_mw.rkey;
        return std::nullopt;
      });
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->memory_windows);
}

// It refuses every post in ERR, which says nothing about windows.
TEST(ProbeTest, ADeviceThatTakesNothingInErrorShowsItsWindowsBefore) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("bnxt_re0", {});
  const PostsAnswered posts(*device, [](const ibv_qp& qp, const ibv_send_wr&) {
    return qp.state == IBV_QPS_ERR ? std::optional<int>(EINVAL) : std::nullopt;
  });
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->memory_windows);
  EXPECT_FALSE(found->flushes_in_error);
}

// As mana: it allocates windows, takes no post outside RTS, and no request of windows.
TEST(ProbeTest, ADeviceThatAllocatesWindowsAndNeverBindsThemHasNone) {
  const std::unique_ptr<SoftDevice> device = MakeDevice("mana_0", {});
  const PostsAnswered posts(*device, [](const ibv_qp& qp, const ibv_send_wr& request) {
    const bool taken = qp.state == IBV_QPS_RTS && request.opcode == IBV_WR_SEND;
    return taken ? std::nullopt : std::optional<int>(EINVAL);
  });
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(*device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->memory_windows);
  EXPECT_FALSE(found->windows_checked);
  EXPECT_FALSE(found->flushes_in_error);
}

// Tells only those queue pairs that had a peer that their last receive is done.
class PeersOnlyDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    if (attributes.qp_state == IBV_QPS_RTS) had_peer_.insert(qp);
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override {
    absl::StatusOr<ibv_async_event> event = DelegatingDevice::GetAsyncEvent();
    if (event.ok() && !had_peer_.contains(event->element.qp))
      event->event_type = IBV_EVENT_COMM_EST;
    return event;
  }

 private:
  std::set<const ibv_qp*> had_peer_;
};

// As some firmware of mlx5.
TEST(ProbeTest, TheLastReceiveIsAwaitedOnAQueuePairThatHadAPeer) {
  const std::unique_ptr<SoftDevice> soft = MakeDevice("mlx5_0", {});
  PeersOnlyDevice device(*soft);
  const absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->last_wqe_event);
}

// Connects no queue pair by numbers, as an iWARP device does not.
class UnconnectedDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    if (attributes.qp_state == IBV_QPS_RTR) return ErrnoStatus(EINVAL, "ibv_modify_qp");
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }
};

TEST(ProbeTest, WithoutAPeerWindowsAreThereIfTheirRequestsAreTakenInError) {
  const std::unique_ptr<SoftDevice> soft = MakeDevice("iwarp_0", {});
  UnconnectedDevice device(*soft);
  absl::StatusOr<DeviceCapabilities> found = ProbeCapabilities(device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->memory_windows && found->last_wqe_event && found->flushes_in_error);
  const PostsAnswered posts(
      *soft, [](const ibv_qp&, const ibv_send_wr&) { return std::optional<int>(EINVAL); });
  found = ProbeCapabilities(device);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->memory_windows);
}

}  // namespace probe_test
}  // namespace verbena::internal
