// Clients that repeat their calls until they are answered, while the server is killed at every
// event of a call and links are lost: each call is counted once, and each answer is true. The
// service's store lies in memory that outlives its process. VERBENA_DEDUPE_REQUESTS in the
// environment says how many calls to make.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gtest/gtest.h"
#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/watched_device.h"
#include "tests/support/held_port.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

uint64_t RequestsWanted() {
  const char* asked = std::getenv("VERBENA_DEDUPE_REQUESTS");
  return asked == nullptr ? 20'000 : std::strtoull(asked, nullptr, 10);
}

// A log of all calls that were counted, shared with processes that are forked later. An entry is
// there once `committed` counts it: one store makes data and name durable together.
class Disk {
 public:
  struct Entry {
    RequestId name;
    uint64_t call = 0;
  };

  // `address` is where all servers listen.
  Disk(uint64_t capacity, std::string address)
      : bytes_(sizeof(Shared) + capacity * sizeof(Entry)),
        shared_(new(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                         0)) Shared),
        capacity_(capacity),
        address_(std::move(address)) {}
  ~Disk() { munmap(shared_, bytes_); }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  uint64_t committed() const { return shared_->committed.load(std::memory_order_acquire); }
  Entry& entry(uint64_t index) const { return reinterpret_cast<Entry*>(shared_ + 1)[index]; }
  // Whether there is room for another entry: more calls than were made would fill it.
  bool full() const { return committed() == capacity_; }
  void Commit() const { shared_->committed.fetch_add(1, std::memory_order_release); }
  std::atomic<int>& lives() const { return shared_->lives; }
  const std::string& address() const { return address_; }

 private:
  struct alignas(64) Shared {
    std::atomic<uint64_t> committed = 0;
    std::atomic<int> lives = 0;  // of servers
  };

  const size_t bytes_;
  Shared* const shared_;
  const uint64_t capacity_;
  const std::string address_;
};

// The places where a server dies: the events that each call comes to, and around its commit.
constexpr std::array kEvents = {CallEvent::kRequestArrived, CallEvent::kHandlerBegins,
                                CallEvent::kHandlerEnds, CallEvent::kResponsePosted};
constexpr int kBeforeCommit = static_cast<int>(kEvents.size());
constexpr int kWithinCommit = kBeforeCommit + 1;
constexpr int kAfterCommit = kBeforeCommit + 2;
constexpr int kPlaces = kBeforeCommit + 3;

// The server's process uses them.
int place_to_die_at = 0;
std::atomic<int64_t> visits_left = 0;

void ComeTo(int place) {
  if (place == place_to_die_at && visits_left.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
}

void ComeToEvent(CallEvent event) {
  for (size_t i = 0; i < kEvents.size(); ++i) {
    if (kEvents[i] == event) ComeTo(static_cast<int>(i));
  }
}

// Sees the end of a handler whose result the server has kept.
class WatchesHandlers final : public ServerInterceptor {
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    absl::Status status = co_await next();
    ComeToEvent(CallEvent::kHandlerEnds);
    co_return status;
  }
};

class DurableCounter final : public testing::Counter::Service, public DedupeStore {
 public:
  explicit DurableCounter(const Disk& disk) : disk_(disk) {
    for (uint64_t i = 0; i < disk.committed(); ++i) {
      const RequestId& name = disk.entry(i).name;
      counts_.emplace(std::pair(name.client, name.number), i + 1);
    }
  }

