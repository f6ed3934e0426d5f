// Every verb is safe on objects that several threads use at once. No completion or update is lost
// or doubled.

#include <atomic>
#include <functional>
#include <thread>

#include "tests/conformance/fixture.h"
#include "tests/conformance/post.h"

namespace verbena::internal::conformance {
namespace {

// Runs each function in a thread of its own, all at once.
void RunTogether(const std::vector<std::function<void()>>& bodies) {
  std::atomic<size_t> ready = 0;
  std::vector<std::thread> threads;
  for (const std::function<void()>& body : bodies) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < bodies.size()) std::this_thread::yield();
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Threads : public ConformanceTest {
 protected:
  // A device may free a WR's slot before its completion is polled, so only a CQ that has room for
  // all of them keeps threads that post from overrunning it.
  static EndOptions WithCompletions(uint64_t count) {
    EndOptions options;
    options.send_cq_entries = static_cast<uint32_t>(count);
    return options;
  }

  // Posts through the verbs object itself, again while the queue is full. False when it never
  // empties.
  static bool PostPatiently(ibv_qp* qp, SendWr wr) {
    const TimeLimit limit(kPatienceMs);
    while (PostSendChain(qp, {&wr, 1}).error != 0) {
      if (limit.passed()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Polls one completion through the verbs object itself. False when none comes.
  static bool PollPatiently(ibv_cq* cq, ibv_wc& wc) {
    const TimeLimit limit(kPatienceMs);
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
      if (limit.passed()) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

TEST_P(Threads, TwoThreadsPostToTwoQpsOfOneCqWhileAThirdPolls) {
  constexpr uint64_t kEach = 2000;
  QpPair first = Connect(WithCompletions(2 * kEach));
  QpPair second = ConnectAgain(first);
  ibv_cq* cq = near().raw(first.near.send_cq);
  const auto poster = [&](const QpPair& c) {
    return [&, qp = near().raw(c.near.qp)] {
      for (uint64_t i = 0; i < kEach; ++i) {
        ASSERT_TRUE(PostPatiently(qp, Write(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0)));
      }
    };
  };
  const auto poller = [&] {
    uint64_t next[2] = {0, 0};
    for (uint64_t n = 0; n < 2 * kEach; ++n) {
      ibv_wc wc{};
      ASSERT_TRUE(PollPatiently(cq, wc)) << n << " completions came";
      ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
      ASSERT_EQ(wc.wr_id, next[wc.qp_num == second.near.qp.number]++) << "out of order";
    }
    EXPECT_EQ(next[0], kEach);
    EXPECT_EQ(next[1], kEach);
  };
  RunTogether({poster(first), poster(second), poller});
}

TEST_P(Threads, TwoThreadsPostToOneQp) {
  constexpr uint64_t kEach = 1500;
  QpPair c = Connect(WithCompletions(2 * kEach));
  ibv_qp* qp = near().raw(c.near.qp);
  const auto poster = [&](uint64_t base) {
    return [&, base] {
      for (uint64_t i = 0; i < kEach; ++i) {
        ASSERT_TRUE(
            PostPatiently(qp, Write(base + i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0)));
      }
    };
  };
  const auto poller = [&, cq = near().raw(c.near.send_cq)] {
    uint64_t next[2] = {0, 100000};
    for (uint64_t n = 0; n < 2 * kEach; ++n) {
      ibv_wc wc{};
      ASSERT_TRUE(PollPatiently(cq, wc)) << n << " completions came";
      ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
      ASSERT_EQ(wc.wr_id, next[wc.wr_id >= 100000]++) << "out of order";
    }
  };
  RunTogether({poster(0), poster(100000), poller});
}

TEST_P(Threads, TwoThreadsPollOneCqAndEachCompletionIsSeenOnce) {
  constexpr uint64_t kWrs = 3000;
  QpPair c = Connect(WithCompletions(kWrs));
  ibv_cq* cq = near().raw(c.near.send_cq);
  std::vector<std::atomic<int>> seen(kWrs);
  std::atomic<uint64_t> total = 0;
  const auto poller = [&] {
    TimeLimit limit(kPatienceMs);
    while (total < kWrs && !limit.passed()) {
      ibv_wc wc[4];
      const int count = ibv_poll_cq(cq, 4, wc);
      if (count == 0) {
        std::this_thread::yield();
        continue;
      }
      for (int i = 0; i < count; ++i) ++seen[wc[i].wr_id];
      total += static_cast<uint64_t>(count);
      limit = TimeLimit(kPatienceMs);
    }
  };
  const auto poster = [&, qp = near().raw(c.near.qp)] {
    for (uint64_t i = 0; i < kWrs; ++i) {
      ASSERT_TRUE(PostPatiently(qp, Write(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0)));
    }
  };
  RunTogether({poller, poller, poster});
  for (uint64_t i = 0; i < kWrs; ++i) ASSERT_EQ(seen[i], 1) << "WR " << i;
}

TEST_P(Threads, SendsFromTwoThreadsShareOneSrq) {
  if (!capabilities().srq) GTEST_SKIP() << "the device has no shared receive queues";
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  constexpr uint64_t kEach = 600;
  EndOptions options;
  options.srq_depth = 32;
  QpPair first = Connect(options);
  QpPair second = ConnectAgain(first, options);
  // The SRQ's side is ours, so that its receives can be reposted by threads.
  ibv_srq* srq = near().raw(first.near.srq);
  ibv_cq* cq = near().raw(first.near.recv_cq);
  for (uint64_t i = 0; i < 32; ++i) first.near.Post(Receive(i, {first.near.memory.Piece(0, 64)}));
  std::atomic<uint64_t> received = 0;
  const auto receiver = [&] {
    TimeLimit limit(kPatienceMs);
    while (received < 2 * kEach && !limit.passed()) {
      ibv_wc wc{};
      if (ibv_poll_cq(cq, 1, &wc) == 0) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
      ++received;
      limit = TimeLimit(kPatienceMs);
      RecvWr wr = Receive(wc.wr_id, {first.near.memory.Piece(0, 64)});
      ASSERT_THAT(PostSrqReceiveChain(srq, {&wr, 1}), Accepted());
    }
  };
  // One thread at a time speaks to a far host in another process, so one sends through both QPs.
  const auto sender = [&] {
    for (uint64_t i = 0; i < kEach; i += 8) {
      for (QpPair* c : {&first, &second}) {
        const std::vector<SendWr> chain(8, Send(i, {c->far.memory.Piece(0, 32)}));
        ASSERT_THAT(c->far.TryPost(chain), Accepted());
      }
      ASSERT_EQ(Must(far().Await(first.far.send_cq, 16, kPatienceMs)).size(), 16u);
    }
  };
  RunTogether({receiver, receiver, sender});
  EXPECT_EQ(received, 2 * kEach);
}

TEST_P(Threads, AtomicsOfTwoQpsOnOneWordLoseNoUpdate) {
  if (!capabilities().atomics) GTEST_SKIP() << "the device has no atomics";
  constexpr uint64_t kEach = 500;
  QpPair first = Connect();
  EndOptions options;
  QpPair second = ConnectAgain(first, options);
  second.near.send_cq = Must(near().CreateCq(256, CqChannel()));
  second = ConnectAgain(second, options);
  const auto adder = [&](const QpPair& c, uint64_t slot) {
    return [&, slot, qp = near().raw(c.near.qp), cq = near().raw(c.near.send_cq)] {
      for (uint64_t i = 0; i < kEach; ++i) {
        SendWr wr = FetchAdd(i, c.near.memory.Piece(slot, 8), c.far.memory, 0, 3);
        ASSERT_THAT(PostSendChain(qp, {&wr, 1}), Accepted());
        ibv_wc wc{};
        ASSERT_TRUE(PollPatiently(cq, wc));
        ASSERT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
      }
    };
  };
  RunTogether({adder(first, 0), adder(second, 64)});
  EXPECT_EQ(first.far.Word(0), 2 * kEach * 3);
}

TEST_P(Threads, ObjectsComeAndGoWhileOthersAreInUse) {
  QpPair c = Connect();
  std::atomic<bool> done = false;
  Device& device = near().device();
  const auto traffic = [&, qp = near().raw(c.near.qp), cq = near().raw(c.near.send_cq)] {
    for (uint64_t i = 0; !done; ++i) {
      SendWr wr = Write(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0);
      ASSERT_THAT(PostSendChain(qp, {&wr, 1}), Accepted());
      ibv_wc wc{};
      ASSERT_TRUE(PollPatiently(cq, wc));
      ASSERT_THAT(wc, Succeeded(IBV_WC_RDMA_WRITE, i));
    }
  };
  const auto churn = [&] {
    std::vector<char> bytes(4096);
    for (int i = 0; i < 100; ++i) {
      ibv_pd* pd = Must(device.AllocPd());
      ibv_mr* mr = Must(device.RegMr(pd, bytes.data(), bytes.size(), kAllAccess));
      ibv_cq* cq = Must(device.CreateCq(16, nullptr, nullptr));
      ibv_qp_init_attr attributes{};
      attributes.send_cq = attributes.recv_cq = cq;
      attributes.qp_type = IBV_QPT_RC;
      attributes.cap = {.max_send_wr = 4,
                        .max_recv_wr = 4,
                        .max_send_sge = 1,
                        .max_recv_sge = 1,
                        .max_inline_data = 0};
      ibv_qp* qp = Must(device.CreateQp(pd, attributes));
      Must(device.DestroyQp(qp));
      Must(device.DestroyCq(cq));
      Must(device.DeregMr(mr));
      Must(device.DeallocPd(pd));
    }
    done = true;
  };
  RunTogether({traffic, churn});
}

TEST_P(Threads, AThreadArmsAndSleepsWhileAnotherPosts) {
  constexpr uint64_t kWrs = 800;
  EndOptions options = WithCompletions(kWrs);
  options.channel = true;
  QpPair c = Connect(options);
  const Cq cq = c.near.send_cq;
  const auto poster = [&, qp = near().raw(c.near.qp)] {
    for (uint64_t i = 0; i < kWrs; ++i) {
      ASSERT_TRUE(PostPatiently(qp, Write(i, {c.near.memory.Piece(0, 64)}, c.far.memory, 0)));
    }
  };
  const auto sleeper = [&, verbs_cq = near().raw(cq)] {
    for (uint64_t completed = 0; completed < kWrs;) {
      ibv_wc wc[8];
      const auto poll = [&] {
        const int count = ibv_poll_cq(verbs_cq, 8, wc);
        completed += static_cast<uint64_t>(count);
        return count > 0;
      };
      if (poll()) continue;
      ASSERT_EQ(ibv_req_notify_cq(verbs_cq, 0), 0);
      if (poll()) continue;
      const absl::StatusOr<Cq> event = near().AwaitCqEvent(c.near.channel, kPatienceMs);
      ASSERT_TRUE(event.ok()) << event.status() << " after " << completed << " completions";
      ASSERT_TRUE(near().AckCqEvents(*event, 1).ok());
    }
  };
  RunTogether({poster, sleeper});
}

VERBENA_CONFORMANCE_SUITE(Threads);

}  // namespace
}  // namespace verbena::internal::conformance
