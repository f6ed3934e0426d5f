// The values in rdma_cm's messages and events: each failure gives a Status that says why, each
// token is taken once, and each kind of port has the right addresses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "verbena/transport/connect/rdma_cm.h"

namespace verbena::internal {
namespace rdma_cm_values_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(rdma_cm_event_type event, int status, std::string_view data = "") {
  return RdmaCmStatus(event, status, data, "rdma_cm to 10.0.0.2:4000").ToString();
}

TEST(RdmaCmStatusTest, ARejectionSaysWhyInWordsAndWithItsNumber) {
  EXPECT_EQ(Text(RDMA_CM_EVENT_REJECTED, 8),
            "UNAVAILABLE: rdma_cm to 10.0.0.2:4000: nobody listens there (RDMA_CM_EVENT_REJECTED, "
            "status 8)");
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, 28), HasSubstr("the peer refuses it"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, 10), HasSubstr("stale connection"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, 3), HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, 33), HasSubstr("status 33"));
}

TEST(RdmaCmStatusTest, IwarpRejectsWithAnErrno) {
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, -ECONNREFUSED),
              AllOf(HasSubstr("nobody listens there"), HasSubstr("status -111")));
}

TEST(RdmaCmStatusTest, OurOwnRejectionGivesItsReasonWhateverTheNumber) {
  const std::string late = EncodeRejectData(RejectReason::kUnknownToken);
  for (int status : {28, -ECONNREFUSED, -ECONNRESET}) {
    EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, status, late), HasSubstr("does not know the token"));
  }
  // InfiniBand pads it.
  EXPECT_THAT(Text(RDMA_CM_EVENT_REJECTED, 28, late + std::string(140, '\0')),
              HasSubstr("does not know the token"));
}

TEST(RdmaCmStatusTest, OtherEventsNameWhatIsMissing) {
  EXPECT_THAT(Text(RDMA_CM_EVENT_ADDR_ERROR, -ENODEV), HasSubstr("not on an RDMA device"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT), HasSubstr("does not answer"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH), HasSubstr("no route"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_UNREACHABLE, 0), HasSubstr("does not answer"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_CONNECT_ERROR, -EINVAL), HasSubstr("Invalid argument"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_DISCONNECTED, 0), HasSubstr("the peer disconnected"));
  EXPECT_THAT(Text(RDMA_CM_EVENT_DEVICE_REMOVAL, 0), HasSubstr("being removed"));
  EXPECT_THAT(RdmaCmCallStatus("rdma_connect", ECONNREFUSED, "rdma_cm to x").ToString(),
              AllOf(HasSubstr("nobody listens there"), HasSubstr("rdma_connect")));
}

TEST(RdmaCmStatusTest, EveryEventAndNumberGivesAnError) {
  for (int event = RDMA_CM_EVENT_ADDR_RESOLVED; event <= RDMA_CM_EVENT_TIMEWAIT_EXIT; ++event) {
    for (int status = -150; status < 150; ++status) {
      EXPECT_FALSE(RdmaCmStatus(static_cast<rdma_cm_event_type>(event), status, "", "it").ok());
    }
  }
}

