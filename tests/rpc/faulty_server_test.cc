// A server that breaks its word about memory that was leased to it changes no other byte of the
// application: it writes late, twice, past the end or with an old key; ends a lease twice, or a
// lease of another link; or never says that it is done. The server is in this process, in another,
// and over an RDMA device or TCP if VERBENA_DEVICE names one.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/support/moved_clock.h"
#include "tests/support/turn.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace faulty_server_test {

using std::chrono::milliseconds;

constexpr size_t kBytes = 4096;

// The wire between the faulty server and the client's memory.
enum class Wire { kInProcess, kSharedMemory, kNamed };

std::vector<Wire> Wires() {
  if (RogueDevice() != "soft") return {Wire::kNamed};
  return {Wire::kInProcess, Wire::kSharedMemory};
}

// A rogue in place of a server, on a runtime of its own, and the way to it.
struct Faulty {
  explicit Faulty(const std::string& device)
      : runtime(*Runtime::Start({.device = device})),
        listener(*CoreOf(*runtime).shard(0).bootstrap().Listen("127.0.0.1:0")),
        peer(std::make_unique<RoguePeer>(*runtime, device)) {}

  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<MessageListener> listener;
  std::unique_ptr<RoguePeer> peer;

  // The next request: its header, and the landing for the answer.
  struct Request {
    FrameHeader header;
    RemoteRange landing;
  };
  Request Next() const {
    const RogueFrame frame = peer->Receive()[0];
    absl::StatusOr<RequestBulk> bulk = ParseRequestBulk(frame.body.data(), frame.body.size());
    EXPECT_TRUE(bulk.ok()) << bulk.status();
    return {frame.header, bulk.ok() ? bulk->landing : RemoteRange()};
  }
  void Answer(const Request& request, uint64_t bytes = kBytes) const {
    peer->SendEnding(Response(request, bytes), request.landing.rkey);
  }
  static std::string Response(const Request& request, uint64_t bytes = kBytes) {
    RogueFrame frame;
    frame.header.kind = FrameKind::kResponse;
    frame.header.flags = kFrameHasBulk;
    frame.header.call_slot = request.header.call_slot;
    frame.header.call_generation = request.header.call_generation;
    frame.body.resize(ResponseBulk::kEncodedBytes);
    ResponseBulk{.has_payload = true, .payload_bytes = bytes}.Encode(frame.body.data());
    SendHeader header;
    header.credits_issued = RoguePeer::kCredits;
    return EncodeSend(header, {frame});
  }
};

// A faulty server at its script: in a thread of the test, or in a process of its own, which is
// forked before the test has other threads. Whatever the script and the client share lies in
// Shared().
class Rogue {
 public:
  using Script = std::function<void(Faulty&)>;

  Rogue(Wire wire, const Script& script) {
    if (wire == Wire::kSharedMemory) {
      Fork(script);
      return;
    }
    auto faulty = std::make_shared<Faulty>(RogueDevice());
    address_ = faulty->listener->address();
    thread_ = std::thread([faulty, script] { Play(*faulty, script); });
  }
  ~Rogue() { Join(); }

  const std::string& address() const { return address_; }
  // Once the client's part is over: the script has ended, and all that it expected was so.
  void Join() {
    if (thread_.joinable()) thread_.join();
    if (process_ == 0) return;
    int status = 0;
    const pid_t process = std::exchange(process_, 0);
    EXPECT_EQ(waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0) << "the faulty server's part failed; it has said how";
  }

 private:
  static void Play(Faulty& faulty, const Script& script) {
    faulty.peer->AcceptFrom(*faulty.listener);
    script(faulty);
  }

  void Fork(const Script& script) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    process_ = fork();
    ASSERT_GE(process_, 0);
    if (process_ == 0) {
      // An exception ends the child: GoogleTest would run it as a second test.
      [&]() noexcept {
        Faulty faulty("soft");
        const std::string& address = faulty.listener->address();
        EXPECT_EQ(write(ends[1], address.data(), address.size()),
                  static_cast<ssize_t>(address.size()));
        close(ends[1]);
        Play(faulty, script);
      }();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    char buffer[256];
    ssize_t count;
    while ((count = read(ends[0], buffer, sizeof(buffer))) > 0) {
      address_.append(buffer, static_cast<size_t>(count));
    }
    close(ends[0]);
  }

