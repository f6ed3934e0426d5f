// Several clients of one server process at once each find what they wrote, on volumes of their own
// and on one that they share. Each has a runtime of its own.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_client.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/block_pattern.h"
#include "tests/examples/block_store/server_fixture.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace block_store {
namespace clients_test {

using verbena::Buffer;
using verbena::CurrentContext;
using verbena::Task;
using verbena::TaskScope;

constexpr int kClients = 3;
constexpr int kWorkers = 8;  // of a client
constexpr int kRounds = 12;  // of a worker
constexpr uint64_t kBlocksOfWorker = 16;
constexpr uint64_t kBlocksOfClient = kWorkers * kBlocksOfWorker;

// Writes `blocks` blocks from `first` on, each with `sequence`.
Task<absl::Status> WriteBlocks(const VolumeClient& volume, uint64_t first, uint64_t blocks,
                               uint64_t sequence, bool flush) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                              co_await volume.channel().AllocateBuffer(blocks * kBlockBytes));
  for (uint64_t i = 0; i < blocks; ++i) {
    WritePattern(buffer.data() + i * kBlockBytes, first + i, sequence);
  }
  co_return co_await volume.Write(first * kBlockBytes, buffer, flush);
}

Task<absl::Status> CheckBlocks(const VolumeClient& volume, uint64_t first, uint64_t blocks,
                               uint64_t sequence) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                              co_await volume.channel().AllocateBuffer(blocks * kBlockBytes));
  VERBENA_CO_RETURN_IF_ERROR(co_await volume.Read(first * kBlockBytes, buffer));
  for (uint64_t i = 0; i < blocks; ++i) {
    if (ReadPattern(buffer.data() + i * kBlockBytes, first + i) == sequence) continue;
    co_return absl::DataLossError("block " + std::to_string(first + i) + " of " + volume.volume());
  }
  co_return absl::OkStatus();
}

// Writes and reads its own part of both volumes, again and again.
Task<absl::Status> Worker(const VolumeClient& own, const VolumeClient& shared, int client,
                          int worker) {
  const uint64_t first = worker * kBlocksOfWorker;
  const uint64_t first_shared = client * kBlocksOfClient + first;
  for (int round = 1; round <= kRounds; ++round) {
    const uint64_t blocks = 1 + static_cast<uint64_t>(round * 7 + worker) % kBlocksOfWorker;
    const bool flush = round % 4 == 0;
    VERBENA_CO_RETURN_IF_ERROR(co_await WriteBlocks(own, first, blocks, round, flush));
    VERBENA_CO_RETURN_IF_ERROR(co_await WriteBlocks(shared, first_shared, blocks, round, false));
    VERBENA_CO_RETURN_IF_ERROR(co_await CheckBlocks(own, first, blocks, round));
    VERBENA_CO_RETURN_IF_ERROR(co_await CheckBlocks(shared, first_shared, blocks, round));
  }
  co_return absl::OkStatus();
}

Task<absl::Status> Client(verbena::Channel& channel, int client) {
  const VolumeClient own(channel, "own" + std::to_string(client));
  const VolumeClient shared(channel, "shared");
  VERBENA_CO_RETURN_IF_ERROR(co_await own.Create(kBlocksOfClient));
  // Whoever is first makes it.
  absl::Status made = co_await shared.Create(kClients * kBlocksOfClient);
  if (absl::IsAlreadyExists(made)) {
    while (!(co_await shared.Stat()).ok()) {
    }
  }
  if (!made.ok() && !absl::IsAlreadyExists(made)) co_return made;
  absl::Status first_error;
  TaskScope scope(co_await CurrentContext());
  for (int worker = 0; worker < kWorkers; ++worker) {
    scope.Spawn([&, worker]() -> Task<void> {
      absl::Status status = co_await Worker(own, shared, client, worker);
      if (first_error.ok()) first_error = std::move(status);
    });
  }
  co_await scope.Join();
  co_return first_error;
}

using ClientsTest = ServerProcessTest;

TEST_F(ClientsTest, SeveralClientsAtOnceEachFindWhatTheyWrote) {
  StartServer(/*executors=*/2);
  ASSERT_FALSE(HasFatalFailure());
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(kClients);
  for (int client = 0; client < kClients; ++client) {
    threads.emplace_back([this, client, &results] {
      auto runtime = verbena::Runtime::Start({.mode = verbena::ExecutorMode::kEvent});
      if (!runtime.ok()) {
        results[client] = runtime.status();
        return;
      }
      // Over both executors of the server.
      verbena::Channel channel(**runtime, server_->address(), {.server_executor = client % 2});
      results[client] = (*runtime)->BlockOn(Client(channel, client));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  EXPECT_TRUE(server_->Stop(*signals_).ok());
}

}  // namespace clients_test
}  // namespace block_store
