// Addresses as users write them are taken apart and put together again, or refused by name.

#include "verbena/transport/base/socket.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace {

struct Good {
  std::string text;
  std::string host;
  uint16_t port;
};

TEST(HostPortTest, AnAddressIsTakenApartAndPutTogetherAgain) {
  const std::vector<Good> cases = {{"127.0.0.1:4000", "127.0.0.1", 4000},
                                   {"storage-7:1", "storage-7", 1},
                                   {"a.b.example:65535", "a.b.example", 65535},
                                   {"[::1]:0", "::1", 0},
                                   {"[fe80::1%eth0]:80", "fe80::1%eth0", 80}};
  for (const Good& good : cases) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(good.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, good.host);
    EXPECT_EQ(parsed->port, good.port);
    EXPECT_EQ(FormatHostPort(parsed->host, parsed->port), good.text);
  }
}

struct Bad {
  std::string text;
  std::string why;
};

TEST(HostPortTest, AnErrorInAnAddressIsNamed) {
  const std::vector<Bad> cases = {{"", "no port"},
                                  {"localhost", "no port"},
                                  {":4000", "no host"},
                                  {"[]:4000", "no host"},
                                  {"::1:4000", "brackets"},
                                  {"[::1]", "brackets"},
                                  {"host:", "port"},
                                  {"host:65536", "port"},
                                  {"host:-1", "port"},
                                  {"host:+1", "port"},
                                  {"host: 1", "port"},
                                  {"host:12x", "port"},
                                  {"host:0x10", "port"},
                                  {"host:99999999999999999999", "port"},
                                  {"a b:1", "character"},
                                  {"a\nb:1", "character"},
                                  {std::string("a\0b:1", 5), "character"},
                                  {"a:1,b:2", "it names several servers: write static:"},
                                  {"a,b:2", "several servers"},
                                  {"[::1:1", "brackets"},
                                  {std::string(254, 'h') + ":1", "253"}};
  for (const Bad& bad : cases) {
    const absl::Status status = ParseHostPort(bad.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_NE(std::string(status.message()).find(bad.why), std::string::npos)
        << bad.text << ": " << status;
    EXPECT_NE(std::string(status.message()).find(bad.text.substr(0, 253)), std::string::npos)
        << status;
  }
}

TEST(SourceOfTest, PortsAndTheRestOfAnIpv6NetworkDoNotTellSourcesApart) {
  EXPECT_EQ(SourceOf("10.0.0.7:4000"), "10.0.0.7");
  EXPECT_EQ(SourceOf("[::ffff:10.0.0.7]:4000"), "10.0.0.7");
  EXPECT_EQ(SourceOf("[2001:db8:1:2:3:4:5:6]:4000"), "2001:db8:1:2::/64");
  EXPECT_EQ(SourceOf("[2001:db8:1:2:ffff::1]:1"), "2001:db8:1:2::/64");
  EXPECT_EQ(SourceOf("[::1]:4000"), "::1");
  EXPECT_EQ(SourceOf("client"), "client");
}

}  // namespace
}  // namespace verbena::internal
