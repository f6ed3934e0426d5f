// Each form of the software device's name means what it says, and any other is refused with the
// value and the forms.

#include "verbena/rpc/shard/open_device.h"

#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace soft_name_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

// "shared memory" and the address and port of the TCP part, as far as there are any.
std::string Parsed(const std::string& name) {
  EXPECT_TRUE(IsSoftName(name)) << name;
  const absl::StatusOr<SoftName> parts = ParseSoftName(name);
  if (!parts.ok()) return parts.status().ToString();
  std::string text = parts->shared_memory ? "shared memory" : "";
  if (parts->tcp.has_value()) {
    text += "tcp <" + parts->tcp->address + ">" + std::to_string(parts->tcp->port);
  }
  return text;
}

TEST(SoftNameTest, EachFormNamesItsParts) {
  EXPECT_EQ(Parsed("soft"), "shared memory");
  EXPECT_EQ(Parsed("soft:tcp"), "tcp <>0");
  EXPECT_EQ(Parsed("soft:tcp:4791"), "tcp <>4791");
  EXPECT_EQ(Parsed("soft:4791"), "shared memorytcp <>4791");
  EXPECT_EQ(Parsed("soft:0"), "shared memorytcp <>0");
  EXPECT_EQ(Parsed("soft:tcp:10.0.0.1:4791"), "tcp <10.0.0.1>4791");
  EXPECT_EQ(Parsed("soft:tcp:[2001:db8::1]:65535"), "tcp <2001:db8::1>65535");
  EXPECT_EQ(Parsed("soft:tcp:[::]:0"), "tcp <::>0");
}

TEST(SoftNameTest, AnyOtherTextIsRefusedWithItselfAndTheForms) {
  for (const char* name :
       {"soft:", "soft:udp", "soft:tcp:", "soft:TCP", "soft:65536", "soft:-1", "soft:+1", "soft: 1",
        "soft:1x", "soft:tcp:65536", "soft:tcp:x", "soft:tcp:host:1", "soft:tcp::1",
        "soft:tcp:::1:4791", "soft:tcp:10.0.0.1:", "soft:tcp:10.0.0.1:65536",
        "soft:tcp:[fe80::1%eth0]:1", "soft:tcp:10.0.0.1:1:2"}) {
    EXPECT_THAT(Parsed(name),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("\"" + std::string(name) + "\""),
                      HasSubstr("soft:tcp:ADDRESS:PORT")));
  }
  EXPECT_THAT(Parsed("soft:\n" + std::string(5000, 'x')),
              AllOf(HasSubstr("\"soft:\\nxxx"), ::testing::SizeIs(::testing::Lt(1000))));
}

TEST(SoftNameTest, OtherDevicesAreNotTakenForIt) {
  for (const char* name : {"", "auto", "rdma", "rdma:soft", "softer", "mlx5_0"}) {
    EXPECT_FALSE(IsSoftName(name)) << name;
  }
}

TEST(SoftNameTest, TheTcpPartIsNamedByItself) {
  for (const char* name : {"soft:tcp", "soft:tcp:4791", "soft:tcp:10.0.0.1:4791",
                           "soft:tcp:[2001:db8::1]:4791", "soft:tcp:10.0.0.1:0"}) {
    const absl::StatusOr<SoftName> parts = ParseSoftName(name);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(TcpName(*parts->tcp), name);
  }
  EXPECT_EQ(TcpName(*ParseSoftName("soft:4791")->tcp), "soft:tcp:4791");
}

}  // namespace soft_name_test
}  // namespace verbena::internal
