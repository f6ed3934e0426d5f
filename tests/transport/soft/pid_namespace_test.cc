// Payloads arrive whole between processes that live in different PID namespaces, whichever side
// executes the operations. Memory that both map is copied there and then, and no other memory is
// touched by a process that does not see the other's process id. A process that has ended is not
// taken for the next one of its number.

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/soft/exchanges.h"
#include "tests/transport/soft/pid_namespaces.h"
#include "tests/transport/soft/qp_end.h"
#include "tests/transport/soft/two_processes.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/copies.h"

namespace verbena::internal::soft {
namespace pid_namespace_test {

constexpr uint32_t kBytes = (1 << 20) + 123;

void Fill(std::byte* bytes, int seed) {
  for (uint32_t i = 0; i < kBytes; ++i) bytes[i] = std::byte(i * 7 + (i >> 8) + seed);
}

// How many of the first `count` bytes are not as Fill made them.
uint32_t Wrong(const std::byte* bytes, uint32_t count, int seed) {
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < count; ++i) {
    wrong += bytes[i] != std::byte(i * 7 + (i >> 8) + seed) ? 1 : 0;
  }
  return wrong;
}

// Returns once both sides are here.
void Meet(Side& side) {
  side.Signal();
  side.Await();
}

// One side: READs the other side's buffer, then WRITEs it. Returns what it copied itself.
CopiedBytes Exchange(Side& side, bool shared_arena, int ours, int other) {
  Process process({.with_channel = true, .bytes = 2 * (kBytes + 5), .shared_arena = shared_arena});
  QpEnd& endpoint = process.endpoint;
  Fill(endpoint.receive_buffer(), ours);
  const Address theirs = side.Connect(endpoint);
  // The first operation takes the ring if it is faster than the connection.
  EXPECT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_READ, 0, endpoint.SendSge(0, 8),
                                  theirs.receive_buffer, theirs.rkey),
            0);
  EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
  const CopiedBytes before = process.device->copied_bytes();
  Meet(side);
  for (uint32_t bytes : {uint32_t{5000}, kBytes}) {
    EXPECT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_READ, 1, endpoint.SendSge(0, bytes),
                                    theirs.receive_buffer, theirs.rkey),
              0);
    EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
    EXPECT_EQ(Wrong(endpoint.send_buffer(), bytes, other), 0u) << "of " << bytes << " read";
  }
  Meet(side);
  for (uint32_t bytes : {uint32_t{5000}, kBytes}) {
    const int seed = ours + static_cast<int>(bytes);
    Fill(endpoint.send_buffer(), seed);
    EXPECT_EQ(endpoint.PostOneSided(IBV_WR_RDMA_WRITE, 2, endpoint.SendSge(0, bytes),
                                    theirs.receive_buffer, theirs.rkey),
              0);
    EXPECT_EQ(AwaitByEvents(endpoint).status, IBV_WC_SUCCESS);
    Meet(side);
    // The engine may have stored the bytes: as a poll would, this takes what it did before.
    ibv_wc none;
    EXPECT_EQ(ibv_poll_cq(endpoint.cq(), 1, &none), 0);
    EXPECT_EQ(Wrong(endpoint.receive_buffer(), bytes, other + static_cast<int>(bytes)), 0u)
        << "of " << bytes << " written by the other side";
    Meet(side);
  }
  return process.device->copied_bytes() - before;
}

// The finding of a process, which it tells by its exit code.
enum Finding : int { kRight, kWrong, kUnknown };

// Forks by a system call, so that the child has that process id. -1 if the kernel refuses.
pid_t ForkAs(const pid_t& number) {
  // clone_args of linux/sched.h: the fifth is the signal of its end, the last two are set_tid.
  const uint64_t arguments[] = {0, 0, 0, 0, SIGCHLD, 0, 0, 0, reinterpret_cast<uintptr_t>(&number),
                                1};
  return static_cast<pid_t>(syscall(SYS_clone3, arguments, sizeof(arguments)));
}

// Whether the kernel tells who has connected by more than a number: since Linux 6.5.
bool TellsThePeersDescriptor(int socket) {
  constexpr int kPeerPidFd = 77;  // SO_PEERPIDFD
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  const bool told = getsockopt(socket, SOL_SOCKET, kPeerPidFd, &fd, &bytes) == 0;
  if (told) close(fd);
  return told || errno != ENOPROTOOPT;
}

