// Each bad value of a handshake's message is refused by its name, and no sequence of bytes is taken
// for what it is not. Versions and features are the highest that both sides have.

#include "verbena/transport/connect/handshake.h"

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/connect/handshake_sides.h"
#include "verbena/handshake.pb.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {
namespace handshake_codec_test {

using absl::StatusCode;
using ParametersOr = absl::StatusOr<LinkParameters>;

constexpr uint32_t kMagic = 0x4e425256;

wire::Hello GoodHello() {
  wire::Hello hello;
  EXPECT_TRUE(hello.ParseFromString(EncodeHello(Side("client", 5), {})));
  return hello;
}

wire::HelloReply GoodReply() {
  LinkParameters offer;
  offer.version = kMaxProtocolVersion;
  wire::HelloReply reply;
  EXPECT_TRUE(reply.ParseFromString(EncodeAcceptance(offer, Side("server", 6))));
  return reply;
}

bool Says(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

// A fault in one side's description of itself, which both directions must refuse alike.
struct BadEnd {
  std::string value;  // what the message must name
  std::function<void(wire::LinkEnd&)> spoil;
};

std::vector<BadEnd> BadEnds() {
  using End = wire::LinkEnd;
  return {
      {"kind of link 0", [](End& end) { end.clear_kind(); }},
      {"kind of link 99", [](End& end) { end.set_kind(static_cast<wire::LinkKind>(99)); }},
      {"gid of 0 bytes", [](End& end) { end.clear_gid(); }},
      {"gid of 15 bytes", [](End& end) { end.set_gid(std::string(15, 'g')); }},
      {"gid of 17 bytes", [](End& end) { end.set_gid(std::string(17, 'g')); }},
      {"lid 65536", [](End& end) { end.set_lid(65536); }},
      {"neither a gid nor a lid",
       [](End& end) {
         end.set_gid(std::string(16, '\0'));
         end.set_lid(0);
       }},
      {"lid 0 is no TCP port",
       [](End& end) {
         end.set_kind(wire::LINK_KIND_TCP);
         end.set_lid(0);
       }},
      {"qp_number 0", [](End& end) { end.set_qp_number(0); }},
      {"qp_number 16777216", [](End& end) { end.set_qp_number(1 << 24); }},
      {"packet_sequence_number 16777216",
       [](End& end) { end.set_packet_sequence_number(1 << 24); }},
      {"mtu_bytes 0", [](End& end) { end.set_mtu_bytes(0); }},
      {"mtu_bytes 1500", [](End& end) { end.set_mtu_bytes(1500); }},
      {"mtu_bytes 8192", [](End& end) { end.set_mtu_bytes(8192); }},
      {"max_reads 256", [](End& end) { end.set_max_reads(256); }},
      {"name of 257 bytes", [](End& end) { end.set_name(std::string(257, 'n')); }},
      {"initial_credits 0", [](End& end) { end.set_initial_credits(0); }},
      {"initial_credits 32769", [](End& end) { end.set_initial_credits(32769); }},
      {"eager_bytes 0", [](End& end) { end.set_eager_bytes(0); }},
      {"eager_bytes 1023", [](End& end) { end.set_eager_bytes(1023); }},
      {"eager_bytes 1048577", [](End& end) { end.set_eager_bytes((1 << 20) + 1); }},
      {"executor_count 0", [](End& end) { end.set_executor_count(0); }},
      {"executor_count 1025", [](End& end) { end.set_executor_count(1025); }},
      {"executor_index 4 is out of range", [](End& end) { end.set_executor_index(4); }},
      {"executor_index 4294967295", [](End& end) { end.set_executor_index(0xffffffffu); }},
  };
}

constexpr HandshakeOptions kFourExecutors{.executor_count = 4};

TEST(HandshakeCodecTest, EveryBadValueOfAClientIsRefusedByItsName) {
  for (const BadEnd& bad : BadEnds()) {
    wire::Hello hello = GoodHello();
    bad.spoil(*hello.mutable_end());
    const absl::Status status = ParseHello(hello.SerializeAsString(), kFourExecutors).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.value;
    EXPECT_TRUE(Says(status, bad.value)) << bad.value << ", but: " << status;
  }
}

TEST(HandshakeCodecTest, EveryBadValueOfAServerIsRefusedByItsName) {
  for (const BadEnd& bad : BadEnds()) {
    wire::HelloReply reply = GoodReply();
    bad.spoil(*reply.mutable_accepted()->mutable_end());
    const absl::Status status = ParseReply(reply.SerializeAsString(), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.value;
    EXPECT_TRUE(Says(status, bad.value)) << bad.value << ", but: " << status;
  }
}

TEST(HandshakeCodecTest, ValuesAtTheirLimitsPass) {
  LinkParameters low = Side("", 1);
  low.gid = {};
  low.lid = 1;
  low.packet_sequence_number = 0;
  low.mtu_bytes = 256;
  low.max_reads = 0;
  low.initial_credits = 1;
  low.eager_bytes = kMinEagerBytes;
  low.executor_count = 1;
  LinkParameters high = Side(std::string(kMaxPeerNameBytes, 'n'), 0xffffff);
  high.kind = LinkKind::kRoceV1;
  high.gid.fill(0xff);
  high.lid = 0xffff;
  high.packet_sequence_number = 0xffffff;
  high.mtu_bytes = 4096;
  high.max_reads = 255;
  high.initial_credits = kMaxIssuedCredits;
  high.eager_bytes = kMaxEagerBytes;
  high.executor_count = kMaxExecutors;
  high.executor_index = kMaxExecutors - 1;
  for (const LinkParameters& side : {low, high}) {
    const ParametersOr offer =
        ParseHello(EncodeHello(side, {}), {.executor_count = side.executor_index + 1});
    ASSERT_TRUE(offer.ok()) << offer.status();
    ExpectSame(*offer, side);
    const ParametersOr answer = ParseReply(EncodeAcceptance(*offer, side), {});
    ASSERT_TRUE(answer.ok()) << answer.status();
    ExpectSame(*answer, side);
  }
}

TEST(HandshakeCodecTest, WrongMagicIsRefusedWhateverElseIsThere) {
  wire::Hello hello = GoodHello();
  hello.set_magic(0x12345678);
  const absl::Status status = ParseHello(hello.SerializeAsString(), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(status, "wrong magic 0x12345678")) << status;

  wire::HelloReply reply = GoodReply();
  reply.clear_magic();
  EXPECT_TRUE(Says(ParseReply(reply.SerializeAsString(), {}).status(), "wrong magic"));
  EXPECT_TRUE(ParseReady(EncodeReady()).ok());
  EXPECT_TRUE(Says(ParseReady(""), "wrong magic"));
}

TEST(HandshakeCodecTest, LostEndOfAMessageIsNotTakenForDefaults) {
  wire::Hello hello = GoodHello();
  hello.clear_end();
  EXPECT_EQ(ParseHello(hello.SerializeAsString(), {}).status().code(),
            StatusCode::kInvalidArgument);
  wire::HelloReply reply = GoodReply();
  reply.mutable_accepted()->clear_end();
  EXPECT_EQ(ParseReply(reply.SerializeAsString(), {}).status().code(),
            StatusCode::kInvalidArgument);
  reply.clear_outcome();
  EXPECT_TRUE(Says(ParseReply(reply.SerializeAsString(), {}).status(), "neither"));
}

struct Versions {
  HandshakeOptions client;
  HandshakeOptions server;
  uint32_t common;  // 0: none
};

TEST(HandshakeCodecTest, HighestVersionThatBothSpeakIsUsed) {
  const auto range = [](uint32_t low, uint32_t high) {
    return HandshakeOptions{.min_version = low, .max_version = high};
  };
  const std::vector<Versions> cases = {
      {range(1, 1), range(1, 1), 1}, {range(1, 1), range(1, 3), 1}, {range(1, 3), range(1, 1), 1},
      {range(2, 5), range(1, 3), 3}, {range(1, 3), range(2, 5), 3}, {range(3, 3), range(1, 3), 3},
      {range(2, 2), range(1, 1), 0}, {range(1, 1), range(2, 9), 0},
  };
  for (const Versions& versions : cases) {
    const ParametersOr offer =
        ParseHello(EncodeHello(Side("client", 1), versions.client), versions.server);
    if (versions.common == 0) {
      EXPECT_EQ(offer.status().code(), StatusCode::kFailedPrecondition);
      EXPECT_TRUE(Says(offer.status(), "no common protocol version")) << offer.status();
      continue;
    }
    ASSERT_TRUE(offer.ok()) << offer.status();
    EXPECT_EQ(offer->version, versions.common);
    const ParametersOr answer =
        ParseReply(EncodeAcceptance(*offer, Side("server", 2)), versions.client);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->version, versions.common);
  }
}

TEST(HandshakeCodecTest, FutureVersionIsRefusedInWordsEvenIfTheRestMakesNoSense) {
  wire::Hello hello;
  hello.set_magic(kMagic);
  hello.set_min_version(7);
  hello.set_max_version(9);
  const absl::Status status = ParseHello(hello.SerializeAsString(), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "the client speaks 7 to 9, the server 3;")) << status;
}

// The version before this one, of which there were several wires.
TEST(HandshakeCodecTest, VersionTwoIsRefusedInWords) {
  wire::Hello hello = GoodHello();
  hello.set_min_version(2);
  hello.set_max_version(2);
  const absl::Status status = ParseHello(hello.SerializeAsString(), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "the client speaks 2, the server 3;")) << status;
}

