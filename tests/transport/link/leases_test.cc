// Leases of one link are bounded by its windows, open exactly the memory that they lease, and keep
// that memory until no access of the peer is possible.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena::internal {
namespace leases_test {

constexpr size_t kBytes = 4096;

class CountingListener final : public LeaseListener {
 public:
  void OnLeaseEnded(const Lease&) override { ++ended; }
  void OnLeaseLost(const Lease&) override { ++lost; }
  int ended = 0;
  int lost = 0;
};

class LeasesTest : public LinksFixture {
 protected:
  void StartWith(LeaseLevel level, uint32_t windows = 16) {
    LinkLimits limits;
    limits.leases.level = level;
    limits.leases.windows_per_link = windows;
    Start(limits, {});
    link_ = Connect(ignored_, ignored_too_);
    ASSERT_NE(link_, nullptr);
    buffer_ = *client().memory().send().TryAllocate(kBytes);
  }
  void TearDown() override {
    buffer_.Reset();
    LinksFixture::TearDown();
    EXPECT_EQ(client().memory().send().stats().bytes_in_use, 0u);
  }

  Lease& OpenedLease() {
    PollUntil([&] { return link_->free_leases() > 0; });
    absl::StatusOr<Lease*> lease = link_->OpenLease(buffer_.view(), LeaseAccess::kWrite);
    EXPECT_TRUE(lease.ok() && *lease != nullptr) << lease.status();
    return **lease;
  }

  // Its binding is posted.
  Lease& BoundLease() {
    Lease& lease = OpenedLease();
    PollUntil([&] { return link_->leases().bindings_due() == 0; });
    return lease;
  }

