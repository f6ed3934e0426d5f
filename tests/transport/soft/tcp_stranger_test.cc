// A stranger that greets a device over TCP and goes again costs the device's executors nothing.

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/raw_tcp_peer.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {
namespace tcp_stranger_test {

using Verdict = TcpGreeting::Verdict;

// The device's answer to a greeting of `peer`, by another connection.
Verdict Greet(const RawTcpPeer& peer) {
  RawSocket socket(peer.port());
  EXPECT_TRUE(socket.Send(Encode(peer.Greeting(TcpGreeting::Kind::kControl))));
  std::array<std::byte, TcpGreeting::kBytes> answer;
  if (!socket.Receive(answer)) return Verdict::kStranger;
  const auto parsed = ParseGreeting(answer);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->verdict : Verdict::kStranger;
}

// While an executor is at its CQ, the engine could only wait for it.
TEST(TcpStrangerTest, TheEndOfItsSessionTouchesNoCq) {
  const auto device = SoftDevice::Create({.shared_memory = false,
                                          .tcp = TcpWireOptions{.address = "127.0.0.1"},
                                          .unpolled_after = std::chrono::hours(1)})
                          .value();
  QpEnd endpoint(*device, {});
  auto& cq = *static_cast<CompletionQueue*>(endpoint.cq());
  RawTcpPeer stranger(*device, /*lid=*/1);
  // The engine has done all of its first turn once it answers another.
  const RawTcpPeer other(*device, /*lid=*/2);
  std::lock_guard<SpinLock> busy(cq.lock());
  stranger.control().Close();
  Verdict verdict = Verdict::kDuplicate;
  // Until the engine has seen the end.
  while (verdict == Verdict::kDuplicate) verdict = Greet(stranger);
  EXPECT_EQ(verdict, Verdict::kAccepted) << "the engine waits for the CQ";
}

}  // namespace tcp_stranger_test
}  // namespace verbena::internal::soft