  std::string address_;
  std::thread thread_;
  pid_t process_ = 0;
};

// Notes between a script and its client, whichever process the script runs in.
struct Told {
  std::atomic<bool> returned{false};
  std::atomic<uint32_t> key{0};
  std::atomic<uint64_t> address{0};
  std::atomic<bool> struck{false};
};

class FaultyServerTest : public PayloadFixture, public ::testing::WithParamInterface<Wire> {
 protected:
  FaultyServerTest()
      : told_(*new(mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0)) Told()) {}
  ~FaultyServerTest() override { munmap(&told_, sizeof(Told)); }

  void SetUp() override {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    if (GetParam() == Wire::kSharedMemory) GTEST_SKIP() << "ThreadSanitizer sees one process";
#endif
#endif
  }

  // A rogue answers no PING, and its silence ends no link.
  void StartClientOf(const Rogue& rogue, LinkLimits limits = RoguesLimits()) {
    limits.ping_interval = std::chrono::hours(100);
    client_runtime_ = *Runtime::Start({.device = RogueDevice(), .limits = limits});
    channel_ = std::make_unique<Channel>(*client_runtime_, rogue.address());
    stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  }

  // If a device does not check its windows, a faulty peer may do more: docs/devices.md.
  static bool WindowsAreChecked() {
    return (*OpenDevice(RogueDevice()))->capabilities().windows_checked;
  }

  void StopClient() {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  struct Got {
    absl::Status status;
    Buffer buffer;
  };
  // One call that leases `into`, full of 'A'.
  Task<Got> Get(Buffer into, Deadline deadline = {}) {
    WithPayload<testing::GetReply> reply;
    absl::Status status =
        co_await stub_->Get(testing::GetRequest(), reply,
                            {.deadline = deadline, .response_payload_into = std::move(into)});
    co_return Got{std::move(status), std::move(reply.payload)};
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
    while (client_runtime_->endpoint_stats(0).links > 0) {
      co_await Turn(client_runtime_->executor(0));
    }
  }
  // Buffers side by side: a write past the end of one lands in another.
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

  Told& told_;
};

const std::string kForged(kBytes, 'F');
const std::string kGood(kBytes, 'G');

TEST_P(FaultyServerTest, AWritePastTheEndOfALeaseEndsTheLinkAndChangesNothing) {
  if (!WindowsAreChecked()) GTEST_SKIP() << "the device does not check the range";
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request request = faulty.Next();
    EXPECT_EQ(faulty.peer->Write(request.landing.address + 1, request.landing.rkey, kForged),
              IBV_WC_REM_ACCESS_ERR);
  });
  StartClientOf(rogue);
  auto client = [this]() -> Task<absl::Status> {
    std::vector<Buffer> buffers = co_await Neighbours();
    Got got = co_await Get(std::move(buffers[4]));
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (i != 4) {
        EXPECT_TRUE(AllAre(buffers[i], 'A')) << i;
      }
    }
    co_return got.status;
  };
  absl::Status status = Run(client());
  rogue.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

void WriteLate(Faulty& faulty, Told& told, bool invalidates) {
  const Faulty::Request request = faulty.Next();
  const RemoteRange& landing = request.landing;
  EXPECT_EQ(faulty.peer->Write(landing.address, landing.rkey, kGood), IBV_WC_SUCCESS);
  const std::string response = Faulty::Response(request);
  if (invalidates) {
    faulty.peer->SendInvalidating(response, landing.rkey);
  } else {
    faulty.peer->Send(response);
  }
  while (!told.returned) std::this_thread::yield();
  EXPECT_EQ(faulty.peer->Write(landing.address, landing.rkey, kForged), IBV_WC_REM_ACCESS_ERR);
}

