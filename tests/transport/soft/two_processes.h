// Child: a process that runs the other side of a test. Side: the socket between both, over which
// they tell each other how to connect.
//
// The test must fork the child before it makes any device, since devices have threads. The child
// ends with _exit once its function returns. Join() then fails the test if an expectation failed in
// the child; a test that killed the child does not join it. The destructor kills a child that was
// not joined.

#ifndef VERBENA_TESTS_TRANSPORT_SOFT_TWO_PROCESSES_H_
#define VERBENA_TESTS_TRANSPORT_SOFT_TWO_PROCESSES_H_

#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "gtest/gtest.h"
#include "tests/transport/soft/qp_end.h"

namespace verbena::internal::soft {

// How the other side reaches a QP and its receive buffer.
struct Address {
  ibv_gid gid;
  uint32_t qpn;
  uint32_t rkey;
  uint64_t receive_buffer;
  uint16_t lid = 0;
};

class Side {
 public:
  explicit Side(int socket) : socket_(socket) {}

  // A byte that only says: I am here now.
  void Signal() { ASSERT_EQ(write(socket_, "!", 1), 1); }
  void Await() {
    char byte;
    ASSERT_EQ(read(socket_, &byte, 1), 1);
  }

  Address Exchange(const Address& ours) {
    Address theirs{};
    EXPECT_EQ(write(socket_, &ours, sizeof(ours)), static_cast<ssize_t>(sizeof(ours)));
    EXPECT_EQ(recv(socket_, &theirs, sizeof(theirs), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(theirs)));
    return theirs;
  }

  // Takes the endpoint's first QP from INIT to RTS, without waiting for the other side to get
  // there.
  Address Connect(QpEnd& endpoint) {
    const Address theirs =
        Exchange({.gid = endpoint.gid(),
                  .qpn = endpoint.qp()->qp_num,
                  .rkey = endpoint.mr()->rkey,
                  .receive_buffer = reinterpret_cast<uint64_t>(endpoint.receive_buffer()),
                  .lid = endpoint.lid()});
    EXPECT_TRUE(endpoint.ToRtr(endpoint.qp(), theirs.gid, theirs.qpn, theirs.lid).ok());
    EXPECT_TRUE(endpoint.ToRts(endpoint.qp()).ok());
    return theirs;
  }

 private:
  int socket_;
};

class Child {
 public:
  explicit Child(const std::function<void(Side&)>& run) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(sockets[0]);
      Side side(sockets[1]);
      // An exception ends the child here: GoogleTest would run it as a second test.
      [&]() noexcept { run(side); }();
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(sockets[1]);
    socket_ = sockets[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) Kill();
    close(socket_);
  }

  Side side() { return Side(socket_); }
  pid_t pid() const { return pid_; }

  void Join() {
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child failed: " << status;
  }
  // Returns once the process is dead, so that what it does is over.
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Returns once the process has stopped.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void Continue() { kill(pid_, SIGCONT); }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

// Polls until one completion comes.
inline ibv_wc AwaitByPolling(ibv_cq* cq) {
  ibv_wc wc;
  while (ibv_poll_cq(cq, 1, &wc) == 0) sched_yield();
  return wc;
}

// The same, but fails the test after 20 seconds without a completion.
inline ibv_wc AwaitInTime(ibv_cq* cq) {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  ibv_wc wc{};
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
    if (std::chrono::steady_clock::now() > late) {
      ADD_FAILURE() << "no completion came";
      wc.status = IBV_WC_GENERAL_ERR;
      return wc;
    }
    sched_yield();
  }
  return wc;
}

// WRITEs `bytes` of 'w' to the other side's buffer, over and over. Returns the status of the WRITE
// that failed. It does not yield: it would do so between two copies, and a process on the same core
// would never see it inside one.
inline ibv_wc_status WriteUntilItFails(QpEnd& endpoint, const Address& theirs, uint32_t bytes) {
  std::memset(endpoint.send_buffer(), 'w', bytes);
  ibv_wc_status status = IBV_WC_SUCCESS;
  while (status == IBV_WC_SUCCESS) {
    const int error = endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 0, endpoint.SendSge(0, bytes),
                                            theirs.receive_buffer, theirs.rkey);
    EXPECT_EQ(error, 0);
    if (error != 0) return IBV_WC_GENERAL_ERR;
    ibv_wc wc{};
    while (ibv_poll_cq(endpoint.cq(), 1, &wc) == 0) {
    }
    status = wc.status;
  }
  return status;
}

// Sleeps until one completion comes, in the way that verbs prescribe. Fails the test after a minute
// without an event.
inline ibv_wc AwaitByEvents(QpEnd& endpoint) {
  constexpr int kPatienceMs = 60'000;
  ibv_wc wc{};
  while (true) {
    if (ibv_poll_cq(endpoint.cq(), 1, &wc) == 1) return wc;
    EXPECT_EQ(ibv_req_notify_cq(endpoint.cq(), 0), 0);
    if (ibv_poll_cq(endpoint.cq(), 1, &wc) == 1) return wc;
    pollfd waiting{.fd = endpoint.channel()->fd, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "a wake-up was lost";
      wc.status = IBV_WC_GENERAL_ERR;
      return wc;
    }
    while (endpoint.device().GetCqEvent(endpoint.channel()).ok()) {
      endpoint.device().AckCqEvents(endpoint.cq(), 1);
    }
  }
}

}  // namespace verbena::internal::soft

#endif  // VERBENA_TESTS_TRANSPORT_SOFT_TWO_PROCESSES_H_
