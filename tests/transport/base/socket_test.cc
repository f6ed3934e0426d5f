// Addresses as users write them are taken apart and put together again, or refused by name. A
// socket says whose it is, and a peer has no address but its own.

#include "verbena/transport/base/socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"

namespace verbena::internal {
namespace socket_test {

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
                                  {"http://h:1", "it is a URL"},
                                  {"tcp://[::1]:1", "it is a URL"},
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

IpAddress Ip(const std::string& text) { return ParseIp(text).value(); }

TEST(IpAddressTest, AnAddressIsWrittenAsItsFamilyIs) {
  for (const char* text : {"10.0.0.7", "2001:db8::7", "::1", "::"}) {
    EXPECT_EQ(FormatIp(Ip(text)), text);
  }
  EXPECT_EQ(FormatIp(Ip("::ffff:10.0.0.7")), "10.0.0.7");
  for (const char* text : {"", "storage-7", "10.0.0", "10.0.0.7:1", "[::1]", "fe80::1%eth0"}) {
    EXPECT_EQ(ParseIp(text), std::nullopt) << text;
  }
}

TEST(IpAddressTest, KindsOfAddressesAreToldApart) {
  EXPECT_TRUE(IsLoopback(Ip("127.200.3.4")) && IsLoopback(Ip("::1")));
  EXPECT_FALSE(IsLoopback(Ip("128.0.0.1")) || IsLoopback(Ip("::")) || IsLoopback(Ip("7f00::1")));
  EXPECT_TRUE(IsWildcard(Ip("0.0.0.0")) && IsWildcard(Ip("::")));
  EXPECT_FALSE(IsWildcard(Ip("0.0.0.1")) || IsWildcard(Ip("::1")));
  EXPECT_TRUE(IsLinkLocal(Ip("fe80::1")) && IsLinkLocal(Ip("febf::1")));
  EXPECT_FALSE(IsLinkLocal(Ip("fec0::1")) || IsLinkLocal(Ip("169.254.0.1")));
  EXPECT_EQ(RangeOf(Ip("2001:db8:1:2:3:4:5:6")), Ip("2001:db8:1:2::"));
  EXPECT_EQ(RangeOf(Ip("10.0.0.7")), Ip("10.0.0.7"));
}

TEST(SocketAddressTest, ItIsThatOfItsFamily) {
  SocketAddress ipv4(Ip("10.0.0.7"), 4000);
  EXPECT_EQ(ipv4.family(), AF_INET);
  EXPECT_EQ(ipv4.size(), sizeof(sockaddr_in));
  EXPECT_EQ(ipv4.text(), "10.0.0.7:4000");
  const SocketAddress ipv6(Ip("2001:db8::7"), 4000);
  EXPECT_EQ(ipv6.family(), AF_INET6);
  EXPECT_EQ(ipv6.size(), sizeof(sockaddr_in6));
  EXPECT_EQ(ipv6.text(), "[2001:db8::7]:4000");
  for (const SocketAddress& address : {ipv4, ipv6}) {
    const SocketAddress copy(*address.get());
    EXPECT_EQ(copy.text(), address.text());
    EXPECT_EQ(copy.ip(), address.ip());
    EXPECT_EQ(copy.port(), 4000);
  }
  EXPECT_EQ(reinterpret_cast<const sockaddr_in*>(ipv4.get())->sin_port, htons(4000));
  ipv4.set_port(1);
  EXPECT_EQ(ipv4.text(), "10.0.0.7:1");
}

TEST(SocketAddressTest, AnIpv4PeerOfAnIpv6SocketShowsThatItIsMapped) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
  mapped.sin6_addr.s6_addr[12] = 10;
  const SocketAddress address(reinterpret_cast<const sockaddr&>(mapped));
  EXPECT_EQ(address.text(), "[::ffff:10.0.0.0]:0");
  EXPECT_EQ(address.ip(), Ip("10.0.0.0"));
}

TEST(SocketAddressTest, OtherFamiliesHaveNone) {
  sockaddr_storage other{};
  other.ss_family = AF_UNIX;
  EXPECT_FALSE(SocketAddress(reinterpret_cast<const sockaddr&>(other)).has_value());
  EXPECT_FALSE(SocketAddress().has_value());
  EXPECT_FALSE(SocketAddress::OfSocket(-1).has_value());
  EXPECT_FALSE(SocketAddress::OfPeer(-1).has_value());
}

// A socket that listens on loopback, and what connects to it.
class SocketTest : public testing::Test {
 protected:
  SocketTest() : listener_(OpenTcpSocket(AF_INET)) {
    EXPECT_TRUE(BindTcpSocket(listener_.get(), SocketAddress(Ip("127.0.0.1"), 0)));
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    at_ = SocketAddress::OfSocket(listener_.get());
  }
  // Waits until the attempt is over.
  static int Dial(const UniqueFd& socket, const SocketAddress& to) {
    if (const int error = StartConnect(socket.get(), to); error != 0) return error;
    pollfd writable{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    EXPECT_EQ(poll(&writable, 1, -1), 1);
    return ConnectResult(socket.get());
  }

  UniqueFd listener_;
  SocketAddress at_;
};

TEST_F(SocketTest, AConnectionHasTwoEndsOfOneHost) {
  const UniqueFd dialed = OpenTcpSocket(AF_INET);
  ASSERT_EQ(Dial(dialed, at_), 0);
  pollfd readable{.fd = listener_.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&readable, 1, -1), 1);
  absl::StatusOr<AcceptedSocket> accepted = AcceptSocket(listener_.get(), "accept");
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->peer.text(), SocketAddress::OfSocket(dialed.get()).text());
  EXPECT_EQ(SocketAddress::OfPeer(dialed.get()).text(), at_.text());
  const std::optional<TcpSource> source = TcpSource::Of(accepted->fd.get());
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->address, Ip("127.0.0.1"));
  EXPECT_TRUE(source->this_host);
}

