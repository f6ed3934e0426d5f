// The client code of the guide's section on streams compiles, and does what the guide says.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "tests/docs/slow_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace guide {
namespace {

using namespace std::chrono_literals;
using verbena::Channel;
using verbena::ClientReader;
using verbena::ClientReaderWriter;
using verbena::ClientWriter;

Task<absl::StatusOr<std::vector<std::string>>> NamesOf(Channel& channel, std::string prefix) {
  const v1::Names::Stub names(channel);
  v1::ListRequest request;
  request.set_prefix(std::move(prefix));
  std::vector<std::string> all;
  ClientReader<v1::Name> reader = names.List(request, {.deadline = 1s});
  v1::Name name;
  while (co_await reader.Read(name)) all.push_back(name.name());
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  co_return all;
}

Task<absl::StatusOr<std::string>> FirstName(Channel& channel) {
  const v1::Names::Stub names(channel);
  ClientReader<v1::Name> reader = names.List({}, {.deadline = 1s});
  const std::optional<v1::Name> first = co_await reader.Read();
  if (first.has_value()) co_return first->name();  // `reader` is destroyed: the handler stops
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  co_return absl::NotFoundError("there are no names");
}

Task<absl::Status> SendAll(ClientReaderWriter<v1::Name, v1::CheckReply>& stream,
                           const std::vector<std::string>& names) {
  v1::Name name;
  absl::Status sent;
  for (const std::string& next : names) {
    name.set_name(next);
    sent = co_await stream.Write(name);
    if (!sent.ok()) break;
  }
  // Also after a failure: otherwise the server, and CountTaken(), wait for more.
  const absl::Status done = co_await stream.WritesDone();
  co_return sent.ok() ? done : sent;
}

Task<int> CountTaken(ClientReaderWriter<v1::Name, v1::CheckReply>& stream) {
  int taken = 0;
  v1::CheckReply reply;
  while (co_await stream.Read(reply)) taken += reply.taken() ? 1 : 0;
  co_return taken;
}

Task<absl::StatusOr<int>> TakenOf(Channel& channel, std::vector<std::string> names) {
  const v1::Names::Stub stub(channel);
  ClientReaderWriter<v1::Name, v1::CheckReply> stream = stub.Check({.deadline = 1s});
  auto [sent, taken] = co_await verbena::WhenAll(SendAll(stream, names), CountTaken(stream));
  VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
  VERBENA_CO_RETURN_IF_ERROR(sent);  // a message that was not sent, though the stream ended well
  co_return taken;
}

Task<absl::StatusOr<uint64_t>> CopyAll(Channel& from, Channel& to) {
  const v1::Copies::Stub source(from);
  const v1::Copies::Stub target(to);
  ClientReader<WithPayload<v1::Name>> reader = source.Export({}, {.deadline = 1s});
  ClientWriter<WithPayload<v1::Name>, v1::ImportReply> writer = target.Import({.deadline = 1s});
  WithPayload<v1::Name> block;
  while (co_await reader.Read(block)) {
    if (!(co_await writer.Write(block)).ok()) break;  // writer.Finish() says why
  }
  // First the reader's: if blocks are missing, `writer` must not end as whole.
  VERBENA_CO_RETURN_IF_ERROR(co_await reader.Finish());
  VERBENA_CO_ASSIGN_OR_RETURN(const v1::ImportReply reply, co_await writer.Finish());
  co_return reply.count();
}

// Counts the messages of streams.
class MessageCounter final : public verbena::ClientInterceptor {
 public:
  Task<absl::Status> Intercept(verbena::ClientCallView&, verbena::ClientNext next) override {
    co_return co_await next();
  }
  bool sees_messages() const override { return true; }
  void OnMessageSent(const verbena::ClientCallView&,
                     const google::protobuf::MessageLite&) noexcept override {
    ++sent;
  }
  void OnMessageReceived(const verbena::ClientCallView&,
                         const google::protobuf::MessageLite&) noexcept override {
    ++received;
  }

  std::atomic<int> sent{0};
  std::atomic<int> received{0};
};

TEST(GuideStreamsTest, NamesTravelBothWays) {
  InProcess<NameService> names;
  EXPECT_THAT(names.Run(ReserveNames(names.channel(), {"b/2", "a/1", "b/1"})),
              verbena::testing::IsOkAndHolds(3u));
  EXPECT_THAT(names.Run(NamesOf(names.channel(), "b/")),
              verbena::testing::IsOkAndHolds(testing::ElementsAre("b/1", "b/2")));
  EXPECT_THAT(names.Run(FirstName(names.channel())), verbena::testing::IsOkAndHolds("a/1"));
  EXPECT_THAT(names.Run(TakenOf(names.channel(), {"a/1", "a/2", "b/1"})),
              verbena::testing::IsOkAndHolds(2));
}

TEST(GuideStreamsTest, BlocksAreCopied) {
  InProcess<CopyService> from;
  from.service().Store("a", "one");
  from.service().Store("b", std::string(100'000, 'b'));
  EXPECT_THAT(from.Run(CopyAll(from.channel(), from.channel())),
              verbena::testing::IsOkAndHolds(2u));
}

TEST(GuideStreamsTest, AnInterceptorSeesEachMessage) {
  const auto counter = std::make_shared<MessageCounter>();
  InProcess<NameService> names({.channel = {.interceptors = {counter}}});
  EXPECT_THAT(names.Run(ReserveNames(names.channel(), {"b/2", "a/1", "b/1"})),
              verbena::testing::IsOkAndHolds(3u));
  EXPECT_EQ(counter->sent, 3);
  EXPECT_THAT(names.Run(NamesOf(names.channel(), "b/")), verbena::testing::IsOk());
  EXPECT_EQ(counter->received, 2);
}

}  // namespace
}  // namespace guide
