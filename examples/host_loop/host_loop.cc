// A server and its client in a program with its own event loop. An epoll loop waits for the
// runtime's executor, for a timer and for signals of the program. One thread does everything.

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>

#include "examples/hello/hello.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace {

constexpr int kGreetings = 5;
constexpr long kHeartbeatNs = 20'000'000;
// How often the executor is polled before the loop looks at the program's own descriptors.
constexpr int kTurnsPerRound = 64;

class Greeter final : public hello::Greeter::Service {
  verbena::Task<absl::Status> Hello(verbena::ServerContext&, const hello::HelloRequest& request,
                                    hello::HelloReply& reply) override {
    reply.set_text("Hello, " + request.name() + "!");
    co_return absl::OkStatus();
  }
};

verbena::Task<void> Greet(verbena::Channel& channel, bool& ended) {
  hello::Greeter::Stub greeter(channel);
  for (int i = 1; i <= kGreetings; ++i) {
    hello::HelloRequest request;
    request.set_name("host " + std::to_string(i));
    auto reply = co_await greeter.Hello(request, {.deadline = std::chrono::seconds(10)});
    std::cout << (reply.ok() ? reply->text() : reply.status().ToString()) << std::endl;
    // Verbena's timer: the program's epoll_wait() ends when it is due.
    (void)co_await verbena::Sleep(std::chrono::milliseconds(10));
  }
  ended = true;
}

// The program's own event loop.
class HostLoop {
 public:
  explicit HostLoop(verbena::Executor& executor) : executor_(executor) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
    heartbeat_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    const itimerspec every = {.it_interval = {.tv_sec = 0, .tv_nsec = kHeartbeatNs},
                              .it_value = {.tv_sec = 0, .tv_nsec = kHeartbeatNs}};
    timerfd_settime(heartbeat_, 0, &every, nullptr);
    for (const int fd : {executor.fd(), signals_, heartbeat_}) Watch(fd);
  }
  ~HostLoop() {
    for (const int fd : {heartbeat_, signals_, epoll_}) close(fd);
  }

  // Until `ended`, or a signal.
  void Run(const bool& ended) {
    while (!ended && !signalled_) {
      bool busy = true;
      for (int turn = 0; turn < kTurnsPerRound && busy; ++turn) busy = executor_.Poll();
      // Arm() is false if work has come meanwhile. After true, the descriptor becomes readable when
      // there is some.
      const bool may_sleep = !busy && !ended && executor_.Arm();
      WaitForEvents(may_sleep ? -1 : 0);
    }
  }

  int heartbeats() const { return heartbeats_; }

 private:
  void Watch(int fd) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }

  void WaitForEvents(int timeout_ms) {
    epoll_event events[8];
    const int count = epoll_wait(epoll_, events, 8, timeout_ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == signals_) signalled_ = true;
      if (events[i].data.fd == heartbeat_) {
        uint64_t expirations = 0;
        if (read(heartbeat_, &expirations, sizeof(expirations)) > 0) ++heartbeats_;
      }
      // The executor's own descriptor needs nothing but the next Poll().
    }
  }

  verbena::Executor& executor_;
  const int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  int signals_ = -1;
  int heartbeat_ = -1;
  int heartbeats_ = 0;
  bool signalled_ = false;
};

}  // namespace

int main() {
  auto runtime = verbena::Runtime::Start({.threads = false});
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  Greeter service;
  auto server = verbena::Server::Start(**runtime, {&service});
  if (!server.ok()) return std::cerr << server.status() << std::endl, 1;
  verbena::Channel channel(**runtime, (*server)->address());

  HostLoop loop((*runtime)->executor(0));
  bool ended = false;
  (*runtime)->Spawn(Greet(channel, ended));
  loop.Run(ended);
  std::cout << "The host's own timer rang " << loop.heartbeats() << " times meanwhile."
            << std::endl;
  // From here on the destructors drive the executor, on this same thread.
  return ended ? 0 : 1;
}
