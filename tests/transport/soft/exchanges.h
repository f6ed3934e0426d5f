// Exchanges between the QPs of two processes that each wire of the soft device has to carry:
// messages back and forth, with and without sleeping, and large one-sided operations whose target
// does not poll.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_EXCHANGES_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::soft {

// One process's device and QP, which is in INIT.
struct Process {
  explicit Process(const QpEndOptions& options = {}, const SoftDeviceOptions& wire = {})
      : device(SoftDevice::Create(wire).value()), endpoint(*device, options) {
    EXPECT_TRUE(endpoint.ToInit(endpoint.qp()).ok());
  }

  std::unique_ptr<SoftDevice> device;
  QpEnd endpoint;
};

inline void PostReceives(QpEnd& endpoint, int count, uint32_t bytes = 64) {
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(endpoint.PostReceive(i, endpoint.ReceiveSge(i * bytes, bytes)), 0);
  }
}

// Answers every message with the same bytes, `rounds` times.
inline void Echo(QpEnd& endpoint, int rounds, bool sleeping) {
  for (int received = 0, sent = 0; received < rounds || sent < rounds;) {
    const ibv_wc wc = sleeping ? AwaitByEvents(endpoint) : AwaitByPolling(endpoint.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_SEND) {
      ++sent;
      continue;
    }
    ++received;
    std::memcpy(endpoint.send_buffer(), endpoint.receive_buffer() + wc.wr_id * 64, wc.byte_len);
    ASSERT_EQ(endpoint.PostReceive(wc.wr_id, endpoint.ReceiveSge(wc.wr_id * 64, 64)), 0);
    ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, wc.byte_len)), 0);
  }
}

inline void AskAndCompare(QpEnd& endpoint, int rounds, bool sleeping) {
  for (int i = 0; i < rounds; ++i) {
    std::memcpy(endpoint.send_buffer(), &i, sizeof(i));
    ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 8)), 0);
    for (int ended = 0; ended < 2; ++ended) {
      const ibv_wc wc = sleeping ? AwaitByEvents(endpoint) : AwaitByPolling(endpoint.cq());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_SEND) continue;
      ASSERT_EQ(std::memcmp(endpoint.receive_buffer() + wc.wr_id * 64, &i, sizeof(i)), 0);
      ASSERT_EQ(endpoint.PostReceive(wc.wr_id, endpoint.ReceiveSge(wc.wr_id * 64, 64)), 0);
    }
  }
}

inline void PingPong(const SoftDeviceOptions& wire, int rounds, bool we_sleep, bool they_sleep) {
  Child child([&](Side& side) {
    Process process({.with_channel = true}, wire);
    PostReceives(process.endpoint, 4);
    side.Connect(process.endpoint);
    Echo(process.endpoint, rounds, they_sleep);
    side.Await();
  });
  Process process({.with_channel = true}, wire);
  PostReceives(process.endpoint, 4);
  child.side().Connect(process.endpoint);
  AskAndCompare(process.endpoint, rounds, we_sleep);
  child.side().Signal();
  child.Join();
}

// A SEND to a process that polls, then a READ and a WRITE while nobody polls there.
inline void ExchangeLargeOperations(const SoftDeviceOptions& wire) {
  const QpEndOptions options{.with_channel = true, .bytes = 8 << 20};
  constexpr uint32_t kBytes = 3 << 20;
  Child child([&](Side& side) {
    Process process(options, wire);
    QpEnd& endpoint = process.endpoint;
    ASSERT_EQ(endpoint.PostReceive(1, endpoint.ReceiveSge(0, kBytes)), 0);
    side.Connect(endpoint);
    ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
    for (uint32_t i = 0; i < kBytes; i += 101) {
      ASSERT_EQ(endpoint.receive_buffer()[i], std::byte(i * 11));
    }
    ASSERT_EQ(endpoint.PostReceive(2, endpoint.ReceiveSge(kBytes, 64)), 0);
    side.Signal();
    // From here on the parent reads and writes our memory, and nobody polls here.
    side.Await();
    ASSERT_EQ(AwaitByPolling(endpoint.cq()).status, IBV_WC_SUCCESS);
    for (uint32_t i = 0; i < kBytes; i += 101) {
      ASSERT_EQ(endpoint.receive_buffer()[i], std::byte(i * 11 + 1));
    }
  });
  Process process(options, wire);
  QpEnd& endpoint = process.endpoint;
  Side side = child.side();
  const Address theirs = side.Connect(endpoint);
  for (uint32_t i = 0; i < kBytes; ++i) endpoint.send_buffer()[i] = std::byte(i * 11);
  ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, kBytes)), 0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  side.Await();
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_READ, 0, endpoint.ReceiveSge(0, kBytes),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(endpoint.receive_buffer(), endpoint.send_buffer(), kBytes), 0);
  for (uint32_t i = 0; i < kBytes; ++i) endpoint.send_buffer()[i] = std::byte(i * 11 + 1);
  ASSERT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, endpoint.SendSge(0, kBytes),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  ASSERT_EQ(endpoint.PostSend(0, endpoint.SendSge(0, 8)), 0);
  ASSERT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  side.Signal();
  child.Join();
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_EXCHANGES_H_