TEST(HandshakeCodecTest, MethodsComeOutInTheirOrderAndNoMoreThanAllowed) {
  LinkParameters server = Side("server", 2);
  for (uint64_t id = kMaxMethods; id > 0; --id) {
    server.methods.push_back({id << 50, static_cast<uint8_t>(id & OfferedMethod::kShapeBits)});
  }
  const LinkParameters offer = *ParseHello(EncodeHello(Side("client", 1), {}), {});
  const std::string most = EncodeAcceptance(offer, server);
  EXPECT_LE(most.size(), 65536u);
  EXPECT_EQ(ParseReply(most, {}).value().methods, server.methods);
  wire::HelloReply reply;
  ASSERT_TRUE(reply.ParseFromString(most));
  reply.mutable_accepted()->add_methods(1);
  const absl::Status status = ParseReply(reply.SerializeAsString(), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(status, "4097 methods, over 4096")) << status;
}

// An Acceptance of three methods, with these shapes.
wire::HelloReply ReplyWithShapes(const std::string& shapes) {
  wire::HelloReply reply = GoodReply();
  reply.mutable_accepted()->clear_methods();
  for (uint64_t id : {7, 8, 9}) reply.mutable_accepted()->add_methods(id);
  reply.mutable_accepted()->set_method_shapes(shapes);
  return reply;
}

