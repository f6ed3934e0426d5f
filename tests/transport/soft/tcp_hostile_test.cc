// A peer on the TCP wire that talks nonsense, in pieces, or not at all, breaks its own connection
// at most. A message shows when its last byte is there. What is forged is refused, as over any
// wire.

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_chunks.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {
namespace tcp_hostile_test {

SoftDeviceOptions Tcp() {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

class TcpHostileTest : public testing::Test {
 protected:
  void SetUp() override {
    victim_ = std::make_unique<QpEnd>(*device_, QpEndOptions{});
    victim_bystander_ = std::make_unique<QpEnd>(*device_, QpEndOptions{});
    bystander_ = std::make_unique<QpEnd>(*other_, QpEndOptions{});
    Connect(*victim_bystander_, *bystander_);
    ExpectOthersUnharmed();
  }

  // Another QP of the same device goes on exchanging messages with its own peer.
  void ExpectOthersUnharmed() {
    ASSERT_EQ(bystander_->PostReceive(1, bystander_->ReceiveSge(0, 64)), 0);
    ASSERT_EQ(victim_bystander_->SendText(2, "unharmed"), 0);
    EXPECT_EQ(AwaitInTime(bystander_->cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(AwaitInTime(victim_bystander_->cq()).status, IBV_WC_SUCCESS);
  }

  // A SEND of `text` to the victim, with the PSN `psn`.
  std::vector<RingLine> SendOf(const std::string& text, uint16_t psn = 0) {
    return MessageOf({.opcode = Opcode::kSend,
                      .flags = kFirst | kLast | kWatched,
                      .destination = victim_->qp()->qp_num,
                      .source = RawTcpPeer::kQpn,
                      .psn = psn},
                     std::as_bytes(std::span(text)));
  }

  // A READ of the victim, from memory that only its peer knows.
  int PostRead() {
    return victim_->PostOneSided(IBV_WR_RDMA_READ, 1, victim_->ReceiveSge(0, 8), 0x1000, 7);
  }
  // Waits for requests of the victim, of `lines` lines.
  void HearRequests(RawSocket& lanes, uint64_t lines) {
    uint64_t heard = 0;
    while (heard < lines && !HasFailure()) heard += HearChunk(lanes).chunk.request_lines;
    ASSERT_EQ(heard, lines);
  }
  // Tells the victim that its requests up to `position` are consumed, and waits until it knows: it
  // refuses a request that comes with the news.
  void ConsumeRequests(RawSocket& lanes, uint64_t position) {
    ASSERT_TRUE(lanes.Send(ChunkOf({.consumed = position}, MessageOf({.opcode = Opcode::kSend,
                                                                      .flags = kFirst | kLast,
                                                                      .destination = 0xabcdef,
                                                                      .source = RawTcpPeer::kQpn},
                                                                     {}))));
    EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kUnreachable);
  }

  std::unique_ptr<SoftDevice> device_ = SoftDevice::Create(Tcp()).value();
  std::unique_ptr<SoftDevice> other_ = SoftDevice::Create(Tcp()).value();
  std::unique_ptr<QpEnd> victim_;
  std::unique_ptr<QpEnd> victim_bystander_;
  std::unique_ptr<QpEnd> bystander_;
};

TEST_F(TcpHostileTest, MessageOfAForeignPeerArrives) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_EQ(victim_->PostReceive(5, victim_->ReceiveSge(0, 64)), 0);
  ASSERT_TRUE(lanes.Send(ChunkOf({}, SendOf("hello"))));
  const ibv_wc wc = AwaitInTime(victim_->cq());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 5u);
  EXPECT_EQ(victim_->ReceivedText(0, 5), "hello");
}

TEST_F(TcpHostileTest, MessageThatArrivesByteByByteShowsWithItsLastOne) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  const std::string text(100, 'x');  // two lines
  ASSERT_EQ(victim_->PostReceive(5, victim_->ReceiveSge(0, 128)), 0);
  ASSERT_EQ(victim_->PostReceive(6, victim_->ReceiveSge(128, 128)), 0);
  std::vector<std::byte> bytes = ChunkOf({}, SendOf(text));
  const std::vector<std::byte> second = ChunkOf({}, SendOf(text, 1));
  bytes.insert(bytes.end(), second.begin(), second.end());
  const size_t last_of_first = second.size() - 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_TRUE(lanes.Send(std::span(bytes).subspan(i, 1)));
    ibv_wc wc{};
    if (i == last_of_first || i == bytes.size() - 1) {
      wc = AwaitInTime(victim_->cq());
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(victim_->ReceivedText(wc.wr_id == 5 ? 0 : 128, 100), text);
    } else {
      // Twice, so that the poll meets the byte wherever it is by then.
      for (int poll = 0; poll < 2; ++poll) ASSERT_EQ(ibv_poll_cq(victim_->cq(), 1, &wc), 0) << i;
    }
  }
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, ConnectionThatIsCutMidwayFailsItsQpAndDeliversNothing) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_EQ(victim_->PostReceive(5, victim_->ReceiveSge(0, 128)), 0);
  ASSERT_EQ(victim_->PostSend(8, victim_->SendSge(0, 8)), 0);
  const std::vector<std::byte> bytes = ChunkOf({}, SendOf(std::string(100, 'x')));
  ASSERT_TRUE(lanes.Send(std::span(bytes).first(bytes.size() - 1)));
  lanes.Close();
  const ibv_wc sent = AwaitInTime(victim_->cq());
  EXPECT_EQ(sent.wr_id, 8u);
  EXPECT_EQ(sent.status, IBV_WC_RETRY_EXC_ERR);
  const ibv_wc received = AwaitInTime(victim_->cq());
  EXPECT_EQ(received.wr_id, 5u);
  EXPECT_EQ(received.status, IBV_WC_WR_FLUSH_ERR);
  ExpectOthersUnharmed();
}