  Task<absl::Status> Add(ServerContext& context, const testing::AddRequest& request,
                         testing::AddReply& reply) override {
    ComeToEvent(CallEvent::kHandlerBegins);
    if (request.call() % 2 == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
    ComeTo(kBeforeCommit);
    if (disk_.full()) co_return absl::OutOfRangeError("calls were counted twice");
    const RequestId name = *context.dedupe_id();
    const uint64_t index = disk_.committed();
    disk_.entry(index) = {.name = name, .call = request.call()};
    ComeTo(kWithinCommit);
    disk_.Commit();
    ComeTo(kAfterCommit);
    counts_.emplace(std::pair(name.client, name.number), index + 1);
    reply.set_count(index + 1);
    co_return absl::OkStatus();
  }

  Task<absl::StatusOr<std::optional<DedupeResult>>> Lookup(RequestId id) override {
    const auto found = counts_.find(std::pair(id.client, id.number));
    if (found == counts_.end()) co_return std::nullopt;
    testing::AddReply reply;
    reply.set_count(found->second);
    co_return DedupeResult{.reply = reply.SerializeAsString()};
  }

 private:
  const Disk& disk_;
  absl::flat_hash_map<std::pair<std::array<uint8_t, 16>, uint64_t>, uint64_t> counts_;
};

// A process that starts a server, and the next one when that has died, always at one address.
class ImmortalServer {
 public:
  // The constructor forks, so it must run while the test has no threads. Returns when the first
  // server listens.
  ImmortalServer(const Disk& disk, uint64_t requests) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      Supervise(disk, requests, fds[1]);
    }
    close(fds[1]);
    char c = 0;
    EXPECT_EQ(read(fds[0], &c, 1), 1) << "the server did not start";
    close(fds[0]);
  }
  ~ImmortalServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ImmortalServer(const ImmortalServer&) = delete;
  ImmortalServer& operator=(const ImmortalServer&) = delete;

 private:
  // An exception ends the process: GoogleTest would run it as a second test.
  [[noreturn]] static void Supervise(const Disk& disk, uint64_t requests, int out) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::mt19937 random(15);
    for (int life = 0;; ++life) {
      place_to_die_at = life % kPlaces;
      const auto most = static_cast<int64_t>(requests / 25 + 1);
      visits_left = most / 2 + static_cast<int64_t>(random() % most);
      const pid_t server = fork();
      if (server == 0) Serve(disk, life == 0 ? out : -1);
      disk.lives().fetch_add(1);
      waitpid(server, nullptr, 0);
    }
  }

  [[noreturn]] static void Serve(const Disk& disk, int out) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    DurableCounter counter(disk);
    auto runtime =
        RuntimeCore::Start({}, {.open = OpenerOfWatched([](CallEvent event, WatchedDevice&,
                                                           uint32_t) { ComeToEvent(event); })});
    if (!runtime.ok()) _exit(1);
    auto server = Server::Start(**runtime, {&counter},
                                {.address = disk.address(),
                                 .interceptors = {std::make_shared<WatchesHandlers>()},
                                 .dedupe = {.store = &counter}});
    if (!server.ok()) _exit(1);
    if (out >= 0 && write(out, "r", 1) != 1) _exit(1);
    while (true) pause();
  }

  pid_t pid_ = -1;
};

class DedupeProcessTest : public RuntimePair {
 protected:
  DedupeProcessTest()
      : requests_(RequestsWanted()),
        disk_(requests_ + requests_ / 10 + 100, port_.address()),
        server_process_(disk_, requests_),
        answers_(requests_) {
    client_runtime_ = StartRuntime({}, breaker_.device());
    channel_ = std::make_unique<Channel>(*client_runtime_, disk_.address());
  }
  ~DedupeProcessTest() override {
    channel_.reset();
    client_runtime_.reset();
  }

  Task<absl::Status> CallAll() {
    std::vector<uint64_t> calls(requests_);
    for (uint64_t call = 0; call < requests_; ++call) calls[call] = call;
    co_return co_await ForEach(std::move(calls), 64, [this](uint64_t call) -> Task<absl::Status> {
      co_return co_await CallUntilAnswered(call);
    });
  }

  void LoseALink() {
    constexpr std::array kEventsOfClients = {CallEvent::kRequestPosted,
                                             CallEvent::kResponseArrived};
    breaker_.Arm(kEventsOfClients[next_event_++ % kEventsOfClients.size()], 30);
  }

  Task<absl::Status> CallUntilAnswered(uint64_t call) {
    // A link is lost, too, from time to time.
    if (call % (requests_ / 20 + 1) == 0) LoseALink();
    const testing::Counter::Stub counter(*channel_);
    testing::AddRequest request;
    request.set_call(call);
    DedupeToken token;
    absl::Status status;
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const absl::StatusOr<testing::AddReply> reply = co_await counter.Add(
          request,
          {.deadline = std::chrono::seconds(30), .wait_for_ready = true, .dedupe = &token});
      status = reply.status();
      if (reply.ok()) answers_[call] = reply->count();
      if (!absl::IsUnavailable(status)) co_return status;
      ++retries_;
      VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    }
    co_return status;
  }

  const uint64_t requests_;
  const HeldPort port_;
  const Disk disk_;
  const ImmortalServer server_process_;
  LinkBreaker breaker_;
  std::vector<uint64_t> answers_;  // by call: where it was counted
  uint64_t retries_ = 0;
  size_t next_event_ = 0;
};

TEST_F(DedupeProcessTest, EachCallIsCountedOnceThoughServersAreKilledAndLinksAreLost) {
  ASSERT_EQ(Run(CallAll()), absl::OkStatus());
  breaker_.Disarm();
  EXPECT_EQ(disk_.committed(), requests_);
  std::vector<bool> counted(requests_);
  for (uint64_t i = 0; i < disk_.committed(); ++i) {
    const uint64_t call = disk_.entry(i).call;
    ASSERT_LT(call, requests_);
    ASSERT_FALSE(counted[call]) << "call " << call << " was counted twice";
    counted[call] = true;
    ASSERT_EQ(answers_[call], i + 1) << "call " << call << " got another's answer";
  }
  EXPECT_GT(disk_.lives(), kPlaces) << "the server was not killed at every place";
  EXPECT_GT(breaker_.broken(), 0);
  EXPECT_GT(retries_, 0u);
}

}  // namespace
}  // namespace verbena::internal