class LateWriteTest : public FaultyServerTest {
 protected:
  void Play(bool invalidates) {
    Rogue rogue(GetParam(), [&](Faulty& faulty) { WriteLate(faulty, told_, invalidates); });
    StartClientOf(rogue);
    auto client = [this]() -> Task<absl::Status> {
      std::vector<Buffer> buffers = co_await Neighbours();
      Got got = co_await Get(std::move(buffers[4]));
      if (!got.status.ok()) co_return got.status;
      EXPECT_TRUE(AllAre(got.buffer, 'G')) << "what was written in time is there";
      // The application's again.
      std::memset(got.buffer.data(), 'B', kBytes);
      told_.returned = true;
      co_await AwaitNoLink();
      EXPECT_TRUE(AllAre(got.buffer, 'B')) << "a late write landed";
      co_return absl::OkStatus();
    };
    EXPECT_EQ(Run(client()), absl::OkStatus());
    rogue.Join();
    ExpectMemoryHome();
  }
};

TEST_P(LateWriteTest, AWriteAfterTheResponseFindsTheLeaseThatItEnded) {
  if (!WindowsAreChecked()) GTEST_SKIP() << "the client is not told";
  Play(true);
}
TEST_P(LateWriteTest, AWriteAfterTheResponseFindsTheLeaseThatTheClientEnded) { Play(false); }

TEST_P(FaultyServerTest, AnOldKeyOpensNoLaterLease) {
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request first = faulty.Next();
    faulty.Answer(first);
    const Faulty::Request second = faulty.Next();
    EXPECT_EQ(second.landing.address, first.landing.address);
    EXPECT_NE(second.landing.rkey, first.landing.rkey);
    EXPECT_EQ(faulty.peer->Write(second.landing.address, first.landing.rkey, kForged),
              IBV_WC_REM_ACCESS_ERR);
  });
  StartClientOf(rogue);
  absl::Status status = Run(GetTwice());
  rogue.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

TEST_P(FaultyServerTest, ALeaseThatIsEndedTwiceEndsTheLink) {
  if (!WindowsAreChecked()) GTEST_SKIP() << "it crashes the kernel";
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request request = faulty.Next();
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
    faulty.peer->SendInvalidating(Faulty::Response(request), request.landing.rkey);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  StartClientOf(rogue);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    if (!got.status.ok()) co_return got.status;
    co_await AwaitNoLink();
    co_return got.status;
  };
  EXPECT_EQ(Run(client()), absl::OkStatus());
  rogue.Join();
  ExpectMemoryHome();
}

TEST_P(FaultyServerTest, ASecondResponseIsLateAndHarmless) {
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request first = faulty.Next();
    faulty.Answer(first);
    faulty.peer->Send(Faulty::Response(first));
    const Faulty::Request second = faulty.Next();
    faulty.Answer(second);
    // Its process stays until the client has what it wants.
    while (!faulty.peer->IsDropped()) std::this_thread::yield();
  });
  StartClientOf(rogue);
  EXPECT_EQ(Run(GetTwice()), absl::OkStatus());
  ExpectMemoryHome();
  StopClient();
  rogue.Join();
}

TEST_P(FaultyServerTest, AResponseLargerThanWhatWasLentEndsTheLink) {
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request request = faulty.Next();
    faulty.Answer(request, kBytes + 1);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  StartClientOf(rogue);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    EXPECT_FALSE(got.buffer) << "the server may still write there";
    co_return got.status;
  };
  absl::Status status = Run(client());
  rogue.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  ExpectMemoryHome();
}

