// A server that breaks its word about memory that it was lent: it writes late, twice, past the end,
// with an old key; ends a lease twice, or that of another link; or never says that it is done. The
// application's memory is compared byte by byte.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "verbena/rpc/bulk_format.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBytes = 4096;

class FaultyServerTest : public PayloadFixture {
 protected:
  // A rogue in place of a server, on a runtime of its own, and the way to it.
  struct Faulty {
    std::unique_ptr<Runtime> runtime = *Runtime::Start({.device = "soft"});
    std::unique_ptr<MessageListener> listener =
        *runtime->shard(0).bootstrap().Listen("127.0.0.1:0");
    std::unique_ptr<RoguePeer> peer = std::make_unique<RoguePeer>(*runtime);
    uint32_t sent = 0;

    // The next request: who asked, and where the answer may go.
    struct Request {
      FrameHeader header;
      RemoteRange landing;
    };
    Request Next() {
      const RogueFrame frame = peer->Receive()[0];
      absl::StatusOr<RequestBulk> bulk = ParseRequestBulk(frame.body.data(), frame.body.size());
      EXPECT_TRUE(bulk.ok()) << bulk.status();
      return {frame.header, bulk.ok() ? bulk->landing : RemoteRange()};
    }
    static std::string Response(const Request& request, uint64_t bytes = kBytes) {
      RogueFrame frame;
      frame.header.kind = FrameKind::kResponse;
      frame.header.flags = kFrameHasBulk;
      frame.header.call_slot = request.header.call_slot;
      frame.header.call_generation = request.header.call_generation;
      frame.body.resize(ResponseBulk::kEncodedBytes);
      ResponseBulk{.payload_bytes = bytes}.Encode(frame.body.data());
      SendHeader header;
      header.credits_granted = RoguePeer::kCredits;
      return EncodeSend(header, {frame});
    }
  };

  void StartClientOfRogue(Faulty& faulty, const LinkLimits& limits = {}) {
    client_runtime_ = *Runtime::Start({.device = "soft", .limits = limits});
    channel_ = std::make_unique<Channel>(*client_runtime_, faulty.listener->address());
    stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  }

  // Runs `client` on the client's executor, and `server` meanwhile, after a link is there.
  absl::Status Play(Faulty& faulty, Task<absl::Status> client,
                    const std::function<void()>& server) {
    std::thread thread([&] {
      faulty.peer->AcceptFrom(*faulty.listener);
      server();
    });
    absl::Status status = Run(std::move(client));
    thread.join();
    return status;
  }

  struct Got {
    absl::Status status;
    Buffer buffer;
  };
  // One call that lends `into`, full of 'A'.
  Task<Got> Get(Buffer into, Deadline deadline = {}) {
    CallInfo info;
    testing::GetReply reply;
    absl::Status status = co_await stub_->Get(
        testing::GetRequest(), reply,
        {.deadline = deadline, .info = &info, .response_payload_into = std::move(into)});
    co_return Got{std::move(status), std::move(info.response_payload)};
  }
  // One call, and a second with the same memory if that went well.
  Task<absl::Status> GetTwice() {
    Got first = co_await GetFirst();
    if (!first.status.ok()) co_return first.status;
    std::memset(first.buffer.data(), 'A', kBytes);
    Got second = co_await Get(std::move(first.buffer));
    co_return second.status;
  }
  Task<Got> GetFirst(Deadline deadline = {}) {
    std::vector<Buffer> buffers = co_await Neighbours();
    co_return co_await Get(std::move(buffers[0]), deadline);
  }
  // Until the client has noticed that its link is lost.
  Task<void> AwaitNoLink() {
    while (client_runtime_->shard(0).EndpointOn(0).value()->stats().links > 0) {
      (void)co_await Sleep(milliseconds(1));
    }
  }
  // Neighbours in memory: what is written past the end of one lands in another.
  Task<std::vector<Buffer>> Neighbours() {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 8; ++i) {
      buffers.push_back(*co_await channel_->AllocateBuffer(kBytes));
      std::memset(buffers.back().data(), 'A', kBytes);
    }
    co_return buffers;
  }
  static bool AllAre(const Buffer& buffer, char c) {
    return buffer.size() == kBytes &&
           std::string(buffer.data(), buffer.size()) == std::string(kBytes, c);
  }
  void ExpectMemoryHome() {
    Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
  }

  std::atomic<bool> returned_{false};
};

