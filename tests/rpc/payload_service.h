// PayloadService: a test service that checks the payloads of requests and answers with payloads.
// PayloadFixture: a server and a client of this service, in one process.

#ifndef VERBENA_TESTS_RPC_PAYLOAD_SERVICE_H_
#define VERBENA_TESTS_RPC_PAYLOAD_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/payload_testing.verbena.pb.h"
#include "tests/rpc/runtime_pair.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

// The byte at `position` of every payload of the tests.
inline char PatternAt(uint64_t position) {
  return static_cast<char>((position * 2654435761u) >> 16 ^ position);
}

void FillPattern(const BufferView& view, uint64_t from = 0);

bool IsPattern(const BufferView& view, bool inverted = false);

class PayloadService final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Put(ServerContext& context, const testing::PutRequest&,
                         testing::PutReply& reply) override;
  Task<absl::Status> Get(ServerContext& context, const testing::GetRequest& request,
                         testing::GetReply& reply) override;
  Task<absl::Status> Swap(ServerContext& context, const testing::PutRequest&,
                          testing::PutReply& reply) override;
  Task<absl::Status> Hold(ServerContext& context, const testing::HoldRequest& request,
                          testing::PutReply&) override;
  Task<absl::Status> Surprise(ServerContext& context, const testing::GetRequest& request,
                              testing::GetReply&) override;

  std::atomic<int> puts{0};
  std::atomic<int> wrong{0};  // puts whose payload was not the pattern
  // Whether `kept` keeps the payloads of puts. A test sets it before the server starts, and reads
  // `kept` when the server is idle.
  bool keep = false;
  std::vector<Buffer> kept;
  std::atomic<int> holding{0};
  std::atomic<bool> let_go{false};  // Hold lingers no more
  std::atomic<int> released{0};

 private:
  static Task<absl::Status> Answer(ServerContext& context, const testing::GetRequest& request);
};

class PayloadFixture : public RuntimePair {
 protected:
  void StartServer(RuntimeOptions options = {});
  void StartServer(RuntimeOptions options, internal::TestDevice device);
  void StartClient(RuntimeOptions options = {});
  void StartClient(RuntimeOptions options, internal::TestDevice device);
  void StartClientOf(const std::string& address, RuntimeOptions options = {});
  void StartClientOf(const std::string& address, RuntimeOptions options,
                     internal::TestDevice device);
  void StartBoth(const LinkLimits& limits = {});
  void StopBoth();

  // A buffer that holds the pattern.
  Task<absl::StatusOr<Buffer>> Filled(size_t bytes);

  // The leases and the payload memory in use on a runtime's first executor and device.
  struct Held {
    size_t leases = 0;
    size_t bytes = 0;
  };
  static Held HeldBy(Runtime& runtime) { return runtime.BlockOn(CountHeld(runtime)); }
  static Task<Held> CountHeld(Runtime& runtime);
  // Takes buffers of `bytes` until the pool has no more and does not grow; at most `most`. Runs on
  // the pool's executor.
  static Task<std::vector<Buffer>> TakeAll(BufferPool& pool, size_t bytes, size_t most = SIZE_MAX);
  // The client's leases that have not ended. Runs on the client's executor.
  Task<size_t> LentNow();
  // Waits until all memory that calls used is back in its pools, except for what the server has
  // granted.
  void ExpectNothingHeld();

  PayloadService service_;
  std::unique_ptr<testing::Payloads::Stub> stub_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_PAYLOAD_SERVICE_H_
