// A runtime whose device fails ends the calls and loans on it, opens it again and serves on. The
// next opening refuses the buffers of the failed one, and nothing is left behind.

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/open_link.h"
#include "tests/rpc/payload_service.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/device/fragile_devices.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {
namespace device_failure_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kBytes = 100'000;
constexpr int kForEver = 1'000'000;
constexpr ReopenBackoff kSoon = {.first = std::chrono::milliseconds(1),
                                 .longest = std::chrono::milliseconds(4)};
constexpr ReopenBackoff kNeverAgain = {.first = std::chrono::hours(100),
                                       .longest = std::chrono::hours(1000)};

class DeviceFailureTest : public PayloadFixture {
 protected:
  static TestDevice On(FragileDevices& devices) {
    return {.open = [&devices] { return devices.Open(); }};
  }
  void StartOnFragileDevices(const ReopenBackoff& reopen = kSoon) {
    StartServer({.reopen = reopen}, On(servers_));
    StartClient({.reopen = reopen}, On(clients_));
    EXPECT_EQ(Run(PutOnce()), absl::OkStatus());
  }

  Task<absl::Status> PutOnce() {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(kBytes));
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Put(testing::PutRequest(), reply, {.request_payload = std::move(buffer)}));
    co_return reply.right() ? absl::OkStatus() : absl::DataLossError("not the pattern");
  }
  // The first may still go over a link that is about to be lost.
  void ExpectThatCallsSucceedAgain() {
    Eventually([this] { return Run(PutOnce()).ok() && Run(PutOnce()).ok(); },
               "calls succeed again");
  }
  void FailAndAwaitTheNext(FragileDevices& devices, int events = 1) {
    const int opened = devices.opened();
    devices.Fail(events);
    Eventually([&] { return devices.opened() > opened; }, "the device is opened again");
    ExpectThatCallsSucceedAgain();
  }
  // All calls until then fail, if at all, with UNAVAILABLE.
  void AwaitRefusal(const std::string& device) {
    Eventually(
        [&] {
          const absl::Status status = Run(PutOnce());
          EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
          return std::string(status.message())
                     .find(device + " has failed, or was removed, and is being reopened") !=
                 std::string::npos;
        },
        "a call is told that the device is being reopened");
  }
  // All that was logged until then: a line may come after its effect.
  std::vector<std::string> AwaitLine(CapturedLog& log, const std::string& part) {
    std::vector<std::string> lines;
    Eventually(
        [&] {
          for (std::string& line : log.Take()) lines.push_back(std::move(line));
          return ::testing::Matches(Contains(HasSubstr(part)))(lines);
        },
        part.c_str());
    return lines;
  }
  void ExpectThatOneIsOpen(FragileDevices& devices) {
    Eventually([&devices] { return devices.alive() == 1; }, "the failed device is closed");
  }

  // Whether the pool that the client's payloads lie in registers more memory.
  Task<bool> ClientsPoolGrows() {
    const PayloadMemory* const memory = PayloadMemoryOf(*client_runtime_);
    co_return memory != nullptr && memory->send().stats().growing_bytes > 0;
  }

  // Names memory as a handle from the client's link would.
  Task<absl::StatusOr<RemoteMemory>> SomeOfTheServers() {
    const uint64_t link = PeerIdentityOf(*client_runtime_);
    if (link == 0) co_return absl::NotFoundError("there is no link");
    RemoteMemoryHandle handle;
    handle.set_address(4096);
    handle.set_bytes(4096);
    handle.set_access(static_cast<uint32_t>(LeaseAccess::kRead));
    handle.set_link(link);
    co_return channel_->Remote(handle);
  }

  FragileDevices servers_{"far"};
  FragileDevices clients_{"near"};
};

