// StreamingService: the test service of streams. StreamTest: a fixture with a server and a client
// of it, in one process.

#ifndef VERBENA_TESTS_RPC_STREAM_SERVICE_H_
#define VERBENA_TESTS_RPC_STREAM_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_testing.verbena.pb.h"
#include "tests/support/watched.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace verbena {

testing::StreamItem ItemOf(uint64_t number, size_t bytes = 0);

class StreamingService final : public testing::Streaming::Service {
 public:
  static constexpr char kDetail[] = "type.example/detail";

  Task<absl::Status> Count(ServerContext&, const testing::CountRequest& request,
                           ServerWriter<testing::StreamItem>& writer) override;
  Task<absl::Status> Sum(ServerContext&, ServerReader<testing::StreamItem>& reader,
                         testing::Summary& reply) override;
  Task<absl::Status> Echo(
      ServerContext&,
      ServerReaderWriter<testing::StreamItem, testing::StreamItem>& stream) override;
  Task<absl::Status> Ignore(ServerContext& context,
                            ServerReaderWriter<testing::StreamItem, testing::StreamItem>&) override;
  Task<absl::Status> Say(ServerContext&, const testing::StreamItem& request,
                         testing::StreamItem& reply) override;
  Task<absl::Status> Hold(ServerContext&, const testing::StreamItem&,
                          testing::StreamItem&) override;

  std::atomic<int> running{0};
  std::atomic<int> last_failure{0};
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
  std::atomic<size_t> filler_bytes{0};
  std::atomic<size_t> reply_filler{0};
  std::atomic<bool> shields{false};   // no cancellation reaches Reads of Sum and Writes of Count
  std::atomic<bool> forgives{false};  // Count ends well though a Write has failed
  std::atomic<absl::StatusCode> fails_with{absl::StatusCode::kOk};  // the end of Sum and Echo
  std::atomic<size_t> message_bytes{0};  // of failures, beside "as was asked"
  std::atomic<size_t> detail_bytes{0};   // the same
  Watched<bool> reads_later;             // Sum does not read as long as this is set
  Watched<bool> pauses;                  // Sum does not go on after a Read as long as this is set

 private:
  static Task<absl::StatusOr<bool>> ReadOnce(ServerReader<testing::StreamItem>& reader,
                                             testing::StreamItem& item);
  static Task<absl::Status> WriteOnce(ServerWriter<testing::StreamItem>& writer,
                                      const testing::StreamItem& item);
  absl::Status Ended(absl::StatusCode code) const;

  class Running {
   public:
    explicit Running(StreamingService& service) : service_(service) { ++service_.running; }
    ~Running() { --service_.running; }

   private:
    StreamingService& service_;
  };
};

class StreamTest : public RuntimePair {
 protected:
  using Item = testing::StreamItem;

  void Start(ServerOptions options = {}, RuntimeOptions server = {}, RuntimeOptions client = {});
  void StartClient(const std::string& address, RuntimeOptions options = {});

  // Reads a stream of Count to its end, and checks each item.
  static Task<absl::Status> ReadAll(ClientReader<Item>& reader, uint64_t count, size_t bytes);
  Task<absl::Status> CountOf(uint32_t count, uint32_t bytes);
  Task<absl::StatusOr<testing::Summary>> SumOf(uint64_t count, size_t bytes);
  Task<absl::Status> SayOnce();

  StreamingService service_;
  std::unique_ptr<testing::Streaming::Stub> stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_STREAM_SERVICE_H_