TEST(HandshakeCodecTest, AServerOfAnEarlierVersionTellsNoShapes) {
  const ParametersOr answer = ParseReply(ReplyWithShapes("").SerializeAsString(), {});
  const std::vector<OfferedMethod> untold = {{.id = 7}, {.id = 8}, {.id = 9}};
  EXPECT_EQ(answer.value().methods, untold);
  LinkParameters server = Side("server", 2);
  server.methods = untold;
  const LinkParameters offer = *ParseHello(EncodeHello(Side("client", 1), {}), {});
  EXPECT_EQ(ParseReply(EncodeAcceptance(offer, server), {}).value().methods, untold);
}

TEST(HandshakeCodecTest, BitsOfAShapeThatALaterVersionMayAddAreIgnored) {
  const std::string shapes = {'\x0f', '\x10', '\xff'};
  const ParametersOr answer = ParseReply(ReplyWithShapes(shapes).SerializeAsString(), {});
  const std::vector<OfferedMethod> known = {{7, 0x0f}, {8, 0}, {9, 0x0f}};
  EXPECT_EQ(answer.value().methods, known);
}

TEST(HandshakeCodecTest, ShapesOfMoreOrFewerMethodsAreRefused) {
  for (const size_t count : {1, 2, 4, 4096}) {
    const wire::HelloReply reply = ReplyWithShapes(std::string(count, '\0'));
    const absl::Status status = ParseReply(reply.SerializeAsString(), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string says = "method_shapes of " + std::to_string(count) + " bytes for 3 methods";
    EXPECT_TRUE(Says(status, says.c_str())) << status;
  }
}

TEST(HandshakeCodecTest, TheIncarnationOfTheServerArrives) {
  LinkParameters server = Side("server", 2);
  const LinkParameters offer = *ParseHello(EncodeHello(Side("client", 1), {}), {});
  EXPECT_EQ(ParseReply(EncodeAcceptance(offer, server), {}).value().incarnation, 0u);
  server.incarnation = 0x8877665544332211;
  EXPECT_EQ(ParseReply(EncodeAcceptance(offer, server), {}).value().incarnation,
            server.incarnation);
}

TEST(HandshakeCodecTest, VersionsThatAreNoRangeAreRefused) {
  for (auto [low, high] : {std::pair(0u, 0u), {0u, 1u}, {2u, 1u}}) {
    wire::Hello hello = GoodHello();
    hello.set_min_version(low);
    hello.set_max_version(high);
    EXPECT_EQ(ParseHello(hello.SerializeAsString(), {}).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(HandshakeCodecTest, ServerThatChoosesWhatWasNotOfferedIsRefused) {
  wire::HelloReply reply = GoodReply();
  reply.mutable_accepted()->set_version(4);
  EXPECT_TRUE(Says(ParseReply(reply.SerializeAsString(), {}).status(), "chose version 4"));
  reply.mutable_accepted()->set_version(0);
  EXPECT_TRUE(Says(ParseReply(reply.SerializeAsString(), {}).status(), "chose version 0"));
  reply = GoodReply();
  reply.mutable_accepted()->set_features(0b110);
  const absl::Status status = ParseReply(reply.SerializeAsString(), {.features = 0b011}).status();
  EXPECT_TRUE(Says(status, "chose features 0x6, though only 0x3")) << status;
}

TEST(HandshakeCodecTest, FeaturesAreThoseOfBothAndUnknownBitsAreIgnored) {
  const HandshakeOptions newer{.features = ~uint64_t{0}};
  const HandshakeOptions older{.features = 0b0110};
  const ParametersOr at_older = ParseHello(EncodeHello(Side("newer", 1), newer), older);
  ASSERT_TRUE(at_older.ok()) << at_older.status();
  EXPECT_EQ(at_older->features, 0b0110u);
  const ParametersOr at_newer = ParseHello(EncodeHello(Side("older", 1), older), newer);
  EXPECT_EQ(at_newer.value().features, 0b0110u);
  EXPECT_EQ(ParseReply(EncodeAcceptance(*at_older, Side("older", 2)), newer).value().features,
            0b0110u);
}

LinkParameters OfferOfRdmaCm() {
  const ParametersOr offer = ParseHello(
      EncodeHello(Side("client", 5), {.features = kFeatureRdmaCm}), {.executor_count = 4});
  EXPECT_TRUE(offer.ok()) << offer.status();
  return offer.value_or(LinkParameters{});
}

TEST(HandshakeCodecTest, AServerWithRdmaCmSaysWhereItListens) {
  LinkParameters server = Side("server", 6);
  server.rdma_cm = {.address = {0xfd, 1}, .port = 4000, .token = 0xfeedfacecafebeef};
  const ParametersOr answer = ParseReply(EncodeAcceptance(OfferOfRdmaCm(), server), {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->features, kFeatureRdmaCm);
  EXPECT_EQ(answer->rdma_cm.address, server.rdma_cm.address);
  EXPECT_EQ(answer->rdma_cm.port, 4000);
  EXPECT_EQ(answer->rdma_cm.token, 0xfeedfacecafebeef);
}

TEST(HandshakeCodecTest, RdmaCmIsNotGrantedWhereThereIsNoneOrNobodyAsks) {
  LinkParameters server = Side("server", 6);
  EXPECT_EQ(ParseReply(EncodeAcceptance(OfferOfRdmaCm(), server), {}).value().features, 0u);
  server.rdma_cm = {.address = {0xfd, 1}, .port = 4000, .token = 1};
  LinkParameters offer = OfferOfRdmaCm();
  offer.features = 0;
  const ParametersOr answer = ParseReply(EncodeAcceptance(offer, server), {});
  EXPECT_EQ(answer.value().features, 0u);
  EXPECT_EQ(answer->rdma_cm.port, 0);
}

TEST(HandshakeCodecTest, ARdmaCmServiceThatIsNoneIsRefused) {
  LinkParameters server = Side("server", 6);
  server.rdma_cm = {.address = {0xfd, 1}, .port = 4000, .token = 1};
  wire::HelloReply good;
  ASSERT_TRUE(good.ParseFromString(EncodeAcceptance(OfferOfRdmaCm(), server)));
  ASSERT_TRUE(ParseReply(good.SerializeAsString(), {}).ok());
  const std::vector<std::pair<std::string, std::function<void(wire::RdmaCmService&)>>> faults = {
      {"rdma_cm address of 4 bytes", [](auto& service) { service.set_address("abcd"); }},
      {"rdma_cm address of zeros",
       [](auto& service) { service.set_address(std::string(16, '\0')); }},
      {"rdma_cm port 0", [](auto& service) { service.clear_port(); }},
      {"rdma_cm port 65536", [](auto& service) { service.set_port(65536); }},
      {"rdma_cm address of 0 bytes", [](auto& service) { service.Clear(); }},
  };
  for (const auto& [says, spoil] : faults) {
    wire::HelloReply bad = good;
    spoil(*bad.mutable_accepted()->mutable_rdma_cm());
    const absl::Status status = ParseReply(bad.SerializeAsString(), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Says(status, says)) << status;
  }
}

TEST(HandshakeCodecTest, IwarpNeedsRdmaCm) {
  EXPECT_TRUE(CheckConnectable(LinkKind::kIwarp, kFeatureRdmaCm).ok());
  EXPECT_TRUE(CheckConnectable(LinkKind::kRoce, 0).ok());
  EXPECT_EQ(CheckConnectable(LinkKind::kIwarp, 0).code(), StatusCode::kFailedPrecondition);
}

// A newer peer's message: fields 100 (a varint) and 101 (bytes), which nobody knows yet.
std::string WithUnknownFields(std::string bytes) {
  return std::move(bytes) + std::string("\xa0\x06\x2a\xaa\x06\x03new", 9);
}

TEST(HandshakeCodecTest, UnknownFieldsOfANewerPeerAreIgnored) {
  wire::Hello hello = GoodHello();
  std::string end = WithUnknownFields(hello.end().SerializeAsString());
  ASSERT_TRUE(hello.mutable_end()->ParseFromString(end));
  const ParametersOr offer = ParseHello(WithUnknownFields(hello.SerializeAsString()), {});
  ASSERT_TRUE(offer.ok()) << offer.status();
  ExpectSame(*offer, Side("client", 5));
  EXPECT_TRUE(ParseReply(WithUnknownFields(GoodReply().SerializeAsString()), {}).ok());
  EXPECT_TRUE(ParseReady(WithUnknownFields(EncodeReady())).ok());
}

TEST(HandshakeCodecTest, RefusalCarriesEveryCodeAndItsMessage) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status why(static_cast<StatusCode>(code), "because");
    EXPECT_EQ(ParseReply(EncodeRefusal(why), {}).status(), why);
  }
}

TEST(HandshakeCodecTest, RefusalCarriesTheWaitThatItsStatusAsksForWithinBounds) {
  using std::chrono::hours;
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  absl::Status why = absl::ResourceExhaustedError("busy");
  EXPECT_EQ(ReadRetryAfter(ParseReply(EncodeRefusal(why), {}).status()), std::nullopt);
  for (const auto& [asked, told] :
       std::vector<std::pair<Duration, Duration>>{{milliseconds(250), milliseconds(250)},
                                                  {microseconds(250'001), milliseconds(251)},
                                                  {Duration::zero(), milliseconds(1)},
                                                  {hours(1), kLongestComeAgain}}) {
    SetRetryAfter(why, asked);
    const absl::Status status = ParseReply(EncodeRefusal(why), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(ReadRetryAfter(status), told) << asked.count();
  }
  wire::HelloReply hostile;
  hostile.set_magic(kMagic);
  hostile.mutable_refused()->set_code(8);
  hostile.mutable_refused()->set_retry_after_ms(0xffffffff);
  EXPECT_EQ(ReadRetryAfter(ParseReply(hostile.SerializeAsString(), {}).status()),
            kLongestComeAgain);
}

TEST(HandshakeCodecTest, RefusalWithACodeThatNobodyKnowsIsStillARefusal) {
  for (uint32_t code : {0u, 17u, 0xffffffffu}) {
    wire::HelloReply reply;
    reply.set_magic(kMagic);
    reply.mutable_refused()->set_code(code);
    const absl::Status status = ParseReply(reply.SerializeAsString(), {}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnknown) << code;
  }
}

TEST(HandshakeCodecTest, TextsOfPeersAreBoundedAndPrintable) {
  const absl::Status loud(StatusCode::kInternal, std::string(5000, 'x'));
  EXPECT_EQ(ParseReply(EncodeRefusal(loud), {}).status().message().size(), 1024u);

  wire::HelloReply reply;
  reply.set_magic(kMagic);
  reply.mutable_refused()->set_code(13);
  reply.mutable_refused()->set_message(std::string(50000, 'x') + "\n");
  EXPECT_EQ(ParseReply(reply.SerializeAsString(), {}).status().message().size(), 1024u);
  reply.mutable_refused()->set_message("a\n\x1b[31mred\xff");
  const absl::Status status = ParseReply(reply.SerializeAsString(), {}).status();
  EXPECT_EQ(std::string(status.message()), "a\\n\\x1b[31mred\\xff");

  wire::Hello hello = GoodHello();
  hello.mutable_end()->set_name("two\nlines");
  EXPECT_EQ(ParseHello(hello.SerializeAsString(), {}).value().name, "two\\nlines");
}

TEST(HandshakeCodecTest, OwnNameIsCutToWhatPeersAccept) {
  const ParametersOr offer = ParseHello(EncodeHello(Side(std::string(1000, 'n'), 1), {}), {});
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->name, std::string(kMaxPeerNameBytes, 'n'));
}

// Whatever arrives, what passes is within the limits that everything above relies on.
void ExpectSaneOrRefused(const ParametersOr& parsed) {
  if (!parsed.ok()) {
    EXPECT_FALSE(parsed.status().message().empty());
    return;
  }
  EXPECT_TRUE(parsed->qp_number > 0 && parsed->qp_number < (1u << 24));
  EXPECT_LT(parsed->packet_sequence_number, 1u << 24);
  EXPECT_TRUE(parsed->initial_credits > 0 && parsed->initial_credits <= kMaxIssuedCredits);
  EXPECT_TRUE(parsed->eager_bytes >= kMinEagerBytes && parsed->eager_bytes <= kMaxEagerBytes);
  EXPECT_TRUE(parsed->mtu_bytes >= 256 && parsed->mtu_bytes <= 4096);
  EXPECT_TRUE(parsed->executor_count > 0 && parsed->executor_count <= kMaxExecutors);
  EXPECT_STRNE(LinkKindName(parsed->kind), "unknown");
}

// The QP of a TCP wire is connected by both.
TEST(HandshakeCodecTest, ATcpEndArrivesWithItsAddressAndItsPort) {
  LinkParameters mine = Side("client", 5);
  mine.kind = LinkKind::kTcp;
  mine.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7};
  mine.lid = 65535;
  const absl::StatusOr<LinkParameters> offer = ParseHello(EncodeHello(mine, {}), kFourExecutors);
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->kind, LinkKind::kTcp);
  EXPECT_EQ(offer->gid, mine.gid);
  EXPECT_EQ(offer->lid, 65535);
  EXPECT_STREQ(LinkKindName(offer->kind), "tcp");
}

TEST(HandshakeCodecTest, EveryPrefixIsRefused) {
  const std::string hello = EncodeHello(Side("client", 5), {});
  for (size_t size = 0; size < hello.size(); ++size) {
    EXPECT_FALSE(ParseHello(hello.substr(0, size), kFourExecutors).ok()) << size;
  }
  const std::string reply = GoodReply().SerializeAsString();
  for (size_t size = 0; size < reply.size(); ++size) {
    EXPECT_FALSE(ParseReply(reply.substr(0, size), {}).ok()) << size;
  }
}

TEST(HandshakeCodecTest, EveryByteChangedToEveryValueIsRefusedOrSane) {
  const std::string hello = EncodeHello(Side("client", 5), {});
  const std::string reply = GoodReply().SerializeAsString();
  for (const std::string& good : {hello, reply}) {
    for (size_t at = 0; at < good.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string bad = good;
        bad[at] = static_cast<char>(value);
        ExpectSaneOrRefused(ParseHello(bad, kFourExecutors));
        ExpectSaneOrRefused(ParseReply(bad, {}));
        (void)ParseReady(bad);
      }
    }
  }
}

TEST(HandshakeCodecTest, RandomBytesAreRefused) {
  std::minstd_rand random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_FALSE(ParseHello(bytes, kFourExecutors).ok());
    EXPECT_FALSE(ParseReply(bytes, {}).ok());
    EXPECT_FALSE(ParseReady(bytes).ok());
  }
}

absl::Status ConnectedKinds(LinkKind mine, LinkKind theirs) {
  LinkParameters here;
  here.kind = mine;
  LinkParameters there;
  there.kind = theirs;
  return CheckSameWire(here, there);
}

TEST(HandshakeCodecTest, QueuePairsOfDifferentKindsAreNotConnected) {
  EXPECT_TRUE(ConnectedKinds(LinkKind::kSoft, LinkKind::kSoft).ok());
  const absl::Status status = ConnectedKinds(LinkKind::kSoft, LinkKind::kInfiniBand);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "soft and InfiniBand")) << status;
  const absl::Status versions = ConnectedKinds(LinkKind::kRoceV1, LinkKind::kRoce);
  EXPECT_TRUE(Says(versions, "RoCE v1 and RoCE v2")) << versions;
}