TEST_P(FaultyServerTest, APayloadThatIsNotWhatItsChecksumSaysIsDataLoss) {
  Rogue rogue(GetParam(), [](Faulty& faulty) {
    const Faulty::Request request = faulty.Next();
    EXPECT_EQ(faulty.peer->Write(request.landing.address, request.landing.rkey, kForged),
              IBV_WC_SUCCESS);
    // Which says that the checksum is 0.
    faulty.Answer(request);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  LinkLimits limits = RoguesLimits();
  limits.payload_checksum = PayloadChecksum::kOn;
  StartClientOf(rogue, limits);
  auto client = [this]() -> Task<absl::Status> {
    Got got = co_await GetFirst();
    EXPECT_EQ(OutcomeOf(got.status), Outcome::kExecuted);
    co_return got.status;
  };
  absl::Status status = Run(client());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  ExpectMemoryHome();
  StopClient();
  rogue.Join();
}

TEST_P(FaultyServerTest, TheLeaseOfAnotherLinkCannotBeEndedOrUsed) {
  Rogue rogue(GetParam(), [&](Faulty& faulty) {
    const Faulty::Request request = faulty.Next();
    const RemoteRange& landing = request.landing;
    told_.address = landing.address;
    told_.key = landing.rkey;
    while (!told_.struck) std::this_thread::yield();
    EXPECT_EQ(faulty.peer->Write(landing.address, landing.rkey, kGood), IBV_WC_SUCCESS);
    faulty.Answer(request);
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  Rogue neighbour(GetParam(), [&](Faulty& faulty) {
    while (told_.key == 0) std::this_thread::yield();
    EXPECT_EQ(faulty.peer->Write(told_.address, told_.key, kForged), IBV_WC_REM_ACCESS_ERR);
    told_.struck = true;
  });
  StartClientOf(rogue);
  Channel other_channel(*client_runtime_, neighbour.address());
  auto client = [&]() -> Task<absl::Status> {
    absl::Status connected = co_await other_channel.Connect();
    if (!connected.ok()) co_return connected;
    Got got = co_await GetFirst();
    if (got.status.ok()) {
      EXPECT_TRUE(AllAre(got.buffer, 'G'));
    }
    co_return got.status;
  };
  EXPECT_EQ(Run(client()), absl::OkStatus()) << "the link that did nothing wrong goes on";
  ExpectMemoryHome();
  StopClient();
  rogue.Join();
  neighbour.Join();
}

TEST_P(FaultyServerTest, AServerThatNeverSaysThatItIsDoneLosesTheLinkAfterTheGrace) {
  Rogue rogue(GetParam(), [this](Faulty& faulty) {
    (void)faulty.Next();
    told_.struck = true;
    EXPECT_TRUE(faulty.peer->IsDropped());
  });
  // So long that nothing but the clock's move reaches it. Silence would end the link much later.
  constexpr Duration kGrace = std::chrono::hours(1);
  MovedClock clock;
  LinkLimits limits = RoguesLimits();
  limits.ping_interval = kGrace;
  limits.leases.grace = kGrace;
  client_runtime_ = *Runtime::Start({.device = RogueDevice(), .limits = limits, .clock = &clock});
  channel_ = std::make_unique<Channel>(*client_runtime_, rogue.address());
  stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  auto client = [this]() -> Task<absl::Status> {
    absl::Status ended;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      Got got = co_await GetFirst();
      EXPECT_FALSE(got.buffer);
      ended = std::move(got.status);
    });
    while (!told_.struck) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());  // a process says it
    scope.RequestCancel();
    co_await scope.Join();
    EXPECT_GT(co_await LentNow(), 0u) << "until the grace is over";
    co_return ended;
  };
  absl::Status status = Run(client());
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  clock.moved_by = kGrace;
  // So that the executor looks at its clock.
  EXPECT_EQ(Run(Pause()), absl::OkStatus());
  rogue.Join();
  ExpectMemoryHome();
  StopClient();
}

std::string NameOf(const ::testing::TestParamInfo<Wire>& info) {
  if (info.param == Wire::kNamed) return "named_device";
  return info.param == Wire::kInProcess ? "in_process" : "shared_memory";
}

INSTANTIATE_TEST_SUITE_P(Wires, FaultyServerTest, ::testing::ValuesIn(Wires()), NameOf);
INSTANTIATE_TEST_SUITE_P(Wires, LateWriteTest, ::testing::ValuesIn(Wires()), NameOf);

}  // namespace faulty_server_test
}  // namespace verbena::internal