TEST_F(DeviceFailureTest, AClientsDeviceThatFailedIsOpenedAgainAndItsChannelsReconnect) {
  CapturedLog log;
  StartOnFragileDevices();
  clients_.Refuse(kForEver);
  clients_.Fail();
  AwaitRefusal("near");
  clients_.Refuse(0);
  ExpectThatCallsSucceedAgain();
  ExpectThatOneIsOpen(clients_);
  EXPECT_EQ(servers_.alive(), 1);
  const std::vector<std::string> lines = AwaitLine(log, "near was reopened after");
  EXPECT_THAT(lines, Contains(StartsWith("near has failed, or was removed")).Times(1));
  EXPECT_THAT(lines, Contains(HasSubstr("near was reopened after")).Times(1));
}

TEST_F(DeviceFailureTest, AServersDeviceThatFailedIsOpenedAgainAndItAcceptsAgain) {
  StartOnFragileDevices();
  servers_.Refuse(kForEver);
  servers_.Fail();
  AwaitRefusal("far");
  servers_.Refuse(0);
  ExpectThatCallsSucceedAgain();
  ExpectThatOneIsOpen(servers_);
  EXPECT_EQ(clients_.alive(), 1);
}

TEST_F(DeviceFailureTest, ACallUnderWayWhenItsDeviceFailsSaysSo) {
  StartOnFragileDevices();
  absl::Status status;
  auto hold = [&]() -> Task<void> {
    WithPayload<testing::PutReply> reply;
    status = co_await stub_->Hold(testing::HoldRequest(), reply);
    service_.let_go = true;
  };
  client_runtime_->Spawn(hold());
  Eventually([this] { return service_.holding == 1; }, "a handler runs");
  clients_.Fail();
  Eventually([this] { return service_.let_go.load(); }, "the call ends");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("near has failed, or was removed"));
  ExpectThatCallsSucceedAgain();
}

TEST_F(DeviceFailureTest, ADeviceIsOpenedAgainThoughTheFirstAttemptsFail) {
  CapturedLog log;
  StartOnFragileDevices();
  clients_.Refuse(3);
  clients_.Fail();
  Eventually([this] { return clients_.refused() == 3; }, "three attempts fail");
  ExpectThatCallsSucceedAgain();
  const std::vector<std::string> lines = AwaitLine(log, "near was reopened after");
  EXPECT_THAT(lines, Contains(HasSubstr("near is not reopened yet")).Times(3));
  EXPECT_THAT(lines, Contains(HasSubstr("near was reopened after 4 attempts")).Times(1));
}

TEST_F(DeviceFailureTest, BuffersOfADeviceThatFailedAreReadableAndKeepItAndAreRefusedByTheNextOne) {
  service_.keep = true;
  StartOnFragileDevices();
  absl::StatusOr<Buffer> held = Run(Filled(kBytes));
  ASSERT_TRUE(held.ok()) << held.status();
  clients_.Fail();
  servers_.Fail();
  Eventually([this] { return clients_.alive() == 2 && servers_.alive() == 2; }, "both are opened");
  ExpectThatCallsSucceedAgain();
  EXPECT_EQ(clients_.alive(), 2);
  EXPECT_EQ(servers_.alive(), 2);
  EXPECT_TRUE(IsPattern(held->view()));

  Payload payload = *std::move(held);
  auto put = [&]() -> Task<absl::Status> {
    testing::PutReply reply;
    co_return co_await stub_->Put(
        testing::PutRequest(), reply,
        {.request_payload = std::move(payload), .returned_payload = &payload});
  };
  const absl::Status refused = Run(put());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("registered with near"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the link uses near"));
  // The caller has it back.
  Buffer back = payload.TakeBuffer();
  EXPECT_TRUE(IsPattern(back.view()));
  EXPECT_EQ(clients_.alive(), 2);
  back.Reset();
  ExpectThatOneIsOpen(clients_);

  server_.reset();
  EXPECT_EQ(servers_.alive(), 2);
  for (Buffer& kept : service_.kept) EXPECT_TRUE(IsPattern(kept.view()));
  service_.kept.clear();
  ExpectThatOneIsOpen(servers_);
}

// The caller could do nothing about that.
TEST_F(DeviceFailureTest, ACallWhoseMemoryIsOfTheFailedDeviceWasNotSentAndMayBeTriedAgain) {
  StartOnFragileDevices();
  std::vector<Buffer> all;
  absl::Status status;
  std::atomic<bool> waiting = false;
  std::atomic<bool> ended = false;
  Buffer kept;
  // The landing goes from attempt to attempt, as a caller's own.
  auto get = [&]() -> Task<absl::Status> {
    WithPayload<testing::GetReply> reply;
    testing::GetRequest request;
    request.set_bytes(kBytes);
    const uint64_t most = kept ? 0 : kBytes;
    const absl::Status got = co_await stub_->Get(
        request, reply, {.response_payload_into = std::move(kept), .max_response_payload = most});
    kept = std::move(reply.payload);
    co_return got;
  };
  auto hold = [&]() -> Task<void> {
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->landing();
    all = co_await TakeAll(pool, kBytes);
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> { status = co_await get(); });
    while (pool.stats().waiting == 0) (void)co_await Pause();
    waiting = true;
    co_await scope.Join();
    ended = true;
  };
  client_runtime_->Spawn(hold());
  Eventually([&] { return waiting.load(); }, "the call waits for memory");
  FailAndAwaitTheNext(clients_);
  EXPECT_FALSE(ended);
  all.clear();
  Eventually([&] { return ended.load(); }, "the call ends");
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("near failed, or was removed, while verbena.testing.Payloads/Get waited "
                        "with memory of it; try again"));
  EXPECT_FALSE(kept) << "a buffer that the library allocated for the attempt";
  EXPECT_EQ(Run(get()), absl::OkStatus());
  EXPECT_TRUE(kept);
  EXPECT_EQ(Run(get()), absl::OkStatus()) << "into the buffer of the last one";
  kept.Reset();
  ExpectThatOneIsOpen(clients_);
}

