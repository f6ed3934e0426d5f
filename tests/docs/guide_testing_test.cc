// The code of the guide's section on tests compiles, and its tests pass.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/docs/block_client.h"
#include "tests/docs/block_service.h"
#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "tests/docs/blocks_mock.verbena.pb.h"
#include "tests/docs/slow_clock.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace guide {
namespace {

using namespace std::chrono_literals;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ByMove;
using ::testing::DoAll;
using ::testing::Return;
using ::testing::SetArgReferee;
using verbena::ClientReaderInterface;
using verbena::JoinHandle;
using verbena::testing::FaultInjector;
using verbena::testing::HasOutcome;
using verbena::testing::InProcessServer;
using verbena::testing::InvokeTask;
using verbena::testing::IsOk;
using verbena::testing::IsOkAndHolds;
using verbena::testing::MockClientReader;
using verbena::testing::PayloadIs;
using verbena::testing::PlayMessages;
using verbena::testing::StatusIs;

TEST(BlocksTest, ABlockThatWasNotWrittenIsNotFound) {
  InProcess<BlockService> blocks;
  EXPECT_THAT(blocks.Run(WriteBlock(blocks.channel(), "a", "sixteen bytes...")), IsOk());
  EXPECT_THAT(blocks.Run(ReadBlock(blocks.channel(), "a")), IsOkAndHolds("sixteen bytes..."));
  EXPECT_THAT(
      blocks.Run(ReadBlock(blocks.channel(), "b")),
      AllOf(StatusIs(absl::StatusCode::kNotFound), HasOutcome(verbena::Outcome::kExecuted)));
}

TEST(BlocksTest, ABlockIsReadAsAPayload) {
  InProcess<BlockService> blocks;
  EXPECT_THAT(blocks.Run(WriteBlock(blocks.channel(), "a", "sixteen bytes...")), IsOk());
  v1::Blocks::Stub stub(blocks.channel());
  v1::ReadRequest request;
  request.set_name("a");
  EXPECT_THAT(blocks.Run(stub.Read(request)), IsOkAndHolds(PayloadIs("sixteen bytes...")));
}

class SlowService final : public v1::Blocks::Service {
 public:
  Task<absl::Status> Stat(ServerContext&, const v1::StatRequest&, v1::StatReply&) override {
    co_return co_await verbena::Sleep(1h);
  }
};

TEST(BlocksTest, ACallEndsAtItsDeadline) {
  InProcess<SlowService> blocks({.fake_clock = true});
  JoinHandle<absl::StatusOr<uint64_t>> size = blocks.runtime().Spawn(SizeOf(blocks.channel(), "a"));
  blocks.Advance(1s);
  EXPECT_THAT(size.Join(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(BlocksTest, AWriteThatDidNotReachTheServerIsTriedAgain) {
  auto faults = std::make_shared<FaultInjector>();
  InProcess<BlockService> blocks({.channel = {.interceptors = {faults}}});
  faults->Add({.method = "Write", .times = 1, .fail = absl::UnavailableError("busy")});
  EXPECT_THAT(blocks.Run(WriteBlockWithRetries(blocks.channel(), "a", "kept")), IsOk());
  EXPECT_EQ(faults->injected(), 1u);
}

Task<absl::StatusOr<bool>> Exists(const v1::Blocks::StubInterface& blocks, std::string name) {
  v1::StatRequest request;
  request.set_name(std::move(name));
  const absl::Status status = (co_await blocks.Stat(std::move(request), {.deadline = 1s})).status();
  if (absl::IsNotFound(status)) co_return false;
  VERBENA_CO_RETURN_IF_ERROR(status);
  co_return true;
}

TEST(ExistsTest, OnlyNotFoundMeansNo) {
  v1::MockBlocksStub blocks;
  EXPECT_CALL(blocks, Stat(_, _))
      .WillOnce(Return(v1::StatReply()))
      .WillOnce(Return(absl::NotFoundError("gone")))
      .WillOnce(Return(absl::UnavailableError("the server is down")));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(true));
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(false));
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(ExistsTest, AStubTakesTheMocksPlaceByAnAdapter) {
  InProcess<BlockService> fixture;
  v1::Blocks::StubAdapter blocks{v1::Blocks::Stub(fixture.channel())};
  EXPECT_THAT(fixture.Run(Exists(blocks, "a")), IsOkAndHolds(false));
}

Task<absl::StatusOr<int>> CountNames(const v1::Names::StubInterface& names) {
  std::unique_ptr<ClientReaderInterface<v1::Name>> reader = names.List({});
  int count = 0;
  v1::Name name;
  while (co_await reader->Read(name)) ++count;
  VERBENA_CO_RETURN_IF_ERROR(co_await reader->Finish());
  co_return count;
}

v1::Name NameOf(std::string text) {
  v1::Name name;
  name.set_name(std::move(text));
  return name;
}

TEST(CountNamesTest, HalfOfTheNamesAreNoAnswer) {
  v1::MockNamesStub names;
  EXPECT_CALL(names, List)
      .WillOnce(PlayMessages<v1::Name>({NameOf("a"), NameOf("b")}))
      .WillOnce(PlayMessages<v1::Name>({NameOf("a")}, absl::UnavailableError("the link is lost")));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(2));
  EXPECT_THAT(fixture.Run(CountNames(names)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(CountNamesTest, WaitsForTheEndOfTheStream) {
  auto reader = std::make_unique<MockClientReader<v1::Name>>();
  EXPECT_CALL(*reader, Read)
      .WillOnce(DoAll(SetArgReferee<0>(NameOf("a")), Return(true)))
      .WillOnce(Return(false));
  EXPECT_CALL(*reader, Finish).WillOnce(InvokeTask([]() -> Task<absl::Status> {
    co_return co_await verbena::Sleep(1ms);
  }));
  v1::MockNamesStub names;
  EXPECT_CALL(names, List).WillOnce(Return(ByMove(std::move(reader))));
  InProcessServer fixture;
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(1));
}

TEST(CountNamesTest, AnAdapterStreamsFromTheServer) {
  InProcess<NameService> fixture;
  EXPECT_THAT(fixture.Run(ReserveNames(fixture.channel(), {"a", "b", "c"})), IsOkAndHolds(3u));
  v1::Names::StubAdapter names{v1::Names::Stub(fixture.channel())};
  EXPECT_THAT(fixture.Run(CountNames(names)), IsOkAndHolds(3));
}

}  // namespace
}  // namespace guide