TEST(RdmaCmPrivateDataTest, ARequestCarriesItsTokenAsTheWireSays) {
  const std::string bytes = EncodeConnectData(0x1122334455667788);
  EXPECT_EQ(bytes, std::string("VRCM\x01\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 16));
  EXPECT_EQ(bytes.size(), kConnectDataBytes);
  EXPECT_EQ(ParseConnectData(bytes), 0x1122334455667788u);
  EXPECT_EQ(ParseConnectData(bytes + std::string(40, '\0')), 0x1122334455667788u);
}

TEST(RdmaCmPrivateDataTest, BytesThatAreNoRequestAreRefused) {
  const std::string right = EncodeConnectData(5);
  for (size_t size = 0; size < right.size(); ++size) {
    EXPECT_EQ(ParseConnectData(right.substr(0, size)), std::nullopt) << size;
  }
  for (size_t at = 0; at < 5; ++at) {  // magic and version
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x40);
    EXPECT_EQ(ParseConnectData(wrong), std::nullopt) << at;
  }
  EXPECT_EQ(ParseConnectData(std::string(56, '\0')), std::nullopt);
}

TEST(RdmaCmPrivateDataTest, ARejectionCarriesItsReason) {
  const std::string bytes = EncodeRejectData(RejectReason::kUnknownToken);
  EXPECT_EQ(bytes, std::string("VRCM\x01\x02\0\0", 8));
  for (RejectReason reason :
       {RejectReason::kOther, RejectReason::kMalformed, RejectReason::kUnknownToken,
        RejectReason::kWrongQueuePair, RejectReason::kGone}) {
    EXPECT_EQ(ParseRejectData(EncodeRejectData(reason)), reason);
    EXPECT_STRNE(RejectReasonText(reason), "");
  }
  std::string of_a_newer_peer = bytes;
  of_a_newer_peer[5] = 77;
  EXPECT_EQ(ParseRejectData(of_a_newer_peer), RejectReason::kOther);
  EXPECT_EQ(ParseRejectData(bytes.substr(0, 7)), std::nullopt);
  EXPECT_EQ(ParseRejectData(std::string(148, '\0')), std::nullopt);
}

TEST(TokenTableTest, ATokenIsTakenOnce) {
  TokenTable<int> table(8);
  EXPECT_TRUE(table.Add(1, std::make_shared<int>(10)));
  EXPECT_TRUE(table.Add(2, std::make_shared<int>(20)));
  EXPECT_FALSE(table.Add(1, std::make_shared<int>(30)));
  EXPECT_EQ(*table.Take(1), 10);
  EXPECT_EQ(table.Take(1), nullptr);
  EXPECT_EQ(table.Take(3), nullptr);
  table.Remove(2);
  EXPECT_EQ(table.Take(2), nullptr);
  EXPECT_EQ(table.size(), 0u);
}

TEST(TokenTableTest, HoldsNoMoreThanItsLimit) {
  TokenTable<int> table(2);
  EXPECT_TRUE(table.Add(1, std::make_shared<int>(1)));
  EXPECT_TRUE(table.Add(2, std::make_shared<int>(2)));
  EXPECT_FALSE(table.Add(3, std::make_shared<int>(3)));
  table.Remove(1);
  EXPECT_TRUE(table.Add(3, std::make_shared<int>(3)));
}

TEST(TokenTableTest, OnlyOneOfTwoThreadsTakesAnEntry) {
  for (uint64_t round = 0; round < 200; ++round) {
    TokenTable<int> table(1);
    ASSERT_TRUE(table.Add(round, std::make_shared<int>(1)));
    std::shared_ptr<int> there;
    std::thread other([&] { there = table.Take(round); });
    const std::shared_ptr<int> here = table.Take(round);
    other.join();
    EXPECT_NE(here == nullptr, there == nullptr);
  }
}

HostAddress At(const std::string& interface, const std::string& ip,
               std::vector<uint8_t> hardware = {}) {
  return {.interface = interface, .hardware = std::move(hardware), .ip = ParseIp(ip).value()};
}

std::vector<std::string> Ranked(const std::vector<HostAddress>& all, LinkKind kind,
                                const std::vector<uint8_t>& gid_bytes) {
  ibv_gid gid{};
  std::memcpy(gid.raw, gid_bytes.data(), gid_bytes.size());
  std::vector<std::string> names;
  for (const HostAddress& address : RankAddresses(all, kind, gid)) {
    names.push_back(FormatIp(address.ip));
  }
  return names;
}

TEST(RdmaCmAddressTest, ARocePortHasTheAddressOfItsGid) {
  const std::vector<HostAddress> all = {At("eth0", "10.0.0.1"), At("eth1", "10.0.0.2")};
  const std::vector<uint8_t> gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2};
  EXPECT_THAT(Ranked(all, LinkKind::kRoce, gid), ElementsAre("10.0.0.2"));
}

TEST(RdmaCmAddressTest, AnIwarpPortHasTheAddressesOfTheInterfaceThatItsGidNames) {
  const std::vector<HostAddress> all = {
      At("eth0", "10.0.0.1", {2, 0, 0, 0, 0, 1}), At("eth1", "10.0.0.2", {2, 0, 0, 0, 0, 2}),
      At("eth1", "fd00::2", {2, 0, 0, 0, 0, 2}), At("tun0", "::5")};
  EXPECT_THAT(Ranked(all, LinkKind::kIwarp, {2, 0, 0, 0, 0, 2}),
              ElementsAre("10.0.0.2", "fd00::2"));
}

TEST(RdmaCmAddressTest, AnInfiniBandPortHasTheAddressesOfItsIpoibInterface) {
  std::vector<uint8_t> gid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint8_t> hardware = {0x80, 0, 1, 7};
  hardware.insert(hardware.end(), gid.begin(), gid.end());
  const std::vector<HostAddress> all = {At("eth0", "10.0.0.1", {2, 0, 0, 0, 0, 1}),
                                        At("ib0", "10.1.0.1", hardware)};
  EXPECT_THAT(Ranked(all, LinkKind::kInfiniBand, gid), ElementsAre("10.1.0.1"));
}

TEST(RdmaCmAddressTest, AllAddressesAreTriedIfNothingPointsToOne) {
  const std::vector<HostAddress> all = {At("eth0", "10.0.0.1"), At("eth1", "fd00::2")};
  EXPECT_THAT(Ranked(all, LinkKind::kRoce, {0xfe, 0x80}), ElementsAre("10.0.0.1", "fd00::2"));
}

TEST(RdmaCmAddressTest, ThisHostsAddressesAreNeitherLoopbackNorLinkLocal) {
  for (const HostAddress& address : ListAddresses()) {
    EXPECT_FALSE(address.interface.empty());
    const std::string text = FormatIp(address.ip);
    EXPECT_FALSE(text.starts_with("127.")) << text;
    EXPECT_FALSE(text.starts_with("fe80:")) << text;
  }
}

}  // namespace rdma_cm_values_test
}  // namespace verbena::internal
