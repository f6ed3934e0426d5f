// An InProcess fixture serves a service on one executor or several, and answers calls of its
// channel. Its fake clock moves deadlines and sleeps of both sides exactly, without waiting.

#include "verbena/rpc/testing/in_process.h"

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing/notes.verbena.pb.h"
#include "tests/rpc/testing/notes_mock.verbena.pb.h"
#include "tests/rpc/testing/notes_service.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace verbena::testing::notes {
namespace in_process_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Property;

TEST(InProcessTest, TakesThreeLines) {
  InProcess<NotesService> notes;
  const Notes::Stub stub(notes.channel());
  EXPECT_THAT(notes.Run(stub.Echo(TextOf("a"))), IsOkAndHolds(Property(&Text::text, "a")));

  EXPECT_THAT(notes.Run(stub.Echo(Text())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_EQ(notes.service().echoes, 2);
}

TEST(InProcessTest, GivesTheServiceItsArgumentsAndTheRuntimeItsOptions) {
  InProcess<NotesService> notes({.runtime = {.executors = 2}}, "> ");
  ASSERT_EQ(notes.runtime().executors(), 2);
  const Notes::Stub stub(notes.channel());
  for (int executor : {0, 1}) {
    EXPECT_THAT(notes.Run(stub.Echo(TextOf("a")), executor),
                IsOkAndHolds(Property(&Text::text, "> a")));
  }
}

TEST(InProcessTest, ServesServicesThatNeedTheRuntime) {
  InProcessServer fixture;
  const std::string device = fixture.runtime().device_names().front();
  NotesService service(device + ": ");
  fixture.Serve({&service});
  const Notes::Stub stub(fixture.channel());
  EXPECT_THAT(fixture.Run(stub.Echo(TextOf("a"))),
              IsOkAndHolds(Property(&Text::text, device + ": a")));
  fixture.Stop();
}

TEST(InProcessTest, ReachesTheServersOfOtherFixtures) {
  InProcess<NotesService> one({}, "one ");
  InProcess<NotesService> two({}, "two ");
  Channel channel(one.runtime(), two.server().address());
  EXPECT_THAT(one.Run(Notes::Stub(channel).Echo(TextOf("a"))),
              IsOkAndHolds(Property(&Text::text, "two a")));
}

TEST(InProcessTest, CodeUnderTestTakesAStubOrAMockAlike) {
  InProcess<NotesService> notes;
  Notes::StubAdapter adapter{Notes::Stub(notes.channel())};
  MockNotesStub mock;
  EXPECT_CALL(mock, Echo).WillOnce(::testing::Return(TextOf("mocked")));
  const auto echo = [](Notes::StubInterface& stub) -> Task<std::string> {
    absl::StatusOr<Text> reply = co_await stub.Echo(TextOf("real"));
    co_return reply.ok() ? reply->text() : reply.status().ToString();
  };
  EXPECT_EQ(notes.Run(echo(adapter)), "real");
  EXPECT_EQ(notes.Run(echo(mock)), "mocked");
}

TEST(InProcessTest, AMockAnswersWithAPayload) {
  InProcess<NotesService> notes;
  MockNotesStub mock;
  EXPECT_CALL(mock, Fetch)
      .WillOnce(InvokeTask(
          [&](const Text& request, CallOptions&) -> Task<absl::StatusOr<WithPayload<Text>>> {
            WithPayload<Text> reply;
            VERBENA_CO_ASSIGN_OR_RETURN(reply.payload, co_await notes.channel().AllocateBuffer(2));
            std::memcpy(reply.payload.data(), request.text().data(), 2);
            co_return reply;
          }));
  Notes::StubInterface& stub = mock;
  EXPECT_THAT(notes.Run(stub.Fetch(TextOf("ab"))), IsOkAndHolds(PayloadIs("ab")));
}

class FakeClockTest : public ::testing::TestWithParam<int> {
 protected:
  // Begins a call, and returns when its handler runs.
  template <typename Method>
  JoinHandle<absl::StatusOr<Text>> Begin(Method method, CallOptions options) {
    JoinHandle<absl::StatusOr<Text>> call =
        notes_.runtime().Spawn((stub_.*method)(TextOf("x"), std::move(options)), GetParam() - 1);
    while (notes_.service().waits == 0) notes_.Advance(Duration::zero());
    return call;
  }

  InProcess<NotesService> notes_{
      InProcessOptions{.runtime = {.executors = GetParam()}, .fake_clock = true}};
  Notes::Stub stub_{notes_.channel()};
  // The form that owns its request.
  static constexpr auto kWait =
      static_cast<UnaryCall<Text, Text> (Notes::Stub::*)(Text&&, CallOptions) const>(
          &Notes::Stub::Wait);
  static constexpr auto kDoze =
      static_cast<UnaryCall<Text, Text> (Notes::Stub::*)(Text&&, CallOptions) const>(
          &Notes::Stub::Doze);
};

TEST_P(FakeClockTest, ADeadlineFiresWhenTheClockSaysSoAndNotBefore) {
  auto call = Begin(kWait, {.deadline = 3min});
  notes_.Advance(3min - 1ns);
  EXPECT_FALSE(call.done());
  notes_.Advance(1ns);
  EXPECT_THAT(std::move(call).Join(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(FakeClockTest, AHandlersSleepEndsWhenTheClockSaysSo) {
  auto call = Begin(kWait, {});
  notes_.Advance(4min);
  EXPECT_FALSE(call.done());
  notes_.Advance(1min);
  EXPECT_THAT(std::move(call).Join(), IsOk());
}

// One step to the end would end the first sleep alone.
TEST_P(FakeClockTest, TimersThatOthersStartFireInTheSameAdvance) {
  auto call = Begin(kDoze, {.deadline = 10min});
  notes_.Advance(3min);
  EXPECT_EQ(notes_.service().dozed, 3);
  notes_.Advance(2min);
  EXPECT_EQ(notes_.service().dozed, 5);
  EXPECT_THAT(std::move(call).Join(), IsOk());
}

TEST_P(FakeClockTest, TimeStandsStillOtherwise) {
  const TimePoint before = notes_.Run(
      []() -> Task<TimePoint> { co_return (co_await CurrentContext()).scheduler->now(); }());
  EXPECT_THAT(notes_.Run(stub_.Echo(TextOf("a"))), IsOk());
  const auto after = [](TimePoint time) -> Task<Duration> {
    co_return (co_await CurrentContext()).scheduler->now() - time;
  };
  EXPECT_EQ(notes_.Run(after(before)), Duration::zero());
  notes_.Advance(5s);
  EXPECT_EQ(notes_.Run(after(before)), 5s);
}

TEST_P(FakeClockTest, AHandlerThatStillWaitsDoesNotHoldUpTheEnd) {
  auto call = Begin(kWait, {});
  call.RequestCancel();
  EXPECT_THAT(std::move(call).Join(), StatusIs(absl::StatusCode::kCancelled));
}

INSTANTIATE_TEST_SUITE_P(OfExecutors, FakeClockTest, ::testing::Values(1, 2));

TEST(InProcessDeathTest, ARuntimeOrAServerThatDoesNotStartAborts) {
  EXPECT_DEATH(InProcessServer({.runtime = {.executors = 0}}), "the runtime did not start: .*");
  EXPECT_DEATH(InProcessServer().Serve({nullptr}), "the server did not start: .*is null");
}

TEST(InProcessDeathTest, ServingTwiceAborts) {
  const auto serve_twice = [] {
    InProcessServer fixture;
    fixture.Serve({});
    fixture.Serve({});
  };
  EXPECT_DEATH(serve_twice(), "call Stop\\(\\) before Serve\\(\\) again");
}

TEST(InProcessDeathTest, TwoClocksAbort) {
  FakeClock own;
  EXPECT_DEATH(InProcessServer({.runtime = {.clock = &own}, .fake_clock = true}),
               "gives a clock of its own, and asks for a fake one");
}

TEST(InProcessDeathTest, MovingTheMachinesClockAborts) {
  EXPECT_DEATH(InProcess<NotesService>().Advance(1s), "set InProcessOptions::fake_clock");
}

}  // namespace in_process_test
}  // namespace verbena::testing::notes
