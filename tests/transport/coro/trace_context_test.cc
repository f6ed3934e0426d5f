// TraceContext reads and writes the headers of W3C Trace Context, and refuses what is none. A Task
// hands its trace and its deadline to the Tasks that it awaits or starts.

#include "verbena/transport/coro/trace.h"

#include <chrono>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace trace_context_test {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContextTest, AHeaderSurvivesReadingAndWriting) {
  absl::StatusOr<TraceContext> trace = TraceContext::Parse(kParent, "rojo=00f067,t@sys=x y");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(trace->sampled());
  EXPECT_EQ(trace->trace_id[0], 0x0a);
  EXPECT_EQ(trace->span_id[7], 0x31);
  EXPECT_EQ(trace->state, "rojo=00f067,t@sys=x y");
  EXPECT_EQ(trace->Traceparent(), kParent);
  EXPECT_EQ(trace->Check(), absl::OkStatus());
}

TEST(TraceContextTest, TextThatIsNoTraceparentIsRefused) {
  const std::string good = kParent;
  const auto with = [&](size_t at, const char* text) {
    return std::string(good).replace(at, std::string(text).size(), text);
  };
  const std::vector<std::string> wrong = {
      "",
      good.substr(0, 54),
      good + "-",
      good + "-00",
      with(0, "ff"),
      with(0, "0g"),
      with(2, "_"),
      with(35, "_"),
      with(52, "_"),
      with(3, "0A"),
      with(3, "00000000000000000000000000000000"),
      with(36, "0000000000000000"),
      with(53, "0x"),
  };
  for (const std::string& text : wrong) {
    EXPECT_EQ(TraceContext::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(TraceContextTest, ALaterVersionMayHaveMoreBehindIt) {
  const std::string later = "01" + std::string(kParent).substr(2);
  EXPECT_TRUE(TraceContext::Parse(later).ok());
  EXPECT_TRUE(TraceContext::Parse(later + "-what-ever").ok());
  EXPECT_FALSE(TraceContext::Parse(later + "x").ok());
  EXPECT_EQ(TraceContext::Parse(later)->Traceparent(), kParent) << "we write version 00";
}

TEST(TraceContextTest, AStateThatIsNotValidIsLeftOut) {
  const auto kept = [](const std::string& state) {
    return !TraceContext::Parse(kParent, state)->state.empty();
  };
  std::string members;
  for (int i = 0; i < 32; ++i) members += "k" + std::to_string(i) + "=v,";
  EXPECT_TRUE(kept("a=1"));
  EXPECT_TRUE(kept(" a=1 ,\t0z@b=2, "));
  EXPECT_TRUE(kept(members));
  EXPECT_FALSE(kept(members + "one=more"));
  for (const char* state : {"a", "=1", "A=1", "1a=1", "a=", "a=1=2", "a=\x01", "a@=1", "@a=1",
                            "a@b@c=1", "a@1=2", "a=\xff"}) {
    EXPECT_FALSE(kept(state)) << state;
  }
  EXPECT_TRUE(kept("a=" + std::string(256, 'v') + ",b=" + std::string(251, 'v')));
  EXPECT_FALSE(kept("a=" + std::string(257, 'v')));
  EXPECT_FALSE(kept("a=" + std::string(256, 'v') + ",b=" + std::string(253, 'v')));
}

TEST(TraceContextTest, AChildIsOfTheSameTraceWithAnotherSpan) {
  const TraceContext root = TraceContext::Root(/*sampled=*/true);
  EXPECT_EQ(root.Check(), absl::OkStatus());
  const TraceContext child = root.Child();
  EXPECT_EQ(child.trace_id, root.trace_id);
  EXPECT_NE(child.span_id, root.span_id);
  EXPECT_EQ(child.flags, root.flags);
  EXPECT_NE(TraceContext::Root(false).trace_id, root.trace_id);
  EXPECT_FALSE(TraceContext::Root(false).sampled());
}

// --- in Tasks

using namespace std::chrono_literals;

Task<absl::StatusOr<std::string>> TraceHere() {
  const TaskContext context = co_await CurrentContext();
  co_return context.trace() == nullptr ? "none" : context.trace()->Traceparent();
}

Task<absl::StatusOr<TimePoint>> DeadlineHere() {
  const TaskContext context = co_await CurrentContext();
  co_return context.deadline();
}

TraceContext Trace() { return *TraceContext::Parse(kParent); }

class AmbientTest : public ::testing::Test {
 protected:
  internal::ManualScheduler scheduler_;
};

TEST_F(AmbientTest, NobodysTaskHasNeitherTraceNorDeadline) {
  EXPECT_EQ(*scheduler_.Run(TraceHere()), "none");
  EXPECT_EQ(*scheduler_.Run(DeadlineHere()), kNever);
}

TEST_F(AmbientTest, TasksThatATaskAwaitsHaveItsTrace) {
  EXPECT_EQ(*scheduler_.Run(WithTrace(TraceHere(), Trace())), kParent);
  const auto inner = []() -> Task<absl::Status> {
    auto [a, b] = co_await WhenAll(TraceHere(), WithDeadline(TraceHere(), 1h));
    EXPECT_EQ(*a, kParent);
    EXPECT_EQ(*b, kParent);
    auto first = co_await WhenAny(TraceHere(), TraceHere());
    EXPECT_EQ(*std::get<0>(first), kParent);
    std::vector<int> items{1, 2};
    co_return co_await ForEach(std::move(items), 2, [](int) -> Task<absl::Status> {
      EXPECT_EQ(*co_await TraceHere(), kParent);
      co_return absl::OkStatus();
    });
  };
  EXPECT_EQ(scheduler_.Run(WithTrace(inner(), Trace())), absl::OkStatus());
}

TEST_F(AmbientTest, TasksSpawnedBelowATaskHaveItsTraceAndOthersNone) {
  std::string below;
  std::string apart;
  const auto keep = [](std::string& to) -> Task<void> { to = *co_await TraceHere(); };
  const auto outer = [&]() -> Task<absl::Status> {
    const TaskContext context = co_await CurrentContext();
    TaskScope children(context);
    TaskScope strangers(*context.scheduler);
    children.Spawn(keep(below));
    strangers.Spawn(keep(apart));
    co_await children.Join();
    co_await strangers.Join();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(scheduler_.Run(WithTrace(outer(), Trace())), absl::OkStatus());
  EXPECT_EQ(below, kParent);
  EXPECT_EQ(apart, "none");
}

TEST_F(AmbientTest, ATraceOutlivesTheScopeThatItCameFrom) {
  CancelScope kept;
  const auto outer = [&]() -> Task<absl::Status> {
    const TaskContext context = co_await CurrentContext();
    kept.set_trace(*context.trace());
    CancelScope below(context.cancel);
    EXPECT_EQ(below.trace(), context.trace()) << "shared, not copied";
    co_return absl::OkStatus();
  };
  EXPECT_EQ(scheduler_.Run(WithTrace(outer(), Trace())), absl::OkStatus());
  EXPECT_EQ(kept.trace()->Traceparent(), kParent);
}

TEST_F(AmbientTest, TheEarlierOfTwoDeadlinesHolds) {
  const TimePoint now = scheduler_.now();
  EXPECT_EQ(*scheduler_.Run(WithDeadline(DeadlineHere(), 1h)), now + 1h);
  EXPECT_EQ(*scheduler_.Run(WithDeadline(WithDeadline(DeadlineHere(), 2h), 1h)), now + 1h);
  EXPECT_EQ(*scheduler_.Run(WithDeadline(WithDeadline(DeadlineHere(), 1h), 2h)), now + 1h);
  EXPECT_EQ(*scheduler_.Run(WithDeadline(WithDeadline(DeadlineHere(), kNever), 1h)), now + 1h);
  EXPECT_EQ(*scheduler_.Run(WithDeadline(WithTrace(DeadlineHere(), Trace()), 1h)), now + 1h);
}

TEST_F(AmbientTest, ShieldedWorkHasNone) {
  const auto shielded = [](TimePoint& seen) -> Task<absl::Status> {
    CancelScope shield;
    seen = *co_await DeadlineHere().In(&shield);
    co_return absl::OkStatus();
  };
  TimePoint seen{};
  EXPECT_EQ(scheduler_.Run(WithDeadline(shielded(seen), 1h)), absl::OkStatus());
  EXPECT_EQ(seen, kNever);
}

}  // namespace trace_context_test
}  // namespace verbena
