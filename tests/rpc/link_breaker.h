// LinkBreaker: breaks a link when one of its calls comes to a given step.

#ifndef VERBENA_TESTS_RPC_LINK_BREAKER_H_
#define VERBENA_TESTS_RPC_LINK_BREAKER_H_

#include <atomic>

#include "gtest/gtest.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

// All members are static: the hook of steps is one for the process.
class LinkBreaker {
 public:
  LinkBreaker() { step_hook = &Visit; }
  ~LinkBreaker() { step_hook = nullptr; }
  LinkBreaker(const LinkBreaker&) = delete;
  LinkBreaker& operator=(const LinkBreaker&) = delete;

  // The link breaks that comes to `step` as the `visits`th from now.
  static void Arm(int step, int visits) {
    step_ = step;
    visits_left_ = visits;
  }
  static int broken() { return broken_; }
  static void Reset() { broken_ = 0; }

 private:
  // As a device that fails does: the link hears of it later.
  static void Visit(CallStep step, Link& link) {
    if (static_cast<int>(step) != step_.load()) return;
    if (visits_left_.fetch_sub(1) != 1 || link.qp().get() == nullptr) return;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    absl::Status broken =
        link.endpoint().device().ModifyQp(link.qp().get(), attributes, IBV_QP_STATE);
    EXPECT_TRUE(broken.ok()) << broken;
    ++broken_;
  }

  inline static std::atomic<int> step_ = 0;
  inline static std::atomic<int> visits_left_ = 0;
  inline static std::atomic<int> broken_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_LINK_BREAKER_H_