// Bytes that no sound peer sends, and that the device closes the connection for.
struct Nonsense {
  const char* name;
  std::function<std::vector<std::byte>(const std::vector<RingLine>& message)> bytes;
};

class TcpNonsenseTest : public TcpHostileTest, public testing::WithParamInterface<Nonsense> {};

std::vector<std::byte> WithControl(std::vector<RingLine> lines, uint64_t control) {
  lines[0].control = control;
  return ChunkOf({}, lines);
}

INSTANTIATE_TEST_SUITE_P(
    Chunks, TcpNonsenseTest,
    testing::Values(
        Nonsense{"Garbage",
                 [](const auto&) { return std::vector<std::byte>(200, std::byte{0x5a}); }},
        Nonsense{"UnknownFlag", [](const auto& lines) { return ChunkOf({.flags = 64}, lines); }},
        Nonsense{"PadAtTheStart",
                 [](const auto&) { return ChunkOf({.flags = TcpChunk::kRequestPad}, {}); }},
        Nonsense{"ConsumedWhatWasNotSent",
                 [](const auto& lines) { return ChunkOf({.consumed = 1}, lines); }},
        Nonsense{"ConsumedFarBeyond",
                 [](const auto& lines) { return ChunkOf({.consumed = ~uint64_t{0}}, lines); }},
        Nonsense{"TookAnswersThatWereNotSent",
                 [](const auto& lines) { return ChunkOf({.answers_consumed = 1}, lines); }},
        Nonsense{"TooManyLines",
                 [](const auto&) {
                   const auto header = Encode(TcpChunk{.request_lines = 100'000});
                   return std::vector<std::byte>(header.begin(), header.end());
                 }},
        Nonsense{"NoMessage",
                 [](const auto& lines) {
                   return WithControl(std::vector<RingLine>(1), 0 * lines.size());
                 }},
        Nonsense{"PadAmongLines",
                 [](const auto&) {
                   return WithControl(std::vector<RingLine>(1),
                                      MessageHeader{.opcode = Opcode::kPad}.Control());
                 }},
        Nonsense{"UnknownOpcode",
                 [](const auto&) { return WithControl(std::vector<RingLine>(1), 0x99); }},
        Nonsense{"AnswerAmongRequests",
                 [](const auto&) {
                   return WithControl(std::vector<RingLine>(1),
                                      MessageHeader{.opcode = Opcode::kData}.Control());
                 }},
        Nonsense{"TooLongAMessage",
                 [](const auto&) {
                   return WithControl(
                       std::vector<RingLine>(1),
                       MessageHeader{.opcode = Opcode::kSend, .length = 40'000}.Control());
                 }},
        Nonsense{"RingOverrun",
                 [](const auto&) {
                   // Twice the ring, so that what nobody has consumed is overwritten.
                   std::vector<std::byte> bytes;
                   for (int i = 0; i < 4; ++i) {
                     std::vector<RingLine> lines(2048);
                     for (RingLine& line : lines) {
                       line.control = MessageHeader{.opcode = Opcode::kRead}.Control();
                     }
                     const auto chunk = ChunkOf({}, lines);
                     bytes.insert(bytes.end(), chunk.begin(), chunk.end());
                   }
                   return bytes;
                 }}),
    [](const auto& info) { return info.param.name; });

TEST_P(TcpNonsenseTest, BreaksItsConnectionAlone) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_EQ(victim_->PostReceive(5, victim_->ReceiveSge(0, 64)), 0);
  lanes.Send(GetParam().bytes(SendOf("hello")));
  // The device does not read on.
  ibv_wc wc{};
  EXPECT_TRUE(lanes.IsClosed());
  ASSERT_EQ(victim_->PostSend(8, victim_->SendSge(0, 8)), 0);
  do {
    wc = AwaitInTime(victim_->cq());
  } while (wc.wr_id != 8 && wc.status != IBV_WC_GENERAL_ERR);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, AnswersThatNobodyAskedForBreakTheConnection) {
  RawTcpPeer peer(*device_);
  // No QP of the victim sends over these lanes.
  RawSocket lanes = peer.Lanes(peer.CqOf(victim_->qp()->qp_num));
  const auto header = Encode(TcpChunk{.answer_lines = 1});
  ASSERT_TRUE(lanes.Send(header));
  EXPECT_TRUE(lanes.IsClosed());
  ExpectOthersUnharmed();
}

// Otherwise it could have the device remember ever more of them.
TEST_F(TcpHostileTest, TargetThatPassesOverAReadThatWasGivenUpLosesItsConnection) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  ASSERT_EQ(PostRead(), 0);
  ASSERT_EQ(PostRead(), 0);
  HearRequests(lanes, 2);
  victim_->ToState(IBV_QPS_ERR);
  // The answer to the first one may be on its way.
  ConsumeRequests(lanes, 1);
  ASSERT_TRUE(lanes.Send(Encode(TcpChunk{.consumed = 2})));
  EXPECT_TRUE(lanes.IsClosed());
  ExpectOthersUnharmed();
}

// Each READ is consumed while it is wanted, and given up later.
TEST_F(TcpHostileTest, TargetThatNeverAnswersReadsLosesItsConnection) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  for (uint64_t read = 1; read <= 2; ++read) {
    ASSERT_EQ(PostRead(), 0);
    HearRequests(lanes, 1);
    ConsumeRequests(lanes, read);
    ASSERT_FALSE(HasFailure());
    victim_->ToState(IBV_QPS_ERR);
    victim_->ToState(IBV_QPS_RESET);
    peer.Reconnect(*victim_);
  }
  ASSERT_EQ(PostRead(), 0);
  HearRequests(lanes, 1);
  ASSERT_TRUE(lanes.Send(Encode(TcpChunk{.consumed = 3})));
  EXPECT_TRUE(lanes.IsClosed());
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, ForgedNumberKeyAndLengthAreRefused) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  MessageHeader header{.opcode = Opcode::kSend,
                       .flags = kFirst | kLast,
                       .destination = victim_bystander_->qp()->qp_num,
                       .source = RawTcpPeer::kQpn};
  // A QP that is connected to somebody else.
  ASSERT_TRUE(lanes.Send(ChunkOf({}, MessageOf(header, {}))));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kUnreachable);
  header.destination = 0xabcdef;
  ASSERT_TRUE(lanes.Send(ChunkOf({}, MessageOf(header, {}))));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kUnreachable);
  ExpectOthersUnharmed();
  // More bytes than the registration has.
  header.opcode = Opcode::kWrite;
  header.destination = victim_->qp()->qp_num;
  std::array<std::byte, sizeof(TargetRange) + 8> payload{};
  const TargetRange range{.address = reinterpret_cast<uint64_t>(victim_->receive_buffer()),
                          .length = victim_->options().bytes,
                          .rkey = victim_->mr()->rkey};
  std::memcpy(payload.data(), &range, sizeof(range));
  ASSERT_TRUE(lanes.Send(ChunkOf({}, MessageOf(header, payload))));
  EXPECT_EQ(ReasonOfRefusal(lanes), NakReason::kAccess);
  ExpectOthersUnharmed();
}