TEST_F(DeviceFailureTest, LoansAndRemoteMemoryOverADeviceThatFailedAreLostAndDoNotKeepIt) {
  StartOnFragileDevices();
  absl::StatusOr<RemoteMemory> remote = Run(SomeOfTheServers());
  ASSERT_TRUE(remote.ok()) << remote.status();
  absl::StatusOr<Buffer> buffer = Run(Filled(kBytes));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  absl::StatusOr<Loan> ended = Run(channel_->Lend(buffer->view(), LeaseAccess::kRead));
  absl::StatusOr<Loan> dropped = Run(channel_->Lend(buffer->view(), LeaseAccess::kRead));
  ASSERT_TRUE(ended.ok() && dropped.ok()) << ended.status() << dropped.status();
  buffer->Reset();
  FailAndAwaitTheNext(clients_);
  ExpectThatOneIsOpen(clients_);
  EXPECT_TRUE(absl::IsUnavailable(Run(std::move(*ended).End())));
  dropped = absl::UnknownError("");
  ExpectThatCallsSucceedAgain();
  absl::StatusOr<Buffer> into = Run(Filled(4096));
  ASSERT_TRUE(into.ok()) << into.status();
  const absl::Status read = Run(remote->Read(0, into->view()));
  EXPECT_TRUE(absl::IsUnavailable(read)) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr("the link to the remote memory was lost"));
}

// They lie in memory that goes with the device.
TEST_F(DeviceFailureTest, AQueueThatAFailedDeviceDoesNotDestroyIsNotPolledWhenItIsClosed) {
  StartOnFragileDevices();
  for (FragileDevices* devices : {&clients_, &servers_}) {
    devices->AnswerForCqs(absl::InternalError("EIO"));
    FailAndAwaitTheNext(*devices);
    ExpectThatOneIsOpen(*devices);
    ExpectThatCallsSucceedAgain();
  }
}

TEST_F(DeviceFailureTest, ADeviceThatDestroysNothingAfterItsRemovalStaysOpenUntilItsRuntimeEnds) {
  CapturedLog log;
  StartOnFragileDevices();
  clients_.AnswerForCqs(absl::InternalError("EIO"));
  clients_.AnswerForPds(absl::InternalError("EIO"));
  FailAndAwaitTheNext(clients_);
  const std::vector<std::string> lines = AwaitLine(log, "stays open until its runtime ends");
  EXPECT_THAT(lines, Contains(HasSubstr("a completion queue was not destroyed")).Times(1));
  EXPECT_EQ(clients_.alive(), 2);
  ExpectThatCallsSucceedAgain();
  StopBoth();
  EXPECT_EQ(clients_.alive(), 0);
}

