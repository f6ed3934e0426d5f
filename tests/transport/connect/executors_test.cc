// Coroutines that await a bootstrap resume on the executor where they awaited. An executor may end
// while awaits are in flight.

#include <stdlib.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/file_bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/run_on.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena {
namespace executors_test {

using StreamPtr = std::unique_ptr<MessageStream>;
using Received = absl::StatusOr<std::string>;

struct Kind {
  std::string name;
  std::string any_address;
  std::function<std::unique_ptr<Bootstrap>()> make;
};

std::unique_ptr<Bootstrap> MakeTcp() { return *TcpBootstrap::Create(); }

std::unique_ptr<Bootstrap> MakeLocal() {
  LocalNetwork network;
  return std::make_unique<LocalBootstrap>(network, "client");
}

// ThreadSanitizer does not see an io_uring; epoll sleeps and wakes alike.
std::unique_ptr<ExecutorThread> StartExecutor(const std::string& name) {
  return *ExecutorThread::Start(
      {.name = name, .mode = ExecutorMode::kEvent, .waiter = WaiterKind::kEpoll});
}

std::unique_ptr<Bootstrap> MakeFile() {
  std::string directory = testing::TempDir() + "/executors.XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  return *FileBootstrap::Create(directory);
}

class ExecutorsTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Bootstrap> bootstrap_ = GetParam().make();
  std::unique_ptr<MessageListener> listener_ = *bootstrap_->Listen(GetParam().any_address);
  std::unique_ptr<ExecutorThread> here_ = StartExecutor("here");
  std::unique_ptr<ExecutorThread> there_ = StartExecutor("there");
};

INSTANTIATE_TEST_SUITE_P(, ExecutorsTest,
                         testing::Values(Kind{"Tcp", "127.0.0.1:0", MakeTcp},
                                         Kind{"File", "storage:0", MakeFile},
                                         Kind{"Local", "storage:0", MakeLocal}),
                         [](const auto& info) { return info.param.name; });

absl::Status CheckRunsOn(const Executor& executor) {
  return Scheduler::Current() == &executor ? absl::OkStatus()
                                           : absl::InternalError("on another thread");
}

Task<absl::Status> EchoOnce(MessageStream& stream, Executor& executor) {
  VERBENA_CO_ASSIGN_OR_RETURN(std::string message, co_await stream.Receive());
  VERBENA_CO_RETURN_IF_ERROR(CheckRunsOn(executor));
  VERBENA_CO_RETURN_IF_ERROR(co_await stream.Send(std::move(message)));
  co_return CheckRunsOn(executor);
}

// Accepts on one executor and serves on another, as a server with several executors does.
Task<absl::Status> Serve(MessageListener& listener, Executor& accepting, Executor& serving) {
  VERBENA_CO_ASSIGN_OR_RETURN(StreamPtr stream, co_await listener.Accept());
  VERBENA_CO_RETURN_IF_ERROR(CheckRunsOn(accepting));
  VERBENA_CO_RETURN_IF_ERROR(co_await EchoOnce(*stream, accepting));
  co_return co_await RunOn(serving, EchoOnce(*stream, serving));
}

Task<absl::Status> Ask(Bootstrap& bootstrap, std::string address, Executor& executor) {
  VERBENA_CO_ASSIGN_OR_RETURN(StreamPtr stream, co_await bootstrap.Connect(std::move(address)));
  VERBENA_CO_RETURN_IF_ERROR(CheckRunsOn(executor));
  for (const std::string question : {"one", "two"}) {
    VERBENA_CO_RETURN_IF_ERROR(co_await stream->Send(question));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string answer, co_await stream->Receive());
    VERBENA_CO_RETURN_IF_ERROR(CheckRunsOn(executor));
    if (answer != question) co_return absl::DataLossError(answer);
  }
  co_return absl::OkStatus();
}

TEST_P(ExecutorsTest, CoroutinesResumeWhereTheyAwaitedAlsoWhenAStreamMoves) {
  for (int round = 0; round < 20; ++round) {
    std::future<absl::Status> served = std::async(std::launch::async, [this] {
      return BlockOn(there_->executor(), Serve(*listener_, there_->executor(), here_->executor()));
    });
    const absl::Status asked = BlockOn(
        here_->executor(), Ask(*bootstrap_, std::string(listener_->address()), here_->executor()));
    EXPECT_TRUE(asked.ok()) << asked;
    const absl::Status answered = served.get();
    EXPECT_TRUE(answered.ok()) << answered;
  }
}

Task<void> ReceiveForEver(MessageListener& listener, StreamPtr& stream) {
  stream = *co_await listener.Accept();
  (void)co_await stream->Receive();
}

TEST_P(ExecutorsTest, ExecutorMayEndWithAwaitsInFlightAndTheStreamServesAnother) {
  StreamPtr server;
  Spawn(there_->executor(), ReceiveForEver(*listener_, server));
  absl::StatusOr<StreamPtr> client =
      BlockOn(here_->executor(), bootstrap_->Connect(std::string(listener_->address())));
  ASSERT_TRUE(client.ok()) << client.status();
  // The message and the end of the executor race; the message is taken or it stays, but never
  // harms.
  const absl::Status sent = BlockOn(here_->executor(), (*client)->Send("hello"));
  EXPECT_TRUE(sent.ok()) << sent;
  there_ = nullptr;
  ASSERT_TRUE(BlockOn(here_->executor(), (*client)->Send("again")).ok());
  if (server == nullptr) return;  // the executor ended before it had accepted
  const Received received = BlockOn(here_->executor(), server->Receive());
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(*received == "hello" || *received == "again");
}

}  // namespace executors_test
}  // namespace verbena
