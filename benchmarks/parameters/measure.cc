#include "verbena/benchmarks/parameters/measure.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "verbena/benchmarks/harness/latency_histogram.h"

namespace verbena::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// As long as an adaptive executor spins before it sleeps.
constexpr auto kSpin = std::chrono::microseconds(50);
// Receives go back in batches, as links do it.
constexpr int kRepostBatch = 16;

// Polls `waiter` until `done`. Polls `other` too, because a soft device may do the work of one end
// in the polls of the other.
template <typename Done>
void PollUntil(VerbsEnd& waiter, VerbsEnd& other, Done done) {
  while (!done()) {
    if (waiter.Poll() == 0) other.Poll();
  }
}

// Waits until `end` has received `count` messages in all; spins or sleeps as `waiting` says.
void WaitForReceives(VerbsEnd& end, uint64_t count, Waiting waiting) {
  Clock::time_point start;
  bool started = false;
  while (end.received() < count) {
    if (end.Poll() > 0 || waiting == Waiting::kBusy) continue;
    if (waiting == Waiting::kAdaptive) {
      if (!std::exchange(started, true)) start = Clock::now();
      if (Clock::now() - start < kSpin) continue;
    }
    end.Sleep();
  }
}

// Posts one message at `from`, and polls until `to` has it.
void SendOne(VerbsEnd& from, VerbsEnd& to, const PingPong& test, uint8_t mark) {
  const uint64_t before = to.received();
  const size_t last = test.bytes - 1;
  from.outgoing()[last] = mark;
  from.PostSends({.opcode = test.opcode,
                  .bytes = test.bytes,
                  .inline_data = test.inline_data,
                  .signal_every = 1});
  if (test.opcode == IBV_WR_RDMA_WRITE) {
    PollUntil(to, from, [&] { return to.landing(last) == mark; });
  } else {
    PollUntil(to, from, [&] { return to.received() > before; });
    to.PostReceives(1);
  }
  while (from.sent() < from.posted()) from.Poll();
}

void ReadOne(VerbsEnd& from, VerbsEnd& to, const PingPong& test) {
  from.PostSends({.opcode = IBV_WR_RDMA_READ, .bytes = test.bytes, .signal_every = 1});
  PollUntil(from, to, [&] { return from.sent() == from.posted(); });
}

}  // namespace

double MeasureLatencyUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test) {
  LatencyHistogram latencies;
  const bool read = test.opcode == IBV_WR_RDMA_READ;
  Clock::time_point before = Clock::now();
  const Clock::time_point end = before + test.duration;
  uint8_t mark = 0;
  while (before < end) {
    // The receiver of a WRITE waits for this byte, so it must differ from the last one.
    mark = static_cast<uint8_t>(mark % 250 + 1);
    if (read) {
      ReadOne(one, other, test);
    } else {
      SendOne(one, other, test, mark);
      SendOne(other, one, test, mark);
    }
    const Clock::time_point after = Clock::now();
    latencies.Record(static_cast<uint64_t>((after - before).count()) / (read ? 1 : 2));
    before = after;
  }
  return latencies.PercentileNs(50) / 1e3;
}

double MeasureRequestUs(VerbsEnd& client, VerbsEnd& server, RequestWay way, uint32_t bytes,
                        std::chrono::nanoseconds duration) {
  constexpr PingPong kMessage;
  const bool in_message = way == RequestWay::kInMessage;
  const PingPong request{.bytes = in_message ? kMessage.bytes + bytes : kMessage.bytes};
  // A program's memory on both sides.
  std::vector<uint8_t> source(in_message ? bytes : 0);
  std::vector<uint8_t> target(source.size());
  LatencyHistogram latencies;
  Clock::time_point before = Clock::now();
  const Clock::time_point end = before + duration;
  while (before < end) {
    if (way == RequestWay::kAskedWrite) {
      SendOne(client, server, kMessage, 1);
      SendOne(server, client, kMessage, 1);
    }
    if (in_message) std::memcpy(client.outgoing() + kMessage.bytes, source.data(), bytes);
    if (way == RequestWay::kAskedWrite || way == RequestWay::kGrantedWrite) {
      client.PostSends({.opcode = IBV_WR_RDMA_WRITE, .bytes = bytes, .signal_every = 1});
    }
    SendOne(client, server, request, 1);
    if (in_message) std::memcpy(target.data(), server.last_received() + kMessage.bytes, bytes);
    if (way == RequestWay::kServerRead) ReadOne(server, client, {.bytes = bytes});
    SendOne(server, client, kMessage, 1);
    const Clock::time_point after = Clock::now();
    latencies.Record(static_cast<uint64_t>((after - before).count()));
    before = after;
  }
  return latencies.PercentileNs(50) / 1e3;
}

double MeasureWaitingUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test, Waiting waiting) {
  const VerbsEnd::Post post = {.bytes = test.bytes, .signal_every = 1};
  std::atomic<bool> stop = false;
  std::thread echo([&] {
    for (uint64_t count = 1;; ++count) {
      WaitForReceives(other, count, waiting);
      other.PostReceives(1);
      if (stop.load(std::memory_order_acquire)) return;
      other.PostSends(post);
      while (other.sent() < other.posted()) other.Poll();
    }
  });
  LatencyHistogram latencies;
  uint64_t count = 0;
  const Clock::time_point end = Clock::now() + test.duration;
  // At least once, also if this thread stood still since the line before.
  do {
    const Clock::time_point before = Clock::now();
    one.PostSends(post);
    WaitForReceives(one, ++count, waiting);
    latencies.Record(static_cast<uint64_t>((Clock::now() - before).count()) / 2);
    one.PostReceives(1);
    while (one.sent() < one.posted()) one.Poll();
  } while (Clock::now() < end);
  stop.store(true, std::memory_order_release);
  one.PostSends(post);
  while (one.sent() < one.posted()) one.Poll();
  echo.join();
  return latencies.PercentileNs(50) / 1e3;
}

double MeasureRate(VerbsEnd& sender, VerbsEnd& receiver, const Stream& test) {
  const int queues = test.srq ? 1 : test.qps;
  const auto batch = static_cast<uint64_t>(test.batch);
  // Every SEND in flight has a receive, also while a batch of reposts gathers: RNR NAKs are not
  // what is measured.
  const auto window =
      static_cast<uint64_t>(std::min(test.receive_depth - kRepostBatch, test.send_depth));
  const uint64_t base = receiver.received();
  int qp = 0;
  const Clock::time_point start = Clock::now();
  Clock::time_point now = start;
  for (uint64_t turn = 0; now - start < test.duration; ++turn) {
    const uint64_t unreceived = sender.posted() - receiver.received();
    if (std::max(unreceived, sender.posted() - sender.sent()) + batch <= window) {
      sender.PostSends({.bytes = test.bytes,
                        .inline_data = test.inline_data,
                        .count = test.batch,
                        .signal_every = test.signal_every,
                        .qp = qp});
      qp = (qp + 1) % test.qps;
    } else {
      sender.Poll();
    }
    receiver.Poll();
    for (int i = 0; i < queues; ++i) {
      while (receiver.missing_receives(i) >= kRepostBatch) receiver.PostReceives(kRepostBatch, i);
    }
    if (turn % 64 == 0) now = Clock::now();
  }
  return static_cast<double>(receiver.received() - base) /
         std::chrono::duration<double>(now - start).count();
}

}  // namespace verbena::benchmarks
