// A cancellation reaches each listener in its scope and below, once and with the first reason, and
// none above. Listeners and scopes may be destroyed at any time.

#include "verbena/transport/coro/cancel.h"

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace cancel_test {

using absl::StatusCode;

class Listener : public CancelNode {
 public:
  void OnCancel(StatusCode reason) override {
    EXPECT_FALSE(linked());
    heard.push_back(reason);
    if (victim != nullptr) victim->reset();
  }
  std::vector<StatusCode> heard;
  std::unique_ptr<Listener>* victim = nullptr;
};

TEST(CancelScopeTest, OnlyTheFirstRequestIsHeard) {
  CancelScope scope;
  Listener listener;
  scope.Add(listener);
  EXPECT_TRUE(scope.status().ok());
  scope.Request(StatusCode::kDeadlineExceeded);
  scope.Request(StatusCode::kCancelled);
  EXPECT_EQ(listener.heard, (std::vector{StatusCode::kDeadlineExceeded}));
  EXPECT_EQ(scope.status().code(), StatusCode::kDeadlineExceeded);
}

TEST(CancelScopeTest, RequestReachesScopesBelowAndNoneAbove) {
  CancelScope top;
  CancelScope middle(&top);
  CancelScope bottom(&middle);
  Listener listener;
  bottom.Add(listener);
  middle.Request();
  EXPECT_FALSE(top.requested());
  EXPECT_EQ(bottom.reason(), StatusCode::kCancelled);
  EXPECT_EQ(listener.heard.size(), 1u);
}

TEST(CancelScopeTest, ScopeBelowACancelledOneIsCancelled) {
  CancelScope parent;
  parent.Request(StatusCode::kDeadlineExceeded);
  CancelScope child(&parent);
  EXPECT_EQ(child.reason(), StatusCode::kDeadlineExceeded);
}

class Owner final : public WorkOwner {
 public:
  void OnTaskDone() override {}
  uint64_t client() const override { return 7; }
  void OnChangeLeft() override {}
  void OnLeftChangeEnded() override {}
};

TEST(CancelScopeTest, AScopeBelowHasTheOwnerAndTheClientOfTheOneAbove) {
  Owner owner;
  CancelScope top;
  EXPECT_EQ(top.owner(), nullptr);
  EXPECT_EQ(top.client(), 0u);
  top.set_client(5);
  EXPECT_EQ(CancelScope(&top).client(), 5u);
  top.set_owner(owner);
  CancelScope below(&top);
  EXPECT_EQ(below.owner(), &owner);
  EXPECT_EQ(below.client(), 7u);
  below.set_client(3);
  EXPECT_EQ(below.owner(), nullptr);
  EXPECT_EQ(below.client(), 3u);
}

TEST(CancelScopeTest, ListenerMayDestroyAnotherWhileTheRequestRuns) {
  CancelScope scope;
  Listener first;
  auto doomed = std::make_unique<Listener>();
  Listener last;
  scope.Add(first);
  scope.Add(*doomed);
  scope.Add(last);
  first.victim = &doomed;
  scope.Request();
  EXPECT_EQ(doomed, nullptr);
  EXPECT_EQ(last.heard.size(), 1u);
}

TEST(CancelScopeTest, DestroyedListenerAndDestroyedScopeAreForgotten) {
  CancelScope top;
  auto child = std::make_optional<CancelScope>(&top);
  Listener listener;
  child->Add(listener);
  child.reset();
  EXPECT_FALSE(listener.linked());
  {
    Listener gone;
    top.Add(gone);
  }
  top.Request();
  EXPECT_TRUE(listener.heard.empty());
}

TEST(CancelScopeDeathTest, ARequestWithoutAReasonAborts) {
  EXPECT_DEATH(CancelScope().Request(StatusCode::kOk), "a request to stop needs a reason");
}

}  // namespace cancel_test
}  // namespace verbena::internal