TEST(HandshakeCodecDeathTest, ARefusalWithoutAReasonAborts) {
  EXPECT_DEATH((void)EncodeRefusal(absl::OkStatus()), "a refusal needs a reason");
}

TEST(HandshakeCodecClientTest, TheServerReadsTheClientsIdAndWish) {
  LinkParameters client = Side("client", 7);
  client.executor_choice = ExecutorChoice::kKey;
  client.executor_key = 0x1122334455667788;
  const absl::StatusOr<LinkParameters> offer = ParseHello(EncodeHello(client, {}), {});
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->runtime_id, client.runtime_id);
  EXPECT_EQ(offer->executor_choice, ExecutorChoice::kKey);
  EXPECT_EQ(offer->executor_key, client.executor_key);
}

TEST(HandshakeCodecClientTest, AnIdOfAnotherLengthIsRefused) {
  wire::Hello hello;
  ASSERT_TRUE(hello.ParseFromString(EncodeHello(Side("client", 7), {})));
  hello.set_runtime_id("short");
  const absl::Status status = ParseHello(hello.SerializeAsString(), {}).status();
  EXPECT_NE(status.message().find("runtime_id of 5 bytes"), std::string::npos) << status;
}

}  // namespace handshake_codec_test
}  // namespace verbena::internal