  Receiver ignored_;
  Receiver ignored_too_;
  CountingListener listener_;
  Link* link_ = nullptr;
  Buffer buffer_;
};

// Binding a window costs no doorbell of its own. A WRITE leaves behind the SEND, so that this does
// not wait for it.
TEST_F(LeasesTest, BindingsAndSendsOfATurnLeaveWithOneDoorbellAheadOfItsWrites) {
  StartWith(LeaseLevel::kStrict);
  Lease& target = OpenedLease();
  PollUntil([&] { return link_->stats().doorbells > 0; });
  const uint64_t before = link_->stats().doorbells;
  Buffer source = *client().memory().send().TryAllocate(kBytes);
  Lease& told = *link_->OpenLease(source.view(), LeaseAccess::kRead).value();
  const BufferView view = source.view();
  // To itself: the key is good for this link's peer alone, so it ends the link, after the doorbell.
  link_->StartTransfer(Transfer::Direction::kWrite, {&view, 1}, target.terms(), nullptr);
  FrameHeader frame;
  frame.kind = FrameKind::kRequest;
  ASSERT_NE(link_->Append(frame, 0), nullptr);
  PollUntil([&] { return link_->stats().doorbells > before; });
  EXPECT_EQ(link_->stats().doorbells, before + 2);
  EXPECT_NE(told.terms().rkey, target.terms().rkey);
}

TEST_F(LeasesTest, KeysAreUsedUpAndWindowsAreMadeAnew) {
  constexpr int kWindows = 16;
  StartWith(LeaseLevel::kStrict, kWindows);
  std::map<uint32_t, int> last_use;
  for (int i = 1; i <= kWindows * 600; ++i) {
    Lease& lease = BoundLease();
    // A window has 256 keys, and windows are used in turn.
    const auto [used, is_new] = last_use.try_emplace(lease.terms().rkey, i);
    if (!is_new) {
      ASSERT_GT(i - std::exchange(used->second, i), kWindows * 200) << "too early";
    }
    EXPECT_NE(lease.terms().rkey, buffer_.region().rkey());
    link_->EndLease(lease, &listener_);
    PollUntil([&] { return listener_.ended == i; });
    ASSERT_TRUE(link_->open());
  }
}

// As of a call that is refused before it leaves: nobody can have opened the memory.
TEST_F(LeasesTest, ALeaseWhoseWindowIsNotYetBoundEndsAtOnce) {
  StartWith(LeaseLevel::kStrict);
  Lease& bound = BoundLease();
  const uint64_t doorbells = link_->stats().doorbells;
  Lease& first = OpenedLease();
  Lease& second = OpenedLease();
  EXPECT_TRUE(link_->EndLease(first, &listener_));
  EXPECT_EQ(listener_.ended, 1);
  EXPECT_EQ(link_->stats().doorbells, doorbells);
  EXPECT_FALSE(link_->EndLease(bound, &listener_));
  PollUntil([&] { return listener_.ended == 2; });
  EXPECT_FALSE(link_->EndLease(second, &listener_)) << "its binding has left";
  PollUntil([&] { return listener_.ended == 3; });
  EXPECT_TRUE(link_->open());
}

TEST_F(LeasesTest, NoMoreAreGrantedThanThereAreWindows) {
  StartWith(LeaseLevel::kStrict);
  std::vector<Lease*> leases;
  std::set<uint32_t> keys;
  while (leases.size() < 16) {
    PollUntil([&] { return link_->free_leases() > 0; });
    leases.push_back(&OpenedLease());
    EXPECT_TRUE(keys.insert(leases.back()->terms().rkey).second);
  }
  for (int turn = 0; turn < 100; ++turn) executor().Poll();
  EXPECT_EQ(link_->free_leases(), 0u);
  absl::StatusOr<Lease*> none = link_->OpenLease(buffer_.view(), LeaseAccess::kRead);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
  link_->EndLease(*leases.back(), &listener_);
  EXPECT_EQ(listener_.ended, 0) << "before its window is invalidated";
  PollUntil([&] { return link_->free_leases() == 1; });
  EXPECT_EQ(listener_.ended, 1);
  leases.pop_back();
  for (Lease* lease : leases) link_->EndLease(*lease, nullptr);
  PollUntil([&] { return client().leases() == 0; });
}

// Nothing else is sent meanwhile: bindings must make room for each other by themselves.
TEST_F(LeasesTest, ALeaseThatIsWaitedForComesThoughNothingIsSent) {
  StartWith(LeaseLevel::kStrict, /*windows=*/512);
  size_t opened = 0;
  auto open = [](Link& link, const Buffer& buffer, size_t& count) -> Task<void> {
    while (count < 500) {
      absl::Status free = co_await LeaseAwaiter(link, 1);
      EXPECT_TRUE(free.ok()) << free;
      absl::StatusOr<Lease*> lease = link.OpenLease(buffer.view(), LeaseAccess::kRead);
      EXPECT_TRUE(lease.ok() && *lease != nullptr);
      ++count;
    }
  };
  Spawn(executor(), open(*link_, buffer_, opened));
  PollUntil([&] { return opened == 500; });
  EXPECT_EQ(opened, 500u);
  EXPECT_EQ(client().leases(), 500u);
}

TEST_F(LeasesTest, ALoanThatWasAbandonedLosesItsWindowInTimeAndACallsLeaseItsLink) {
  StartWith(LeaseLevel::kStrict);
  LeaseTable table(device(), device_context().pd(),
                   {.level = LeaseLevel::kStrict, .grace = std::chrono::seconds(1)});
  table.Refill(AllocateWindows(device(), device_context().pd(), 2));
  Lease& loan = **table.Open(buffer_.view(), LeaseAccess::kAtomic, LeaseUse::kLoan);
  const TimePoint start{};
  table.Abandon(loan, start);
  table.Prepare(16);
  EXPECT_FALSE(table.Placed(0));
  table.Posted();
  EXPECT_TRUE(table.CheckGrace(start + std::chrono::milliseconds(999)).ok());
  EXPECT_FALSE(table.work_due());
  EXPECT_TRUE(table.CheckGrace(start + std::chrono::seconds(1)).ok());
  EXPECT_TRUE(table.CheckGrace(start + std::chrono::seconds(9)).ok()) << "it is being ended";
  ASSERT_EQ(table.Prepare(16), 1u);
  EXPECT_EQ(table.chain()->opcode, IBV_WR_LOCAL_INV);
  EXPECT_TRUE(table.Placed(1));
  table.Posted();
  table.Completed(2);
  EXPECT_EQ(table.count(), 0u);
  EXPECT_EQ(table.quarantined_bytes(), 0u);
  Lease& calls = **table.Open(buffer_.view(), LeaseAccess::kRead);
  table.Abandon(calls, start);
  EXPECT_TRUE(absl::IsDeadlineExceeded(table.CheckGrace(start + std::chrono::seconds(1))));
  (void)table.TakeAll();
}

TEST_F(LeasesTest, ALeaseThatThePeerHasEndedCostsNoLinkWhileItIsInvalidated) {
  StartWith(LeaseLevel::kStrict);
  LeaseTable table(device(), device_context().pd(),
                   {.level = LeaseLevel::kStrict, .grace = std::chrono::seconds(1)});
  table.Refill(AllocateWindows(device(), device_context().pd(), 1));
  Lease& lease = **table.Open(buffer_.view(), LeaseAccess::kRead);
  ASSERT_EQ(table.Prepare(1), 1u);
  table.Posted();
  const TimePoint start{};
  table.Abandon(lease, start);
  EXPECT_FALSE(table.End(lease, &listener_));
  EXPECT_EQ(table.CheckGrace(start + std::chrono::seconds(9)), absl::OkStatus());
  EXPECT_EQ(listener_.ended, 0);
  (void)table.TakeAll();
}

// Work requests are reused: a device may refuse a binding that says what an invalidation said.
TEST_F(LeasesTest, ABindingSaysNothingOfTheInvalidationWhoseRequestItReuses) {
  StartWith(LeaseLevel::kStrict);
  for (int i = 1; i <= 3; ++i) {
    Lease& lease = BoundLease();
    ASSERT_TRUE(link_->open());
    link_->EndLease(lease, &listener_);
    PollUntil([&] { return listener_.ended == i; });
  }
}

TEST_F(LeasesTest, ALeaseOfARegionIsItsKeyAndEndsAtOnce) {
  StartWith(LeaseLevel::kRegion);
  for (int i = 1; i <= 100; ++i) {
    Lease& lease = OpenedLease();
    EXPECT_EQ(lease.terms().rkey, buffer_.region().rkey());
    link_->EndLease(lease, &listener_);
    EXPECT_EQ(listener_.ended, i);
  }
}

TEST_F(LeasesTest, MemoryThatIsNotRegisteredForItIsRefused) {
  StartWith(LeaseLevel::kStrict);
  // If nothing is granted ahead, only the device touches the receive budget.
  LinkLimits limits = client().limits();
  limits.leases.granted_bytes_per_client = 0;
  absl::StatusOr<PayloadMemory> ungranted =
      PayloadMemory::Create(executor(), device_context(), limits);
  ASSERT_TRUE(ungranted.ok()) << ungranted.status();
  Buffer private_buffer = *ungranted->receive().TryAllocate(kBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(
      link_->OpenLease(private_buffer.view(), LeaseAccess::kWrite).status()));
  // Memory of another protection domain.
  absl::StatusOr<std::unique_ptr<DeviceContext>> other = DeviceContext::Create(device(), {});
  ASSERT_TRUE(other.ok()) << other.status();
  absl::StatusOr<PayloadMemory> foreign =
      PayloadMemory::Create(executor(), **other, client().limits());
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  Buffer foreign_buffer = *foreign->send().TryAllocate(kBytes);
  const absl::Status refused =
      link_->OpenLease(foreign_buffer.view(), LeaseAccess::kWrite).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(client().leases(), 0u);
}

TEST_F(LeasesTest, ALostLinkTellsAndKeepsTheMemoryUntilItsQueuePairIsGone) {
  StartWith(LeaseLevel::kStrict);
  Lease& ending = BoundLease();
  (void)OpenedLease();  // whose holder forgets it
  link_->EndLease(ending, &listener_);
  link_->Close(absl::UnavailableError("the test ends it"));
  EXPECT_EQ(listener_.lost, 1);
  EXPECT_EQ(listener_.ended, 0);
  buffer_.Reset();
  EXPECT_GT(client().memory().send().stats().bytes_in_use, 0u);
  WaitUntilNoLinks();
  EXPECT_EQ(client().memory().send().stats().bytes_in_use, 0u);
}

}  // namespace leases_test
}  // namespace verbena::internal
