// The floor of many TCP connections carries a message on each at a time between two processes, by
// system calls and through one io_uring. It leaves nothing behind for the next slice, and refuses a
// slice that it cannot run.

#include "verbena/benchmarks/floor/tcp_fan.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/forbidden_call.h"

namespace verbena::benchmarks {
namespace tcp_fan_test {

TcpFan NewFan(int connections) {
  absl::StatusOr<TcpFan> fan = TcpFan::Create(connections);
  EXPECT_TRUE(fan.ok()) << fan.status();
  return *std::move(fan);
}

std::vector<TcpWay> WaysOfThisKernel() {
  std::vector<TcpWay> ways = {TcpWay::kSockets};
  if (CheckTcpWay(TcpWay::kUring, {}).ok()) ways.push_back(TcpWay::kUring);
  return ways;
}

void ExpectNoFailureOf(pid_t server) {
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

TEST(TcpFanTest, SlicesOfEachWayCrossProcessesOneBehindTheOther) {
  const FloorSlice slices[] = {{.size = 32, .outstanding = 70, .duration_ms = 5},
                               {.size = 1, .outstanding = 1, .duration_ms = 5},
                               {.size = 4096, .outstanding = 7, .duration_ms = 5}};
  TcpFan fan = NewFan(70);
  const std::vector<TcpWay> ways = WaysOfThisKernel();
  const pid_t server = fork();
  if (server == 0) {
    for (std::size_t i = 0; i < 2 * 3 * ways.size(); ++i) {
      if (!ServeTcpFanSlice(fan).ok()) _exit(1);
    }
    _exit(0);
  }
  for (int round = 0; round < 2; ++round) {
    for (const TcpWay way : ways) {
      for (const FloorSlice& slice : slices) {
        const absl::StatusOr<FloorSample> sample = RunTcpFanSlice(fan, slice, way);
        ASSERT_TRUE(sample.ok()) << sample.status();
        EXPECT_GT(sample->calls_per_s, 0);
        EXPECT_GT(sample->p50_ns, 0);
        EXPECT_GE(sample->p99_ns, sample->p50_ns);
      }
    }
  }
  ExpectNoFailureOf(server);
}

TEST(TcpFanTest, ASliceThatCannotBeRunIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(TcpFan::Create(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(TcpFan::Create(257).status()));
  TcpFan fan = NewFan(2);
  for (const FloorSlice& slice :
       {FloorSlice{.size = 0}, FloorSlice{.size = 4097}, FloorSlice{.outstanding = 0},
        FloorSlice{.outstanding = 3}, FloorSlice{.duration_ms = 0}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunTcpFanSlice(fan, slice, TcpWay::kSockets).status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(RunTcpFanSlice(fan, {}, TcpWay::kUringZeroCopy).status()));
}

TEST(TcpFanTest, APeerThatIsGoneEndsTheSliceWithAnError) {
  for (const TcpWay way : WaysOfThisKernel()) {
    TcpFan fan = NewFan(3);
    const pid_t server = fork();
    if (server == 0) {
      for (const int fd : fan.client_fds()) close(fd);
      shutdown(fan.server_fds()[2], SHUT_RDWR);
      const absl::Status served = ServeTcpFanSlice(fan);
      // The client may have ended the slice before the server sees its own end.
      _exit(served.ok() || absl::IsUnavailable(served) ? 0 : 1);
    }
    const FloorSlice slice{.outstanding = 3, .duration_ms = 1000};
    EXPECT_TRUE(absl::IsUnavailable(RunTcpFanSlice(fan, slice, way).status()));
    ExpectNoFailureOf(server);
  }
}

TEST(TcpFanTest, ThroughAnIoUringNothingIsReceivedBySystemCallsOfSockets) {
  if (WaysOfThisKernel().size() < 2) GTEST_SKIP() << "io_uring is forbidden here";
  WithForbidden(SYS_recvfrom, EIO, [] {});
  if (IsSkipped()) return;
  TcpFan fan = NewFan(5);
  const pid_t server = fork();
  if (server == 0) _exit(Forbid(SYS_recvfrom, EIO) && ServeTcpFanSlice(fan).ok() ? 0 : 1);
  WithForbidden(SYS_recvfrom, EIO, [&] {
    const FloorSlice slice{.outstanding = 5, .duration_ms = 5};
    EXPECT_TRUE(RunTcpFanSlice(fan, slice, TcpWay::kUring).ok());
  });
  ExpectNoFailureOf(server);
}

}  // namespace tcp_fan_test
}  // namespace verbena::benchmarks