// The device stays open even if verbs would let it be closed meanwhile.
TEST_F(DeviceFailureTest, MemoryThatIsRegisteredWithADeviceThatFailedKeepsItUntilItIsDeregistered) {
  StartOnFragileDevices();
  std::vector<char> memory(kBytes);
  for (const bool closable : {false, true}) {
    auto own = Run(client_runtime_->RegisterMemory(memory.data(), memory.size()));
    ASSERT_TRUE(own.ok()) << own.status();
    if (closable) clients_.AnswerForPds(absl::OkStatus());
    FailAndAwaitTheNext(clients_);
    auto put = [&]() -> Task<absl::Status> {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer wrapped, (*own)->Wrap(0, kBytes));
      testing::PutReply reply;
      co_return co_await stub_->Put(testing::PutRequest(), reply,
                                    {.request_payload = std::move(wrapped)});
    };
    const absl::Status refused = Run(put());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("before it failed and was reopened"));
    EXPECT_EQ(clients_.alive(), 2);
    Run(client_runtime_->DeregisterMemory(*std::move(own)));
    ExpectThatOneIsOpen(clients_);
  }
}

// The pool had begun to register more memory ahead of need. A control thread is in the midst of
// that.
TEST_F(DeviceFailureTest, ADeviceThatFailsWhileAPoolGrowsIsClosedOnceItHasAnswered) {
  StartOnFragileDevices();
  clients_.HoldRegistrations();
  std::vector<Buffer> all;
  Eventually(
      [&] {
        if (clients_.held_registrations() > 0) return true;
        // The control thread may be on its way, and the memory that is left does not last for ever.
        if (Run(ClientsPoolGrows())) return false;
        absl::StatusOr<Buffer> buffer = Run(Filled(size_t{1} << 20));
        EXPECT_TRUE(buffer.ok()) << buffer.status();
        if (buffer.ok()) all.push_back(*std::move(buffer));
        return false;
      },
      "the pool grows");
  all.clear();
  FailAndAwaitTheNext(clients_);
  EXPECT_EQ(clients_.alive(), 2);
  clients_.ReleaseRegistrations();
  ExpectThatOneIsOpen(clients_);
}

TEST_F(DeviceFailureTest, ABufferThatOutlivesItsRuntimeIsRefusedByTheNextOneByItsDevicesName) {
  StartOnFragileDevices();
  FragileDevices gone("gone");
  Buffer buffer;
  {
    const std::unique_ptr<Runtime> runtime = StartRuntime({.reopen = kSoon}, On(gone));
    Channel channel(*runtime, server_->address());
    absl::StatusOr<Buffer> made = runtime->BlockOn(channel.AllocateBuffer(kBytes));
    ASSERT_TRUE(made.ok()) << made.status();
    buffer = *std::move(made);
  }
  EXPECT_EQ(gone.alive(), 0);
  auto put = [&]() -> Task<absl::Status> {
    testing::PutReply reply;
    co_return co_await stub_->Put(testing::PutRequest(), reply,
                                  {.request_payload = std::move(buffer)});
  };
  const absl::Status refused = Run(put());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("registered with gone, and"));
}

TEST_F(DeviceFailureTest, DevicesThatFailAgainAndAgainLeaveNothingBehind) {
  StartOnFragileDevices();
  for (int i = 0; i < 10; ++i) {
    FragileDevices& devices = i % 2 == 0 ? clients_ : servers_;
    FailAndAwaitTheNext(devices, /*events=*/2);
    ExpectThatOneIsOpen(clients_);
    ExpectThatOneIsOpen(servers_);
  }
}