// Whether ControlSocket takes a process that has connected and ended for another one, which has its
// number by now. For the first process of a PID namespace.
Finding AcceptAfterTheEnd() {
  const DeviceAddress address{.gid = NewGid(/*predictable=*/false)};
  const absl::StatusOr<UniqueFd> listener = ControlSocket::Listen(address);
  if (!listener.ok()) return kWrong;
  const pid_t ended = fork();
  if (ended == 0) _exit(ControlSocket::Connect(address).ok() ? 0 : 1);
  int status = 0;
  if (ended < 0 || waitpid(ended, &status, 0) != ended || status != 0) return kWrong;
  const pid_t another = ForkAs(ended);
  // The child ends with its namespace.
  while (another == 0) pause();
  if (another != ended) return kUnknown;
  const absl::StatusOr<std::unique_ptr<ControlSocket>> accepted =
      ControlSocket::Accept(listener->get());
  if (!accepted.ok()) return kWrong;
  if (!TellsThePeersDescriptor((*accepted)->fd())) return kUnknown;
  if ((*accepted)->pid_fd() < 0) return kRight;
  pollfd descriptor{.fd = (*accepted)->pid_fd(), .events = POLLIN, .revents = 0};
  return poll(&descriptor, 1, /*timeout=*/0) == 1 ? kRight : kWrong;
}

// Runs `find` as the first process of a new PID namespace.
Finding FindInNewPidNamespace(Finding (*find)()) {
  const auto run = [find]() noexcept -> int {
    if (!EnterNewPidNamespace()) return kUnknown;
    const pid_t first = fork();
    if (first == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(find());
    }
    int status = 0;
    if (first < 0 || waitpid(first, &status, 0) != first) return kUnknown;
    return WIFEXITED(status) ? WEXITSTATUS(status) : kWrong;
  };
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kWrong;
  return static_cast<Finding>(WEXITSTATUS(status));
}

class PidNamespaceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!MayMakePidNamespaces()) GTEST_SKIP() << "no PID namespaces may be made here";
  }
};

TEST_F(PidNamespaceTest, PayloadsCrossInMemoryThatBothMap) {
  Child child(InNewPidNamespace([](Side& side) {
    const CopiedBytes copied = Exchange(side, /*shared_arena=*/true, 1, 2);
    EXPECT_EQ(copied.direct_read_bytes, kBytes + 5000u);
    EXPECT_EQ(copied.direct_write_bytes, kBytes + 5000u);
  }));
  Side side = child.side();
  Exchange(side, /*shared_arena=*/true, 2, 1);
  child.Join();
}

TEST_F(PidNamespaceTest, PayloadsCrossInMemoryThatOnlyItsOwnerMaps) {
  Child child(InNewPidNamespace([](Side& side) {
    const CopiedBytes copied = Exchange(side, /*shared_arena=*/false, 1, 2);
    EXPECT_EQ(copied.direct_read_bytes + copied.direct_write_bytes, 0u);
    EXPECT_EQ(copied.kernel_read_bytes + copied.kernel_write_bytes, 0u);
  }));
  Side side = child.side();
  Exchange(side, /*shared_arena=*/false, 2, 1);
  child.Join();
}

// As in two containers of one network: each is given the other's process id as 0.
TEST_F(PidNamespaceTest, PayloadsCrossBetweenProcessesThatDoNotSeeEachOther) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  // Nobody else holds a process's socket, so that the other side notices if it dies.
  const auto run = [&](int socket, int others, int ours, int other) {
    return [=](Side&) {
      close(others);
      Side side(socket);
      InNewPidNamespace([=](Side& to) { Exchange(to, /*shared_arena=*/false, ours, other); })(side);
    };
  };
  Child one(run(sockets[0], sockets[1], 1, 2));
  Child two(run(sockets[1], sockets[0], 2, 1));
  close(sockets[0]);
  close(sockets[1]);
  one.Join();
  two.Join();
}

TEST_F(PidNamespaceTest, AProcessThatHasEndedIsNotTakenForTheNextOfItsNumber) {
  const Finding found = FindInNewPidNamespace(AcceptAfterTheEnd);
  if (found == kUnknown)
    GTEST_SKIP() << "this kernel gives a process no number that it is asked "
                    "for, or knows no SO_PEERPIDFD";
  EXPECT_EQ(found, kRight);
}

}  // namespace pid_namespace_test
}  // namespace verbena::internal::soft
