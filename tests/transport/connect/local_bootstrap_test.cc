// The bootstrap inside one process finds names of its own network only, bounds what waits, and runs
// nothing but what the test drives.

#include "verbena/transport/connect/local_bootstrap.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/started.h"

namespace verbena::internal {
namespace local_bootstrap_test {

using StreamPtr = std::unique_ptr<MessageStream>;
using StreamOr = absl::StatusOr<StreamPtr>;
using Received = absl::StatusOr<std::string>;

class LocalBootstrapTest : public testing::Test {
 protected:
  LocalNetwork network_;
  LocalBootstrap server_{network_, "server"};
  LocalBootstrap client_{network_, "client"};
  ManualScheduler scheduler_;
};

TEST_F(LocalBootstrapTest, BootstrapsOfOneNetworkFindEachOtherAndThoseOfAnotherDoNot) {
  auto listener = *server_.Listen("storage");
  LocalNetwork elsewhere;
  LocalBootstrap stranger(elsewhere);
  EXPECT_TRUE(scheduler_.Run(client_.Connect("storage")).ok());
  EXPECT_EQ(scheduler_.Run(stranger.Connect("storage")).status().code(),
            absl::StatusCode::kUnavailable);
  StreamPtr accepted = *scheduler_.Run(listener->Accept());
  EXPECT_EQ(accepted->peer(), "client");
}

TEST_F(LocalBootstrapTest, NamesAreTakenOnceAndNumbersAreFree) {
  EXPECT_EQ(server_.Listen("").status().code(), absl::StatusCode::kInvalidArgument);
  auto first = *server_.Listen("storage:0");
  auto second = *client_.Listen("storage:0");
  EXPECT_NE(first->address(), second->address());
  EXPECT_EQ(client_.Listen(first->address()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  first->Close();
  EXPECT_TRUE(client_.Listen(first->address()).ok());
}

TEST_F(LocalBootstrapTest, ANumberThatSomebodyChoseByNameIsLeftOut) {
  auto chosen = *server_.Listen("storage:1");
  absl::StatusOr<std::unique_ptr<MessageListener>> numbered = client_.Listen("storage:0");
  ASSERT_TRUE(numbered.ok()) << numbered.status();
  EXPECT_EQ((*numbered)->address(), "storage:2");
}

TEST_F(LocalBootstrapTest, ClosingAListenerTwiceDoesNotTakeTheNameFromItsSuccessor) {
  auto first = *server_.Listen("storage");
  first->Close();
  auto second = *server_.Listen("storage");
  first->Close();
  first = nullptr;
  EXPECT_TRUE(scheduler_.Run(client_.Connect("storage")).ok());
}

TEST_F(LocalBootstrapTest, BacklogIsBounded) {
  auto listener = *server_.Listen("storage");
  std::vector<StreamPtr> streams;
  streams.reserve(LocalNetwork::kBacklog);
  for (size_t i = 0; i < LocalNetwork::kBacklog; ++i) {
    streams.push_back(*scheduler_.Run(client_.Connect("storage")));
  }
  EXPECT_EQ(scheduler_.Run(client_.Connect("storage")).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(scheduler_.Run(listener->Accept()).ok());
  EXPECT_TRUE(scheduler_.Run(client_.Connect("storage")).ok());
}

TEST_F(LocalBootstrapTest, SendWaitsWhenThePeerDoesNotReadAndGoesOnWhenItDoes) {
  auto listener = *server_.Listen("storage");
  StreamPtr client = *scheduler_.Run(client_.Connect("storage"));
  StreamPtr server = *scheduler_.Run(listener->Accept());
  for (size_t i = 0; i < LocalNetwork::kStreamMessages; ++i) {
    ASSERT_TRUE(scheduler_.Run(client->Send("x")).ok());
  }
  Started<absl::Status> waiting(scheduler_, client->Send("one more"));
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(waiting.done());
  ASSERT_TRUE(scheduler_.Run(server->Receive()).ok());
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(waiting.done());
  EXPECT_TRUE(waiting.result().ok());

  Started<absl::Status> cut_off(scheduler_, client->Send("never"));
  server = nullptr;
  scheduler_.RunUntilIdle();
  ASSERT_TRUE(cut_off.done());
  EXPECT_EQ(cut_off.result().code(), absl::StatusCode::kUnavailable);
}

// A simulator depends on it: nothing moves but what is driven, and a coroutine only ever runs on
// its own scheduler.
TEST_F(LocalBootstrapTest, TwoSchedulersOnOneThreadMoveOnlyWhenTheyAreDriven) {
  ManualScheduler other;
  auto listener = *server_.Listen("storage");
  Started<StreamOr> accepting(other, listener->Accept());
  StreamPtr client = *scheduler_.Run(client_.Connect("storage"));
  EXPECT_FALSE(accepting.done());
  other.RunUntilIdle();
  ASSERT_TRUE(accepting.done());
  StreamPtr server = *accepting.result();

  Started<Received> receiving(other, server->Receive());
  ASSERT_TRUE(scheduler_.Run(client->Send("hello")).ok());
  scheduler_.RunUntilIdle();
  EXPECT_FALSE(receiving.done());
  other.RunUntilIdle();
  ASSERT_TRUE(receiving.done());
  EXPECT_EQ(receiving.result().value(), "hello");
}

TEST_F(LocalBootstrapTest, StreamMovesFromOneSchedulerToAnother) {
  ManualScheduler other;
  auto listener = *server_.Listen("storage");
  StreamPtr client = *scheduler_.Run(client_.Connect("storage"));
  StreamPtr server = *scheduler_.Run(listener->Accept());
  ASSERT_TRUE(scheduler_.Run(client->Send("first")).ok());
  EXPECT_EQ(scheduler_.Run(server->Receive()).value(), "first");
  ASSERT_TRUE(scheduler_.Run(client->Send("second")).ok());
  EXPECT_EQ(other.Run(server->Receive()).value(), "second");
}

}  // namespace local_bootstrap_test
}  // namespace verbena::internal