TEST_F(DeviceFailureTest, ARuntimeEndsAtOnceWhileItsDeviceIsBeingOpenedAgain) {
  StartOnFragileDevices(kNeverAgain);
  absl::StatusOr<Buffer> held = Run(Filled(kBytes));
  servers_.Fail();
  AwaitRefusal("far");
  clients_.Fail();
  AwaitRefusal("near");
  held->Reset();
  StopBoth();
  EXPECT_EQ(clients_.alive(), 0);
  EXPECT_EQ(servers_.alive(), 0);
}

// The attempt goes on while the runtime ends, or has just ended by then.
TEST_F(DeviceFailureTest, ARuntimeEndsWhileAnAttemptToOpenItsDeviceIsUnderWay) {
  for (int i = 0; i < 5; ++i) {
    std::atomic<bool> opening = false;
    std::atomic<bool> go = true;
    StartServer({.reopen = kSoon}, On(servers_));
    StartClient({.reopen = kSoon}, {.open = [&] {
                  opening = true;
                  while (!go) std::this_thread::yield();
                  return clients_.Open();
                }});
    opening = go = false;
    clients_.Fail();
    Eventually([&] { return opening.load(); }, "an attempt is under way");
    go = true;
    StopBoth();
    EXPECT_EQ(clients_.alive(), 0);
  }
}

TEST_F(DeviceFailureTest, ARuntimeEndsNoExecutorWhileItsDeviceIsBeingOpenedForIt) {
  std::atomic<bool> opening = false;
  std::atomic<bool> ending = false;
  std::atomic<bool> cancelled = false;
  StartServer({.reopen = kSoon}, On(servers_));
  StartClient({.reopen = kSoon}, {.open = [&] {
                opening = clients_.opened() > 0;
                while (opening && !ending) std::this_thread::yield();
                return clients_.Open();
              }});
  auto watch = [&](Shard& shard) -> Task<void> {
    while (!ending) {
      const absl::Status absent = shard.EndpointOn(0).status();
      cancelled = !(co_await Yield()).ok();
      ending = cancelled || absent.message().find("its runtime ends") != absl::string_view::npos;
    }
  };
  client_runtime_->Spawn(watch(CoreOf(*client_runtime_).shard(0)));
  clients_.Fail();
  Eventually([&] { return opening.load(); }, "an attempt is under way");
  StopBoth();
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(clients_.alive(), 0);
}

TEST_F(DeviceFailureTest, ARuntimeEndsWhileADeviceThatFailedIsInUse) {
  StartOnFragileDevices();
  absl::StatusOr<Buffer> held = Run(Filled(kBytes));
  clients_.Fail();
  Eventually([this] { return clients_.alive() == 2; }, "the device is opened again");
  ExpectThatCallsSucceedAgain();
  EXPECT_EQ(clients_.alive(), 2);
  held->Reset();
  StopBoth();
  EXPECT_EQ(clients_.alive(), 0);
}

// One runtime for both sides, whose host may drive it.
class HostedDeviceFailureTest : public DeviceFailureTest,
                                public ::testing::WithParamInterface<bool> {};

TEST_P(HostedDeviceFailureTest, ADeviceOfBothSidesIsOpenedAgain) {
  RuntimeOptions options{.executors = 2, .threads = GetParam(), .reopen = kSoon};
  // A host without the thread that reads events does so on this timer. With threads, a stop of one
  // of them would end the link.
  if (!options.threads) options.limits.ping_interval = std::chrono::milliseconds(20);
  client_runtime_ = StartRuntime(std::move(options), On(clients_));
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*client_runtime_, {&service_}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  channel_ = std::make_unique<Channel>(*client_runtime_, (*server)->address());
  stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  EXPECT_EQ(Run(PutOnce()), absl::OkStatus());
  for (int i = 0; i < 3; ++i) {
    clients_.Refuse(kForEver);
    clients_.Fail();
    AwaitRefusal("near");
    clients_.Refuse(0);
    ExpectThatCallsSucceedAgain();
    ExpectThatOneIsOpen(clients_);
  }
  server->reset();
  StopBoth();
}

INSTANTIATE_TEST_SUITE_P(Threads, HostedDeviceFailureTest, ::testing::Bool());

}  // namespace device_failure_test
}  // namespace verbena::internal
