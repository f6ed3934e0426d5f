// PayloadStreamsService: the test service of streams with payloads. StreamPayloadTest: a fixture
// with a server and a client of it, in one process.

#ifndef VERBENA_TESTS_RPC_STREAM_PAYLOAD_SERVICE_H_
#define VERBENA_TESTS_RPC_STREAM_PAYLOAD_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_payload_testing.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

using PayloadItem = WithPayload<testing::StreamItem>;

// The byte at `index` of the payload of item `number`.
inline char PayloadByte(uint64_t number, size_t index) {
  return static_cast<char>(number * 37 + index * 7 + (index >> 12));
}
void FillPayload(BufferView view, uint64_t number);
bool HasPayloadOf(BufferView view, uint64_t number);

class PayloadStreamsService final : public testing::PayloadStreams::Service {
 public:
  using Item = testing::StreamItem;

  Task<absl::Status> Echo(ServerContext&,
                          ServerReaderWriter<PayloadItem, PayloadItem>& stream) override;
  Task<absl::Status> Collect(ServerContext&, ServerReader<PayloadItem>& reader,
                             testing::Summary& reply) override;
  Task<absl::Status> Send(ServerContext& context, const testing::CountRequest& request,
                          ServerWriter<PayloadItem>& writer) override;
  Task<absl::Status> Hold(ServerContext&,
                          ServerReaderWriter<PayloadItem, PayloadItem>& stream) override;
  Task<absl::Status> Misuse(ServerContext& context,
                            ServerReaderWriter<Item, PayloadItem>&) override;
  Task<absl::Status> Plain(ServerContext&, ServerReaderWriter<Item, Item>& stream) override;
  Task<absl::Status> Say(ServerContext&, const Item& request, Item& reply) override;

  std::atomic<int> running{0};
  std::atomic<uint64_t> written{0};    // by Send
  std::atomic<uint64_t> collected{0};  // by Collect

 private:
  class Running {
   public:
    explicit Running(PayloadStreamsService& service) : service_(service) { ++service_.running; }
    ~Running() { --service_.running; }

   private:
    PayloadStreamsService& service_;
  };
};

class StreamPayloadTest : public RuntimePair {
 protected:
  using Item = testing::StreamItem;

  void Start(ServerOptions options = {}, RuntimeOptions server = {}, RuntimeOptions client = {});
  void StartClient(const std::string& address, RuntimeOptions options = {});

  static Item Numbered(uint64_t number, size_t bytes = 0);
  Task<absl::StatusOr<Buffer>> Filled(size_t bytes, uint64_t number);
  Task<absl::Status> SayOnce();
  // Collects `count` payloads of `bytes` at the server.
  Task<absl::StatusOr<testing::Summary>> CollectOf(uint64_t count, size_t bytes);
  static testing::CountRequest CountOf(uint32_t count, uint32_t bytes);

  // Closes the client's link. On its executor.
  void LoseLink();

  // The payload memory in use on a runtime's first executor and device.
  static Task<size_t> HeldBytes(Runtime& runtime);
  void ExpectNothingHeld();

  PayloadStreamsService service_;
  std::unique_ptr<testing::PayloadStreams::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_STREAM_PAYLOAD_SERVICE_H_
