// link_loss_bench: the longest gap of a closed-loop echo on a link whose endpoint loses a thousand
// others at once.
//
// One process, the in-process wire, strict leases. One executor on a core of its own has the
// endpoint that loses the links, with four leases open on each, and both ends of the echo. The far
// ends of the links and the threads of both devices share the other core. The far side stands for
// another machine, so it has the lowest priority. A gap is the time from one answer to the next.
// For comparison, the longest gap of 50 ms without a loss is taken before each loss.
//
//   link_loss_bench [--json FILE] [--links N] [--losses N]

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::benchmarks {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

constexpr size_t kEchoBytes = 32;
constexpr int kLeasesPerLink = 4;
constexpr int kFarNiceness = 19;

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "link_loss_bench: {}\n", value.status().ToString());
  std::exit(1);
}

// The listener on the far ends of the links that are lost.
class Ignore final : public internal::LinkListener {
 public:
  absl::Status OnFrame(internal::Link&, const internal::FrameHeader&, const char*) override {
    return {};
  }
  void OnLinkDown(internal::Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }
};

void Append(internal::Link& link, internal::FrameKind kind) {
  internal::FrameHeader frame;
  frame.kind = kind;
  char* body = link.Append(frame, kEchoBytes);
  if (body == nullptr) std::abort();  // one frame is in flight, and eight may be
  std::memset(body, 0, kEchoBytes);
}

// The listener on the accepting end of every link: answers each request.
class Answer final : public internal::LinkListener {
 public:
  absl::Status OnFrame(internal::Link& link, const internal::FrameHeader&, const char*) override {
    Append(link, internal::FrameKind::kResponse);
    return {};
  }
  void OnLinkDown(internal::Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }
};

// Sends the next request on each answer, and keeps the longest gap between two.
class Echo final : public internal::LinkListener {
 public:
  absl::Status OnFrame(internal::Link& link, const internal::FrameHeader&, const char*) override {
    const auto now = std::chrono::steady_clock::now();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
    Append(link, internal::FrameKind::kRequest);
    return {};
  }
  void OnLinkDown(internal::Link&, const absl::Status& reason) override {
    fmt::print(stderr, "link_loss_bench: the survivor was lost: {}\n", reason.ToString());
    std::exit(1);
  }
  bool ExpectsFrames() const override { return true; }

  void Begin(internal::Link& link) {
    last_ = std::chrono::steady_clock::now();
    Append(link, internal::FrameKind::kRequest);
  }
  double TakeLongestUs() {
    return Microseconds(std::exchange(longest_, std::chrono::steady_clock::duration{})).count();
  }

 private:
  std::chrono::steady_clock::time_point last_;
  std::chrono::steady_clock::duration longest_{};
};

// A device and its context.
struct Side {
  std::unique_ptr<internal::SoftDevice> device = Must(internal::SoftDevice::Create({}));
  std::unique_ptr<internal::DeviceContext> context =
      Must(internal::DeviceContext::Create(*device, {}));
};

