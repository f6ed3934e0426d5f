// A project that depends on Verbena can generate a service from its own .proto, and call it:
// replies and errors come back. So it can with verbena/testing.h, and mocks of its service.

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/memory_store.h"
#include "store/store.pb.h"
#include "store/store.verbena.pb.h"
#include "store/store_mock.verbena.pb.h"
#include "verbena/testing.h"
#include "verbena/verbena.h"

namespace consumer::store {
namespace {

verbena::Task<absl::StatusOr<GetReply>> Get(verbena::Channel& channel, std::string key) {
  Store::Stub store(channel);
  GetRequest request;
  request.set_key(key);
  co_return co_await store.Get(request, {.deadline = std::chrono::seconds(30)});
}

TEST(StoreTest, ACallReachesTheServiceAndItsAnswerComesBack) {
  auto runtime = verbena::Runtime::Start({.device = "soft"});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  MemoryStore service;
  auto server = verbena::Server::Start(**runtime, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  verbena::Channel channel(**runtime, (*server)->address());

  absl::StatusOr<GetReply> found = (*runtime)->BlockOn(Get(channel, "header"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ("header is the consumer's", found->value());

  absl::StatusOr<GetReply> refused = (*runtime)->BlockOn(Get(channel, ""));
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, refused.status().code()) << refused.status();
}

TEST(StoreTest, TheLibraryForTestsStartsTheServiceAndMovesTime) {
  verbena::testing::InProcess<MemoryStore> store({.fake_clock = true});
  EXPECT_THAT(store.Run(Get(store.channel(), "")),
              verbena::testing::StatusIs(absl::StatusCode::kInvalidArgument));
  store.Advance(std::chrono::hours(1));
  EXPECT_THAT(store.Run(Get(store.channel(), "header")), verbena::testing::IsOk());
}

TEST(StoreTest, AMockAnswersInItsPlace) {
  MockStoreStub mock;
  EXPECT_CALL(mock, Get).WillOnce(testing::Return(absl::NotFoundError("mocked")));
  Store::StubInterface& store = mock;
  verbena::testing::InProcessServer fixture;
  EXPECT_THAT(fixture.Run(store.Get(GetRequest())),
              verbena::testing::StatusIs(absl::StatusCode::kNotFound, "mocked"));
}

}  // namespace
}  // namespace consumer::store