// Refusals that wrap at the end of the answer ring take two chunks. The first one must not report
// requests as consumed whose refusal comes in the second.
TEST_F(TcpHostileTest, RefusalIsSentNoLaterThanTheProgressThatItTakesBack) {
  RawTcpPeer peer(*device_);
  RawSocket lanes = peer.ConnectLanes(*victim_);
  const std::vector<RingLine> one = MessageOf({.opcode = Opcode::kSend,
                                               .flags = kFirst | kLast,
                                               .destination = 0xabcdef,
                                               .source = RawTcpPeer::kQpn},
                                              {});
  uint64_t asked = 0;
  uint64_t refusals = 0;
  uint64_t consumed = 0;
  // The answer ring has 2048 lines, and a refusal takes one.
  for (uint32_t count : {1000u, 1000u, 100u}) {
    std::vector<RingLine> lines(count);
    for (RingLine& line : lines) {
      line.control = one[0].control.load();
      line.route = one[0].route;
    }
    ASSERT_TRUE(lanes.Send(ChunkOf({.answers_consumed = refusals}, lines)));
    asked += count;
    while (consumed < asked) {
      const TcpChunk chunk = HearChunk(lanes).chunk;
      ASSERT_FALSE(HasFailure());
      refusals += chunk.answer_lines;
      consumed = chunk.consumed;
      ASSERT_LE(consumed, refusals);
    }
  }
}

