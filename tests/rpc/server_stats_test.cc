// Server::stats() is readable on every thread, and an executor never waits for another one there.

#include <latch>

#include "tests/rpc/testing_service.h"
#include "verbena/rpc/server.h"

namespace verbena {
namespace server_stats_test {

TEST(ServerStatsTest, AreReadOnTheServersOwnExecutor) {
  auto runtime = *Runtime::Start();
  TestingService service;
  auto server = *Server::Start(*runtime, {&service});
  const auto read = [&]() -> Task<uint64_t> { co_return server->stats().receive_memory.budget; };
  EXPECT_EQ(runtime->BlockOn(read()), server->stats().receive_memory.budget);
}

TEST(ServerStatsTest, AnExecutorReadsThoseOfAnotherThatIsBlocked) {
  // They outlive the executors, one of which waits in them.
  std::latch blocked(1);
  std::latch let_go(1);
  auto runtime = *Runtime::Start({.executors = 2});
  TestingService service;
  auto server = *Server::Start(*runtime, {&service});
  const auto block = [&]() -> Task<void> {
    blocked.count_down();
    let_go.wait();
    co_return;
  };
  runtime->Spawn(block(), 1);
  blocked.wait();
  const auto read = [&]() -> Task<uint64_t> { co_return server->stats().calls; };
  EXPECT_EQ(runtime->BlockOn(read(), 0), 0u);
  let_go.count_down();
}

}  // namespace server_stats_test
}  // namespace verbena