const std::string kForged(kBytes, 'F');

TEST_F(FaultyServerTest, AWritePastTheEndOfALeaseEndsTheLinkAndChangesNothing) {
  Faulty faulty;
  StartClientOfRogue(faulty);
  auto client = [this]() -> Task<absl::Status> {
    std::vector<Buffer> buffers = co_await Neighbours();
    Got got = co_await Get(std::move(buffers[4]));
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (i != 4) EXPECT_TRUE(AllAre(buffers[i], 'A')) << i;
    }
    co_return got.status;
  };
  absl::Status status = Play(faulty, client(), [&] {
    const Faulty::Request request = faulty.Next();
    EXPECT_EQ(faulty.peer->Write(request.landing.address + 1, request.landing.rkey, kForged),
              IBV_WC_REM_ACCESS_ERR);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

// Whether the response ends the lease itself, or the client does.
TEST_F(FaultyServerTest, AWriteAfterTheResponseFindsTheLeaseOver) {
  for (const bool invalidates : {true, false}) {
    Faulty faulty;
    StartClientOfRogue(faulty);
    returned_ = false;
    auto client = [this]() -> Task<absl::Status> {
      std::vector<Buffer> buffers = co_await Neighbours();
      Got got = co_await Get(std::move(buffers[4]));
      if (!got.status.ok()) co_return got.status;
      EXPECT_TRUE(AllAre(got.buffer, 'G')) << "what was written in time is there";
      // The application's again.
      std::memset(got.buffer.data(), 'B', kBytes);
      returned_ = true;
      co_await AwaitNoLink();
      EXPECT_TRUE(AllAre(got.buffer, 'B')) << "a late write landed";
      co_return absl::OkStatus();
    };
    absl::Status status = Play(faulty, client(), [&] {
      const Faulty::Request request = faulty.Next();
      EXPECT_EQ(faulty.peer->Write(request.landing.address, request.landing.rkey,
                                   std::string(kBytes, 'G')),
                IBV_WC_SUCCESS);
      const std::string response = Faulty::Response(request);
      if (invalidates) {
        faulty.peer->SendInvalidating(response, request.landing.rkey);
      } else {
        faulty.peer->Send(response);
      }
      while (!returned_) std::this_thread::yield();
      EXPECT_EQ(faulty.peer->Write(request.landing.address, request.landing.rkey, kForged),
                IBV_WC_REM_ACCESS_ERR);
    });
    EXPECT_EQ(status, absl::OkStatus());
    ExpectMemoryHome();
  }
}

TEST_F(FaultyServerTest, AnOldKeyOpensNoLaterLease) {
  Faulty faulty;
  StartClientOfRogue(faulty);
  absl::Status status = Play(faulty, GetTwice(), [&] {
    const Faulty::Request first = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(first), first.landing.rkey);
    const Faulty::Request second = faulty.Next();
    EXPECT_EQ(second.landing.address, first.landing.address);
    EXPECT_NE(second.landing.rkey, first.landing.rkey);
    EXPECT_EQ(faulty.peer->Write(second.landing.address, first.landing.rkey, kForged),
              IBV_WC_REM_ACCESS_ERR);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, ALeaseThatIsEndedTwiceEndsTheLink) {
  Faulty faulty;
  StartClientOfRogue(faulty);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    if (!got.status.ok()) co_return got.status;
    co_await AwaitNoLink();
    co_return got.status;
  };
  absl::Status status = Play(faulty, client(), [&] {
    const Faulty::Request request = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  EXPECT_EQ(status, absl::OkStatus());
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, ASecondResponseIsLateAndHarmless) {
  Faulty faulty;
  StartClientOfRogue(faulty);
  absl::Status status = Play(faulty, GetTwice(), [&] {
    const Faulty::Request first = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(first), first.landing.rkey);
    faulty.peer->Send(Faulty::Response(first));
    const Faulty::Request second = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(second), second.landing.rkey);
  });
  EXPECT_EQ(status, absl::OkStatus());
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, AResponseLargerThanWhatWasLentEndsTheLink) {
  Faulty faulty;
  StartClientOfRogue(faulty);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    EXPECT_FALSE(got.buffer) << "the server may still write there";
    co_return got.status;
  };
  absl::Status status = Play(faulty, client(), [&] {
    const Faulty::Request request = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(request, kBytes + 1), request.landing.rkey);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, APayloadThatIsNotWhatItsChecksumSaysIsDataLoss) {
  Faulty faulty;
  LinkLimits limits;
  limits.payload_checksum = PayloadChecksum::kOn;
  StartClientOfRogue(faulty, limits);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    EXPECT_EQ(OutcomeOf(got.status), Outcome::kExecuted);
    co_return got.status;
  };
  absl::Status status = Play(faulty, client(), [&] {
    const Faulty::Request request = faulty.Next();
    EXPECT_EQ(faulty.peer->Write(request.landing.address, request.landing.rkey, kForged),
              IBV_WC_SUCCESS);
    // Which says that the checksum is 0.
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, TheLeaseOfAnotherLinkCannotBeEndedOrUsed) {
  Faulty faulty;
  Faulty other;
  StartClientOfRogue(faulty);
  Channel other_channel(*client_runtime_, other.listener->address());
  std::atomic<uint32_t> key{0};
  std::atomic<uint64_t> address{0};
  std::atomic<bool> struck{false};
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    if (got.status.ok()) EXPECT_TRUE(AllAre(got.buffer, 'G'));
    co_return got.status;
  };
  std::thread neighbour([&] {
    other.peer->AcceptFrom(*other.listener);
    while (key == 0) std::this_thread::yield();
    EXPECT_EQ(other.peer->Write(address, key, kForged), IBV_WC_REM_ACCESS_ERR);
    struck = true;
  });
  client_runtime_->Spawn(
      [](Channel& channel) -> Task<void> { (void)co_await channel.Connect(); }(other_channel));
  absl::Status status = Play(faulty, client(), [&] {
    const Faulty::Request request = faulty.Next();
    address = request.landing.address;
    key = request.landing.rkey;
    while (!struck) std::this_thread::yield();
    EXPECT_EQ(
        faulty.peer->Write(request.landing.address, request.landing.rkey, std::string(kBytes, 'G')),
        IBV_WC_SUCCESS);
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
  });
  neighbour.join();
  EXPECT_EQ(status, absl::OkStatus()) << "the link that did nothing wrong goes on";
  ExpectMemoryHome();
}

TEST_F(FaultyServerTest, AServerThatNeverSaysThatItIsDoneLosesTheLinkAfterTheGrace) {
  Faulty faulty;
  LinkLimits limits;
  limits.ping_interval = milliseconds(100);
  limits.leases.grace = milliseconds(300);
  StartClientOfRogue(faulty, limits);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst(milliseconds(50));
    EXPECT_FALSE(got.buffer);
    co_return got.status;
  };
  absl::Status status = Play(faulty, client(), [&] {
    (void)faulty.Next();
    // It answers every PING, so it is alive.
    SendHeader header;
    header.credits_granted = RoguePeer::kCredits;
    RogueFrame pong{.header = {.kind = FrameKind::kPong}};
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(milliseconds(40));
      faulty.peer->Send(EncodeSend(header, {pong}));
    }
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  ExpectMemoryHome();
}

}  // namespace
}  // namespace verbena