TEST_F(TcpHostileTest, GreetingThatMakesNoSenseIsNotAnswered) {
  for (size_t broken : {0u, 6u, 8u}) {
    TcpGreeting greeting{.sender = {.gid = *device_->QueryGid(1, 0), .lid = 9}};
    auto bytes = Encode(greeting);
    bytes[broken] = std::byte{0x77};
    RawSocket stranger(device_->tcp_port());
    ASSERT_TRUE(stranger.Send(bytes));
    EXPECT_TRUE(stranger.IsClosed()) << broken;
  }
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, OtherVersionIsToldSo) {
  auto bytes = Encode(TcpGreeting{.sender = {.gid = *device_->QueryGid(1, 0), .lid = 9}});
  bytes[4] = std::byte{9};
  RawSocket stranger(device_->tcp_port());
  ASSERT_TRUE(stranger.Send(bytes));
  std::array<std::byte, TcpGreeting::kBytes> answer;
  ASSERT_TRUE(stranger.Receive(answer));
  const auto parsed = ParseGreeting(answer);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->verdict, TcpGreeting::Verdict::kVersion);
  EXPECT_TRUE(stranger.IsClosed());
}

TcpGreeting::Verdict VerdictOn(const TcpGreeting& greeting, uint16_t port) {
  RawSocket stranger(port);
  EXPECT_TRUE(stranger.Send(Encode(greeting)));
  std::array<std::byte, TcpGreeting::kBytes> answer{};
  EXPECT_TRUE(stranger.Receive(answer));
  const auto parsed = ParseGreeting(answer);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->verdict : TcpGreeting::Verdict::kAccepted;
}

TEST_F(TcpHostileTest, LanesNeedTheSecretOfTheirSessionAndACqThatIsThere) {
  RawTcpPeer peer(*device_);
  TcpGreeting greeting = peer.Greeting(TcpGreeting::Kind::kLanes);
  greeting.receiver_cq = peer.CqOf(victim_->qp()->qp_num);
  greeting.session ^= 1;
  EXPECT_EQ(VerdictOn(greeting, peer.port()), TcpGreeting::Verdict::kStranger);
  greeting.session ^= 1;
  greeting.sender.lid = 2;
  EXPECT_EQ(VerdictOn(greeting, peer.port()), TcpGreeting::Verdict::kStranger);
  greeting.sender.lid = 1;
  greeting.receiver_cq += 1 << 20;
  EXPECT_EQ(VerdictOn(greeting, peer.port()), TcpGreeting::Verdict::kNoCq);
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, StrangerCannotTakeTheNameOfAPeer) {
  RawTcpPeer peer(*device_);
  EXPECT_EQ(VerdictOn(peer.Greeting(TcpGreeting::Kind::kControl), peer.port()),
            TcpGreeting::Verdict::kDuplicate);
  // The session of the first one stands.
  peer.CqOf(victim_->qp()->qp_num);
  ExpectOthersUnharmed();
}

// Nobody listens at the address that it gave.
TEST_F(TcpHostileTest, PeerThatGreetsAndIsGoneLeavesNoSessionThatOthersWaitFor) {
  constexpr uint16_t kLid = 1;
  for (int i = 0; i < 20; ++i) {
    RawSocket stranger(device_->tcp_port());
    ASSERT_TRUE(stranger.Send(
        Encode(TcpGreeting{.sender = {.gid = *device_->QueryGid(1, 0), .lid = kLid}})));
    stranger.Reset();
  }
  ASSERT_TRUE(victim_->ToInit(victim_->qp()).ok());
  ASSERT_TRUE(victim_->ToRtr(victim_->qp(), *device_->QueryGid(1, 0), RawTcpPeer::kQpn, kLid).ok());
  ASSERT_TRUE(victim_->ToRts(victim_->qp()).ok());
  ASSERT_EQ(victim_->PostSend(8, victim_->SendSge(0, 8)), 0);
  EXPECT_EQ(AwaitInTime(victim_->cq()).status, IBV_WC_RETRY_EXC_ERR);
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, ControlMessageThatMakesNoSenseEndsItsSession) {
  const TcpControl never_asked{.kind = TcpControl::Kind::kResolved, .found = true, .request = 99};
  const TcpControl dial{.kind = TcpControl::Kind::kDial, .sender_cq = 1, .receiver_cq = 2};
  for (const TcpControl& message : {never_asked, dial}) {
    RawTcpPeer peer(*device_);
    ASSERT_TRUE(peer.Say(message));
    EXPECT_TRUE(peer.control().IsClosed());
  }
  ExpectOthersUnharmed();
}

