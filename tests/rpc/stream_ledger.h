// StreamLedgerService: notes which of its streams began and ended. StreamLedgerClient: streams of
// every kind, whose outcomes are compared with those notes.

#ifndef VERBENA_TESTS_RPC_STREAM_LEDGER_H_
#define VERBENA_TESTS_RPC_STREAM_LEDGER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tests/rpc/ledger_service.h"
#include "verbena/transport/base/status.h"

namespace verbena {

class StreamLedgerService final : public testing::StreamLedger::Service {
 public:
  Task<absl::Status> Scan(ServerContext& context, const testing::EntryRequest& request,
                          ServerWriter<testing::EntryReply>& writer) override {
    const NotedCall noted(request.id(), watcher);
    if (request.refuses()) {
      TheLedger().Set(request.id(), Ledger::kRefused);
      co_return context.NotExecuted(absl::UnavailableError("not the leader"));
    }
    testing::EntryReply reply;
    reply.set_filler(std::string(request.reply_bytes(), 'r'));
    for (uint32_t i = 0; i < request.replies(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR(co_await writer.Write(reply));
    }
    if (request.detail_bytes() > 0) co_return absl::DataLossError("as asked");
    co_return absl::OkStatus();
  }

  Task<absl::Status> Upload(ServerContext&, ServerReader<testing::EntryRequest>& reader,
                            testing::EntryReply& reply) override {
    testing::EntryRequest request;
    std::optional<NotedCall> noted;  // from the first message on, which has the id
    uint32_t reply_bytes = 0;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await reader.Read(request));
      if (!read) break;
      if (!noted.has_value()) noted.emplace(request.id(), watcher);
      reply_bytes = request.reply_bytes();
    }
    reply.set_filler(std::string(reply_bytes, 'r'));
    co_return absl::OkStatus();
  }

  Task<absl::Status> Chat(
      ServerContext&,
      ServerReaderWriter<testing::EntryRequest, testing::EntryReply>& stream) override {
    testing::EntryRequest request;
    std::optional<NotedCall> noted;  // from the first message on, which has the id
    testing::EntryReply reply;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(request));
      if (!read) co_return absl::OkStatus();
      if (!noted.has_value()) noted.emplace(request.id(), watcher);
      reply.set_filler(std::string(request.reply_bytes(), 'r'));
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(reply));
    }
  }

  HandlerWatcher watcher;  // set before the service serves
};

class StreamLedgerClient {
 public:
  static constexpr int kKinds = 8;

  explicit StreamLedgerClient(Channel& channel) : stub_(channel) {}

  // One stream with that id, of a kind below kKinds: each side sends, small and large messages, a
  // large request and a large reply, a failure, a refusal.
  Task<Told> Call(uint64_t id, int kind) {
    testing::EntryRequest request;
    request.set_id(id);
    request.set_replies(5);
    switch (kind) {
      case 0:
        co_return Told{id, co_await Scan(request)};
      case 1:
        request.set_filler(std::string(20000, 'q'));
        co_return Told{id, co_await Scan(request)};
      case 2:
        request.set_reply_bytes(100000);
        co_return Told{id, co_await Scan(request)};
      case 3:
        request.set_detail_bytes(1);
        co_return Told{id, co_await Scan(request)};
      case 4:
        request.set_refuses(true);
        co_return Told{id, co_await Scan(request)};
      case 5:
        request.set_reply_bytes(100);
        co_return Told{id, co_await Upload(request)};
      case 6:
        request.set_filler(std::string(100000, 'q'));
        request.set_reply_bytes(20000);
        co_return Told{id, co_await Upload(request)};
      default:
        request.set_reply_bytes(3000);
        co_return Told{id, co_await Chat(request)};
    }
  }

 private:
  Task<absl::Status> Scan(const testing::EntryRequest& request) {
    ClientReader<testing::EntryReply> reader = stub_.Scan(request);
    testing::EntryReply reply;
    while (co_await reader.Read(reply)) EXPECT_EQ(reply.filler().size(), request.reply_bytes());
    co_return co_await reader.Finish();
  }

  Task<absl::Status> Upload(const testing::EntryRequest& request) {
    ClientWriter<testing::EntryRequest, testing::EntryReply> writer = stub_.Upload();
    for (int i = 0; i < 5; ++i) {
      if (!(co_await writer.Write(request)).ok()) break;
    }
    co_return (co_await writer.Finish()).status();
  }

  Task<absl::Status> Chat(const testing::EntryRequest& request) {
    ClientReaderWriter<testing::EntryRequest, testing::EntryReply> stream = stub_.Chat();
    for (int i = 0; i < 5; ++i) {
      if (!(co_await stream.Write(request)).ok()) break;
      if (!(co_await stream.Read()).has_value()) break;
    }
    co_return co_await stream.Finish();
  }

  testing::StreamLedger::Stub stub_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_STREAM_LEDGER_H_