class LinkLoss {
 public:
  LinkLoss(int links, const TwoCores& cores) : links_(links) {
    near_executor_ = Must(
        ExecutorThread::Start({.name = "near", .mode = ExecutorMode::kBusy, .cpu = cores.server}));
    // Threads inherit the niceness of the thread that starts them.
    std::thread([this, &cores] {
      (void)setpriority(PRIO_PROCESS, 0, kFarNiceness);
      far_ = std::make_unique<Side>();
      far_executor_ = Must(ExecutorThread::Start(
          {.name = "far", .mode = ExecutorMode::kEvent, .cpu = cores.client}));
    }).join();
    BlockOn(near_executor_->executor(), StartNear());
    BlockOn(far_executor_->executor(), StartFar());
  }
  struct Result {
    double alone_us;
    double longest_us;
    double teardown_ms;
  };
  Result Lose() {
    BlockOn(far_executor_->executor(), ConnectAll());
    while (open_.load() < links_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)Gap();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Result result{.alone_us = Gap(), .longest_us = 0, .teardown_ms = 0};
    const auto start = std::chrono::steady_clock::now();
    BlockOn(far_executor_->executor(), CloseAll());
    while (BlockOn(near_executor_->executor(), Links()) > 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    result.teardown_ms = Microseconds(std::chrono::steady_clock::now() - start).count() / 1000;
    result.longest_us = Gap();
    open_ = 0;
    return result;
  }

 private:
  LinkLimits Limits() const {
    LinkLimits limits;
    // Lost links count until they are torn down, so two sets of links may exist at once.
    limits.max_links = static_cast<uint32_t>(2 * links_) + 8;
    limits.srq_depth = limits.max_links * 10 + 1024;
    limits.connect_timeout = std::chrono::seconds(100);
    limits.leases.level = LeaseLevel::kStrict;
    return limits;
  }

  Task<void> StartNear() {
    Executor& executor = near_executor_->executor();
    accepting_ = std::make_unique<TaskScope>(executor);
    near_end_ = Must(internal::Endpoint::Create(executor, *near_.context, Limits()));
    survivor_end_ = Must(internal::Endpoint::Create(executor, *near_.context, LinkLimits{}));
    if (near_end_->limits().max_links < static_cast<uint32_t>(links_) + 1) {
      fmt::print(stderr, "link_loss_bench: the device allows {} links\n",
                 near_end_->limits().max_links);
      std::exit(1);
    }
    buffer_ = Must(co_await near_end_->memory().send().Allocate(4096));
    listener_ = Must(bootstrap_.Listen("near"));
    accepting_->Spawn(AcceptAll());
    auto stream = Must(co_await bootstrap_.Connect("near"));
    internal::Link* link = Must(co_await survivor_end_->Connect(std::move(stream), echo_, {}));
    while (open_.load() == 0) (void)co_await Sleep(std::chrono::milliseconds(1));
    open_ = 0;
    echo_.Begin(*link);
  }
  Task<void> StartFar() {
    far_end_ =
        Must(internal::Endpoint::Create(far_executor_->executor(), *far_->context, Limits()));
    co_return;
  }

  Task<void> AcceptAll() {
    while (true) {
      absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener_->Accept();
      if (!stream.ok()) co_return;
      accepting_->Spawn(AcceptOne(*std::move(stream)));
    }
  }
  Task<void> AcceptOne(std::unique_ptr<MessageStream> stream) {
    internal::LinkParameters offer = Must(co_await internal::ReceiveOffer(*stream));
    internal::Link* link =
        Must(co_await near_end_->Accept(std::move(stream), std::move(offer), answer_));
    for (int i = 0; i < kLeasesPerLink; ++i) {
      if (Must(link->OpenLease(buffer_.view(), LeaseAccess::kRead)) == nullptr) std::abort();
    }
    ++open_;
  }

  // A few at a time, as a backlog of 128 admits.
  Task<void> ConnectAll() {
    TaskScope scope(far_executor_->executor());
    for (int first = 0; first < links_; first += 64) {
      for (int i = first; i < std::min(first + 64, links_); ++i) scope.Spawn(ConnectOne());
      co_await scope.Join();
    }
  }
  Task<void> ConnectOne() {
    auto stream = Must(co_await bootstrap_.Connect("near"));
    far_links_.push_back(Must(co_await far_end_->Connect(std::move(stream), ignore_, {})));
  }
  Task<void> CloseAll() {
    for (internal::Link* link : far_links_) link->Close(absl::UnavailableError("lost"));
    far_links_.clear();
    co_return;
  }
  Task<uint32_t> Links() { co_return near_end_->stats().links; }
  Task<double> TakeGap() { co_return echo_.TakeLongestUs(); }
  double Gap() { return BlockOn(near_executor_->executor(), TakeGap()); }

  const int links_;
  Side near_;
  std::unique_ptr<Side> far_;
  LocalNetwork network_;
  LocalBootstrap bootstrap_{network_};
  Ignore ignore_;
  Answer answer_;
  Echo echo_;
  std::atomic<int> open_{0};
  Buffer buffer_;
  std::unique_ptr<ExecutorThread> near_executor_, far_executor_;
  std::unique_ptr<TaskScope> accepting_;
  std::unique_ptr<internal::Endpoint> near_end_, survivor_end_, far_end_;
  std::unique_ptr<MessageListener> listener_;
  std::vector<internal::Link*> far_links_;
};

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  const Options options = Must(ParseOptions(argc, argv, rest));
  int links = 1000, losses = 20;
  for (size_t i = 0; i + 1 < rest.size(); i += 2) {
    if (rest[i] == "--links") links = std::atoi(rest[i + 1].c_str());
    if (rest[i] == "--losses") losses = std::atoi(rest[i + 1].c_str());
  }
  const TwoCores cores = Must(ChooseTwoCores());
  if (absl::Status pinned = PinToCore(cores.client); !pinned.ok()) {
    fmt::print(stderr, "link_loss_bench: {}\n", pinned.ToString());
    return 1;
  }
  std::vector<double> alone, longest, teardown;
  LinkLoss bench(links, cores);
  for (int i = 0; i < losses; ++i) {
    const LinkLoss::Result result = bench.Lose();
    alone.push_back(result.alone_us);
    longest.push_back(result.longest_us);
    teardown.push_back(result.teardown_ms);
  }
  Report report = Must(Report::Open(options.json));
  report.Add({.bench = "link_loss",
              .device = "in-process",
              .mode = "busy",
              .size = kEchoBytes,
              .outstanding = 1,
              .extra = {{"links", links},
                        {"losses", losses},
                        {"alone_gap_us", Median(alone)},
                        {"longest_gap_us", Median(longest)},
                        {"worst_gap_us", *std::max_element(longest.begin(), longest.end())},
                        {"teardown_ms", Median(teardown)}}});
  report.PrintExtra();
  // No destructors run: the echo still runs, and nothing else would end its links.
  std::fflush(nullptr);
  std::_Exit(0);
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