TEST_F(TcpHostileTest, PeerThatNeverStopsAskingHoldsUpNoOther) {
  RawTcpPeer peer(*device_);
  const auto ask =
      Encode(TcpControl{.kind = TcpControl::Kind::kResolve, .qpn = victim_->qp()->qp_num});
  std::vector<std::byte> many;
  for (int i = 0; i < 1000; ++i) many.insert(many.end(), ask.begin(), ask.end());
  std::atomic<bool> stop = false;
  std::thread asks([&] {
    while (!stop.load() && peer.control().Send(many)) {
    }
    // Ends the other thread's wait for an answer.
    peer.control().Shutdown();
  });
  std::thread listens([&] {
    std::vector<std::byte> answers(many.size());
    while (peer.control().Receive(answers)) {
    }
  });
  for (uint16_t lid = 2; lid < 10; ++lid) {
    RawTcpPeer another(*device_, lid);
    another.CqOf(victim_->qp()->qp_num);
  }
  stop.store(true);
  asks.join();
  listens.join();
  ExpectOthersUnharmed();
}

TEST(TcpPatienceTest, SocketThatDoesNotGreetIsClosedInTime) {
  ManualClock clock;
  SoftDeviceOptions options = Tcp();
  options.engine_thread = false;
  options.clock = &clock;
  const auto device = SoftDevice::Create(options).value();
  RawSocket silent(device->tcp_port());
  device->Step();
  clock.Advance(std::chrono::seconds(4));
  device->Step();
  EXPECT_TRUE(silent.Send(std::array<std::byte, 1>{}));
  device->Step();
  clock.Advance(std::chrono::seconds(2));
  device->Step();
  EXPECT_TRUE(silent.IsClosed());
}

// A firewall lets connections pass in one direction only. No time passes, so that the peer may be
// slow to dial.
TEST(TcpPatienceTest, PeerThatCannotBeDialedDialsItself) {
  ManualClock clock;
  SoftDeviceOptions options = Tcp();
  options.clock = &clock;
  const auto device = SoftDevice::Create(options).value();
  QpEnd victim(*device, {});
  TcpWireListener wall = ListenTcp("127.0.0.1", 0).value();
  ASSERT_TRUE(victim.ToInit(victim.qp()).ok());
  ASSERT_TRUE(victim.ToRtr(victim.qp(), wall.address.gid, RawTcpPeer::kQpn, wall.address.lid).ok());
  pollfd dialed{.fd = wall.socket.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&dialed, 1, 15'000), 1);
  ASSERT_TRUE(AcceptSocket(wall.socket.get(), "wall").ok());  // and closed at once
  RawTcpPeer peer(*device, wall.address.lid);
  const TcpControl resolve = peer.Hear();
  EXPECT_EQ(resolve.kind, TcpControl::Kind::kResolve);
  EXPECT_EQ(resolve.qpn, RawTcpPeer::kQpn);
}

// No time passes, so that it is only their number that closes them.
TEST(TcpPatienceTest, ManySilentConnectionsKeepNobodyOut) {
  ManualClock clock;
  SoftDeviceOptions options = Tcp();
  options.clock = &clock;
  const auto device = SoftDevice::Create(options).value();
  QpEnd victim(*device, {});
  std::vector<std::unique_ptr<RawSocket>> silent;
  for (size_t i = 0; i < TcpWire::kMaxSilent + 50; ++i) {
    silent.push_back(std::make_unique<RawSocket>(device->tcp_port()));
    // A few bytes of a greeting, and no more.
    const auto bytes = Encode(TcpGreeting{});
    silent.back()->Send(std::span(bytes).first(i % 3));
  }
  // The oldest made way.
  EXPECT_TRUE(silent.front()->IsClosed());
  RawTcpPeer peer(*device);
  peer.CqOf(victim.qp()->qp_num);
}

}  // namespace tcp_hostile_test
}  // namespace verbena::internal::soft
