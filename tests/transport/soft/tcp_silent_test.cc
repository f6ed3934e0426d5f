// One socket makes way for another one that has not greeted: the oldest of the source that has most
// of them. Sockets that have greeted count no more.

#include "verbena/transport/soft/tcp_shares.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal::soft {
namespace tcp_silent_test {

IpAddress Host(int number) { return ParseIp("192.0.0." + std::to_string(number)).value(); }

TEST(TcpSilentTest, OldestOfTheSourceThatHasMostMakesWay) {
  TcpSilent silent;
  silent.Add(1, Host(1));
  silent.Add(2, Host(2));
  silent.Add(3, Host(2));
  EXPECT_EQ(silent.TakeOldestOfMost(Host(3)), 2u);
  // The newcomer counts, too.
  EXPECT_EQ(silent.TakeOldestOfMost(Host(1)), 1u);
  EXPECT_EQ(silent.size(), 1u);
}

TEST(TcpSilentTest, SocketsThatHaveGreetedCountNoMore) {
  TcpSilent silent;
  for (uint64_t id = 1; id <= 5; ++id) silent.Add(id, Host(1));
  silent.Forget([](uint64_t) { return true; });
  EXPECT_EQ(silent.size(), 0u);
  silent.Add(10, Host(1));
  silent.Add(11, Host(2));
  silent.Add(12, Host(2));
  EXPECT_EQ(silent.TakeOldestOfMost(Host(3)), 11u);
}

}  // namespace tcp_silent_test
}  // namespace verbena::internal::soft
