// Interceptors on both sides see each message of a stream once, in the order of its way, if they
// ask to see messages at all.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "tests/rpc/stream_context_fixture.h"

namespace verbena::internal {
namespace {

using testing::StreamItem;

// Writes down each message that it sees, as "name>number" when it is sent, and "name<number".
template <typename Interceptor, typename View, typename Next>
class Witness final : public Interceptor {
 public:
  Witness(std::string name, std::string& log, bool sees = true)
      : name_(std::move(name)), log_(log), sees_(sees) {}

  Task<absl::Status> Intercept(View&, Next next) override { co_return co_await next(); }
  bool sees_messages() const override { return sees_; }
  void OnMessageSent(const View& call,
                     const google::protobuf::MessageLite& message) noexcept override {
    Note(call, '>', message);
  }
  void OnMessageReceived(const View& call,
                         const google::protobuf::MessageLite& message) noexcept override {
    Note(call, '<', message);
  }

 private:
  void Note(const View& call, char way, const google::protobuf::MessageLite& message) {
    EXPECT_NE(call.method().streams, Streams::kNone);
    log_ += name_ + way + std::to_string(static_cast<const StreamItem&>(message).number()) + " ";
  }

  const std::string name_;
  std::string& log_;
  const bool sees_;
};
using ClientWitness = Witness<ClientInterceptor, ClientCallView, ClientNext>;
using ServerWitness = Witness<ServerInterceptor, ServerCallView, ServerNext>;

class SeenMessagesTest : public StreamContextTest {
 protected:
  void SetUp() override {
    server_runtime_ = StartRuntime();
    ServeWith(service_, {.interceptors = {std::make_shared<ServerWitness>("x", server_log_),
                                          std::make_shared<ServerWitness>("y", server_log_)}});
    client_runtime_ = StartRuntime();
    ChannelOptions options;
    options.interceptors = {std::make_shared<ClientWitness>("a", client_log_),
                            std::make_shared<ClientWitness>("b", client_log_, /*sees=*/false),
                            std::make_shared<ClientWitness>("c", client_log_)};
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(), options);
    stub_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  }

  std::string client_log_;
  std::string server_log_;
};

// The second one leaves in parts.
TEST_F(SeenMessagesTest, EachMessageIsSeenOnceInTheOrderOfItsWay) {
  const auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<StreamItem, StreamItem> stream = stub_->Echo();
    for (const size_t bytes : {0u, 100'000u}) {
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(bytes, bytes)));
      EXPECT_EQ((co_await stream.Read()).value_or(StreamItem()).number(), bytes);
    }
    co_return co_await stream.Finish();
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run(run()), absl::OkStatus());
    EXPECT_EQ(client_log_, "a>0 c>0 c<0 a<0 a>100000 c>100000 c<100000 a<100000 ");
    EXPECT_EQ(server_log_, "x<0 y<0 y>0 x>0 x<100000 y<100000 y>100000 x>100000 ");
    client_log_.clear();
    server_log_.clear();
  }
}

TEST_F(SeenMessagesTest, OnlyMessagesOfASideThatStreamsAreSeen) {
  // Request and reply are request() and reply(), also if they do not fit a frame.
  EXPECT_EQ(Run(Count({}, 2, 100'000)), absl::OkStatus());
  EXPECT_EQ(client_log_, "c<0 a<0 c<1 a<1 ");
  EXPECT_EQ(server_log_, "y>0 x>0 y>1 x>1 ");
  client_log_.clear();
  server_log_.clear();
  EXPECT_EQ(Run(Sum({}, 2)), absl::OkStatus());
  EXPECT_EQ(client_log_, "a>0 c>0 a>1 c>1 ");
  EXPECT_EQ(server_log_, "x<0 y<0 x<1 y<1 ");
}

TEST_F(SeenMessagesTest, MessagesThatAreReadAfterTheEndAreSeenToo) {
  const auto run = [&]() -> Task<absl::Status> {
    testing::CountRequest request;
    request.set_count(3);
    CallInfo info;
    ClientReader<StreamItem> reader = stub_->Count(request, {.info = &info});
    EXPECT_TRUE((co_await reader.Read()).has_value());
    // Until the stream has ended here.
    for (int i = 0; i < 10'000 && info.elapsed == Duration::zero(); ++i) {
      VERBENA_CO_RETURN_IF_ERROR((co_await stub_->Say(StreamItem())).status());
    }
    EXPECT_GT(info.elapsed, Duration::zero());
    EXPECT_TRUE((co_await reader.Read()).has_value());
    EXPECT_EQ(client_log_, "c<0 a<0 c<1 a<1 ");
    // The one that is not read is not seen.
    co_return co_await reader.Finish();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  EXPECT_EQ(client_log_, "c<0 a<0 c<1 a<1 ");
}

}  // namespace
}  // namespace verbena::internal
