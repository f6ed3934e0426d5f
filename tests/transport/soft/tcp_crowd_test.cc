// 10,000 connections that say nothing, or half a greeting, take few descriptors of a device, and
// keep out nobody who has something to say.

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {
namespace tcp_crowd_test {

SoftDeviceOptions Tcp() {
  return {.name = "tcp0", .shared_memory = false, .tcp = TcpWireOptions{.address = "127.0.0.1"}};
}

TEST(TcpCrowdTest, TenThousandSilentConnectionsHarmNobody) {
  constexpr size_t kConnections = 10'000;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  // As many at once as this process may have, and some for the devices.
  const size_t at_once = std::min<size_t>(kConnections, limit.rlim_cur - 600);
  const auto device = SoftDevice::Create(Tcp()).value();
  const auto other = SoftDevice::Create(Tcp()).value();
  QpEnd a(*device, {});
  QpEnd b(*other, {});
  Connect(a, b);
  std::vector<std::unique_ptr<RawSocket>> crowd(at_once);
  const auto bytes = Encode(TcpGreeting{});
  for (size_t i = 0; i < kConnections; ++i) {
    auto socket = std::make_unique<RawSocket>(device->tcp_port());
    socket->Send(std::span(bytes).first(i % 20));
    crowd[i % at_once] = std::move(socket);
    if (i % 1000 != 0) continue;
    ASSERT_EQ(b.PostReceive(i, b.ReceiveSge(0, 64)), 0);
    ASSERT_EQ(a.SendText(i, "unharmed"), 0);
    ASSERT_EQ(AwaitByPolling(b.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(AwaitByPolling(a.cq()).status, IBV_WC_SUCCESS);
  }
  // A new peer gets through.
  RawTcpPeer peer(*device);
  peer.CqOf(a.qp()->qp_num);
}

}  // namespace tcp_crowd_test
}  // namespace verbena::internal::soft
