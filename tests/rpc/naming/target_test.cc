// A target's text and a list of servers say which servers there are; what is wrong in them is named
// with its place.

#include "verbena/rpc/naming/target.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/naming/resolvers.h"

namespace verbena::internal {
namespace {

TEST(TargetTest, LeavesAddressesAndNamesToTheBootstrap) {
  for (const char* text : {"storage-7:4000", "[::1]:4000", "storage-7", "storage:1", "static:4000",
                           "dns:53", "file:80", "", "etcd:2379"}) {
    const absl::StatusOr<Target> target = ParseTarget(text);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_TRUE(std::holds_alternative<PlainTarget>(*target)) << text;
  }
}

TEST(TargetTest, ReadsStaticSets) {
  const absl::StatusOr<Target> target = ParseTarget("static:a:1,[::1]:2|b-rdma:3,storage-7");
  ASSERT_TRUE(target.ok()) << target.status();
  const std::vector<ResolvedServer> expected = {
      {.addresses = {"a:1"}}, {.addresses = {"[::1]:2", "b-rdma:3"}}, {.addresses = {"storage-7"}}};
  EXPECT_EQ(std::get<StaticTarget>(*target).servers, expected);
}

TEST(TargetTest, ReadsNamesOfDns) {
  for (const auto& [text, name] :
       {std::pair{"dns:///storage.local:4000", "storage.local"}, {"dns:///[::1]:4000", "::1"}}) {
    const absl::StatusOr<Target> target = ParseTarget(text);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(std::get<DnsTarget>(*target).name, name);
    EXPECT_EQ(std::get<DnsTarget>(*target).port, 4000);
  }
}

TEST(TargetTest, ReadsPathsOfFiles) {
  const absl::StatusOr<Target> target = ParseTarget("file:///etc/storage.list");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(std::get<FileTarget>(*target).path, "/etc/storage.list");
}

TEST(TargetTest, ReadsEndpointsPrefixAndFilesOfEtcd) {
  const absl::StatusOr<Target> plain = ParseTarget("etcd://a:1,[::1]:2/services/storage//");
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto& target = std::get<EtcdTarget>(*plain);
  EXPECT_EQ(target.endpoints, (std::vector<std::string>{"a:1", "[::1]:2"}));
  EXPECT_EQ(target.prefix, "services/storage/");
  EXPECT_FALSE(target.tls);
  const absl::StatusOr<Target> tls =
      ParseTarget("etcds://a:1/s?ca=/ca.pem&cert=/cert.pem&key=/key.pem");
  ASSERT_TRUE(tls.ok()) << tls.status();
  const auto& secured = std::get<EtcdTarget>(*tls);
  EXPECT_TRUE(secured.tls);
  EXPECT_EQ(secured.prefix, "s/");
  EXPECT_EQ(secured.ca_file, "/ca.pem");
  EXPECT_EQ(secured.certificate_file, "/cert.pem");
  EXPECT_EQ(secured.key_file, "/key.pem");
  const absl::StatusOr<Target> login = ParseTarget("etcd://a:1/s?user=me&password_file=/p");
  ASSERT_TRUE(login.ok()) << login.status();
  EXPECT_EQ(std::get<EtcdTarget>(*login).user, "me");
  EXPECT_EQ(std::get<EtcdTarget>(*login).password_file, "/p");
}

TEST(TargetTest, BoundsTheEndpointsOfEtcd) {
  std::string endpoints = "etcd://a:1";
  for (size_t i = 1; i < EtcdTarget::kMaxEndpoints; ++i) endpoints += ",a:1";
  EXPECT_TRUE(ParseTarget(endpoints + "/s").ok());
  EXPECT_FALSE(ParseTarget(endpoints + ",a:1/s").ok());
  EXPECT_FALSE(ParseTarget("etcd://a:1/" + std::string(256, 's')).ok());
}

TEST(TargetTest, NamesThePlaceOfWhatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {"static:", "position 8: an address is missing"},
      {"static:a:1,", "position 12: an address is missing"},
      {"static:a:1,,b:2", "position 12: an address is missing"},
      {"static:a:1|", "position 12: an address is missing"},
      {"static:a:1,b:port", "position 14: \"port\" is no port"},
      {"static:a:0", "position 10: \"0\" is no port"},
      {"static:a:+1", "position 10: \"+1\" is no port"},
      {"static:a:65536", "position 10: \"65536\" is no port"},
      {"static:a:", "position 10: \"\" is no port"},
      {"static::1", "position 8: the host is missing"},
      {"static:a:1, b:2", "position 12: an address has no blanks"},
      {"static:::1:4000", "position 8: \"::1:4000\" has several colons"},
      {"static://a:4000,b", "position 8: \"static:\" is followed by '/': write static:host:port,"},
      {"static:/a:4000", "position 8: \"static:\" is followed by '/'"},
      {"static:[::1:4000", "position 8: the bracket is not closed"},
      {"static:a:1,b:2,a:1", "position 16: a:1 is there twice"},
      {"dns:///storage", "position 15: the port is missing"},
      {"dns:///:4000", "position 8: the host is missing"},
      {"dns:///[]:4000", "position 8: the name is missing"},
      {"dns:///a:1/x", "position 11: '/' after the name"},
      {"dns:///a:1,b:2", "position 11: ',' after the name"},
      {"dns://8.8.8.8/a:1", "position 5: \"dns:\" is followed by"},
      {"dns:a:1", "write dns:///name:port"},
      {"file://etc/list", "write file:///absolute/path"},
      {"file:///", "position 9: the path is missing"},
      {"etcd://a:1", "position 11: the prefix of keys is missing"},
      {"etcd://a:1/", "position 12: the prefix of keys is missing"},
      {"etcd://a:1//", "position 12: the prefix of keys is missing"},
      {"etcd:///s", "position 8: an address is missing"},
      {"etcd://a/s", "position 9: the port is missing"},
      {"etcd://[::1]/s", "position 13: the port is missing"},
      {"etcd://a:1,b:x/s", "position 14: \"x\" is no port"},
      {"etcd://a:1,/s", "position 12: an address is missing"},
      {"etcd:/a:1/s", "position 6: \"etcd:\" is followed by"},
      {"etcd://a:1/s s", "position 12: a prefix may have printable"},
      {"etcd://a:1/s?ca=/x", "position 14: this file is for TLS: write etcds://"},
      {"etcds://a:1/s?cb=/x", "position 15: \"cb=/x\" is no option"},
      {"etcds://a:1/s?ca=", "position 15: \"ca=\" is no option"},
      {"etcds://a:1/s?ca=/x&ca=/y", "position 21: \"ca=/y\" is no option"},
      {"etcds://a:1/s?cert=/x", "a certificate needs its key"},
      {"etcd://a:1/s?user=me", "a user needs a password"},
      {"etcd://a:1/s?password_file=/p", "a user needs a password"},
  };
  for (const auto& [text, message] : wrong) {
    const absl::Status status = ParseTarget(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_NE(status.message().find(message), std::string::npos) << text << ": " << status;
    EXPECT_NE(status.message().find(text), std::string::npos) << status;
  }
}

TEST(TargetTest, BoundsTheAddressesOfAServerAndTheServers) {
  std::string addresses = "static:a:1";
  for (size_t i = 1; i < ResolvedServer::kMaxAddresses; ++i) addresses += "|a:1";
  EXPECT_TRUE(ParseTarget(addresses).ok());
  EXPECT_FALSE(ParseTarget(addresses + "|a:1").ok());
  std::string servers = "static:a0:1";
  for (size_t i = 1; i < Resolver::kMaxServers; ++i) servers += ",a" + std::to_string(i) + ":1";
  EXPECT_TRUE(ParseTarget(servers).ok());
  EXPECT_FALSE(ParseTarget(servers + ",b:1").ok());
}

TEST(ServerListTest, ReadsALineForEachServer) {
  const absl::StatusOr<std::vector<ResolvedServer>> servers =
      ParseServerList("/list",
                      "# the first rack\n"
                      "a:1 weight=3 zone=x\t name=storage-1\r\n"
                      "\n"
                      "  b:2|c:3   # an address more\n"
                      "d");
  ASSERT_TRUE(servers.ok()) << servers.status();
  const std::vector<ResolvedServer> expected = {
      {.addresses = {"a:1"}, .name = "storage-1", .weight = 3, .zone = "x"},
      {.addresses = {"b:2", "c:3"}, .name = "b:2"},
      {.addresses = {"d"}, .name = "d"}};
  EXPECT_EQ(*servers, expected);
}

TEST(ServerListTest, AServerOfWeightZeroTakesNoCalls) {
  const auto servers = ParseServerList("/list", "a:1 weight=0\nb:1\n");
  ASSERT_TRUE(servers.ok()) << servers.status();
  ASSERT_EQ(servers->size(), 1u);
  EXPECT_EQ(servers->front().name, "b:1");
  EXPECT_FALSE(ParseServerList("/list", "a:1 weight=0\na:1\n").ok()) << "it is there twice";
  EXPECT_FALSE(ParseServerList("/list", "a:1 weight=0\n").ok()) << "nobody is left";
}

TEST(ServerListTest, NamesFileAndLineOfWhatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {"a:1\nb:port\n", "/list:2: position 3: \"port\" is no port"},
      {"a:1 weight=-1", "/list:1: weight is \"-1\", but must be in [0, 1000]"},
      {"a:1 weight=1001", "/list:1: weight is \"1001\""},
      {"a:1 weight=+3", "/list:1: weight is \"+3\""},
      {"a:1 weight", "/list:1: weight is \"\""},
      {"a:1 zone=", "/list:1: \"zone=\" is no option"},
      {"a:1\n\nb:1 color=red", "/list:3: \"color=red\" is no option"},
      {"a:1 b:1", "/list:1: \"b:1\" is no option"},
      {"a:1\na:1", "/list:2: a:1 is there twice"},
      {"a:1 name=x\nb:1 name=x", "/list:2: x is there twice"},
      {"", "/list names no server"},
      {"# nothing\n\n", "/list names no server"},
      {":\n:\n:\n:\n:", "; and 2 more lines"},
  };
  for (const auto& [text, message] : wrong) {
    const absl::Status status = ParseServerList("/list", text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_NE(status.message().find(message), std::string::npos) << text << ": " << status;
  }
}

TEST(ServerListTest, NamesZonesAndAddressesAreShortAndPrintable) {
  const std::string most(255, 'n');
  EXPECT_TRUE(ParseServerList("/list", "a:1 name=" + most + " zone=" + most).ok());
  EXPECT_TRUE(ParseServerList("/list", most).ok());
  for (const std::string& wrong : {"a:1 name=" + most + "n", "a:1 zone=" + most + "n", most + "n",
                                   std::string("a:1 name=\x1b["), std::string("a:1 zone=\x7f"),
                                   std::string("a\x01"), std::string("a:1 name=caf\xc3\xa9")}) {
    const absl::Status status = ParseServerList("/list", wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong << ": " << status;
  }
  EXPECT_FALSE(ParseTarget("static:a\x1b[:1").ok());
}

// A file may have one word of a MiB, of any bytes.
TEST(ServerListTest, ErrorsShowLittleOfALongOrOddText) {
  const std::string word = std::string("\x1b[2J") + std::string(size_t{1} << 20, 'w');
  for (const std::string& wrong :
       {word, "a:1 " + word, "a:1 name=" + word, "a:1 zone=" + word, "a:1 weight=" + word,
        "a:" + word, word + ":1:2", "a:1|" + word}) {
    const absl::Status status = ParseServerList("/list", wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_LT(status.message().size(), 1000u);
    EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
    EXPECT_LT(ParseTarget("static:" + wrong).status().message().size(), 1000u);
  }
}

}  // namespace
}  // namespace verbena::internal