TEST_F(SocketTest, NoConnectionWaits) {
  EXPECT_TRUE(absl::IsUnavailable(AcceptSocket(listener_.get(), "accept").status()));
}

TEST_F(SocketTest, AnErrorOfAcceptingBeginsWithWhatWasTried) {
  const absl::Status status = AcceptSocket(-1, "accept a connection").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "accept a connection: Bad file descriptor (EBADF)");
}

TEST_F(SocketTest, AnAttemptWhereNobodyListensIsRefused) {
  // Bound, so that nobody else takes the port, but it does not listen.
  const UniqueFd silent = OpenTcpSocket(AF_INET);
  ASSERT_TRUE(BindTcpSocket(silent.get(), SocketAddress(Ip("127.0.0.1"), 0)));
  EXPECT_EQ(Dial(OpenTcpSocket(AF_INET), SocketAddress::OfSocket(silent.get())), ECONNREFUSED);
}

// A seccomp profile refuses accept4 before a connection is taken. Whoever tried the next one at
// once would never end.
TEST_F(SocketTest, AForbiddenAcceptIsNoErrorOfAConnection) {
  WithForbidden(SYS_accept4, EPERM, [&] {
    const absl::Status status = AcceptSocket(listener_.get(), "accept").status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  });
}

TEST_F(SocketTest, AUnixSocketHasNoSocketAddress) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd first(pair[0]);
  const UniqueFd second(pair[1]);
  EXPECT_FALSE(SocketAddress::OfSocket(first.get()).has_value());
  EXPECT_EQ(SocketAddress::OfPeer(first.get()).family(), 0);
}

TEST_F(SocketTest, ABoundPortIsNotToBeHadTwice) {
  const UniqueFd second = OpenTcpSocket(AF_INET);
  EXPECT_FALSE(BindTcpSocket(second.get(), at_));
  EXPECT_EQ(errno, EADDRINUSE);
}

TEST(TcpSourceTest, PeerHasNoAddressButItsOwn) {
  const IpAddress here = Ip("192.0.2.1");
  const IpAddress there = Ip("240.0.0.9");
  const IpAddress loopback = Ip("127.0.0.1");
  EXPECT_TRUE(TcpSource{.address = here}.MayHave(here));
  EXPECT_FALSE(TcpSource{.address = here}.MayHave(there));
  EXPECT_FALSE(TcpSource{.address = here}.MayHave(loopback)) << "which would be this host";
  const TcpSource same{.address = loopback, .this_host = true};
  EXPECT_TRUE(same.MayHave(Ip("127.0.0.9")));
  EXPECT_FALSE(same.MayHave(there));
}

}  // namespace socket_test
}  // namespace verbena::internal
