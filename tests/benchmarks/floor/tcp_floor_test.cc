// The floor over TCP carries messages and payloads in both directions between two processes, by
// system calls and in each way through io_uring, in every size and depth. It leaves nothing behind
// for the next slice, and refuses a slice that it cannot run.

#include "verbena/benchmarks/floor/tcp_floor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/forbidden_call.h"

namespace verbena::benchmarks {
namespace tcp_floor_test {

using testing::HasSubstr;

constexpr int kMiB = 1 << 20;

TcpFloor NewFloor() {
  absl::StatusOr<TcpFloor> floor = TcpFloor::Create();
  EXPECT_TRUE(floor.ok()) << floor.status();
  return *std::move(floor);
}

template <typename Sample>
void ExpectFigures(const absl::StatusOr<Sample>& sample, double per_second) {
  EXPECT_GT(per_second, 0);
  EXPECT_GT(sample->p50_ns, 0);
  EXPECT_GE(sample->p99_ns, sample->p50_ns);
}

std::vector<TcpWay> WaysOfThisKernel() {
  std::vector<TcpWay> ways;
  for (const TcpWay way :
       {TcpWay::kSockets, TcpWay::kUring, TcpWay::kUringMultishot, TcpWay::kUringZeroCopy}) {
    const absl::Status can = CheckTcpWay(way, {.size = kMiB, .outstanding = 4});
    // Left out, as by the benchmarks.
    if (!can.ok()) std::cout << "way " << static_cast<int>(way) << ": " << can << std::endl;
    if (can.ok()) ways.push_back(way);
  }
  return ways;
}

TEST(TcpFloorTest, SlicesOfEachKindCrossProcessesOneBehindTheOther) {
  // Messages of 1000 bytes do not end where buffers of 64 KiB do.
  const FloorSlice messages[] = {{.size = 32, .outstanding = 1, .duration_ms = 5},
                                 {.size = 1, .outstanding = 512, .duration_ms = 5},
                                 {.size = 1000, .outstanding = 512, .duration_ms = 5}};
  const CopySlice payloads[] = {
      {.direction = CopyDirection::kToClient, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToClient, .size = kMiB, .outstanding = 4, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = kMiB, .outstanding = 4, .duration_ms = 5}};
  const std::vector<TcpWay> ways = WaysOfThisKernel();
  TcpFloor floor = NewFloor();
  const pid_t server = fork();
  if (server == 0) {
    for (std::size_t i = 0; i < 7 * ways.size(); ++i) {
      if (!ServeTcpSlice(floor).ok()) _exit(1);
    }
    _exit(0);
  }
  for (const TcpWay way : ways) {
    SCOPED_TRACE(testing::Message() << "way " << static_cast<int>(way));
    for (const FloorSlice& slice : messages) {
      const absl::StatusOr<FloorSample> sample = RunTcpSlice(floor, slice, way);
      ASSERT_TRUE(sample.ok()) << sample.status();
      ExpectFigures(sample, sample->calls_per_s);
    }
    for (const CopySlice& slice : payloads) {
      const absl::StatusOr<CopySample> sample = RunTcpCopySlice(floor, slice, way);
      ASSERT_TRUE(sample.ok()) << sample.status();
      ExpectFigures(sample, sample->copies_per_s);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

TEST(TcpFloorTest, ASliceThatCannotBeRunIsRefused) {
  TcpFloor floor = NewFloor();
  for (const FloorSlice& slice :
       {FloorSlice{.size = 0}, FloorSlice{.size = 65537}, FloorSlice{.outstanding = 0},
        FloorSlice{.outstanding = 1025}, FloorSlice{.duration_ms = 0}}) {
    EXPECT_EQ(RunTcpSlice(floor, slice).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const CopySlice& slice : {CopySlice{.size = 4}, CopySlice{.size = 12},
                                 CopySlice{.size = (1 << 26) + 8}, CopySlice{.outstanding = 0}}) {
    EXPECT_EQ(RunTcpCopySlice(floor, slice).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(TcpFloorTest, APeerThatIsGoneEndsTheSliceWithAnError) {
  for (const TcpWay way : WaysOfThisKernel()) {
    SCOPED_TRACE(testing::Message() << "way " << static_cast<int>(way));
    TcpFloor floor = NewFloor();
    const pid_t server = fork();
    if (server == 0) {
      close(floor.client_fd());
      shutdown(floor.server_fd(), SHUT_RDWR);
      const absl::Status served = ServeTcpSlice(floor);
      // The client may have ended the slice before the server sees its own end.
      _exit(served.ok() || absl::IsUnavailable(served) ? 0 : 1);
    }
    EXPECT_TRUE(absl::IsUnavailable(RunTcpSlice(floor, {.duration_ms = 1000}, way).status()));
    int status = 0;
    ASSERT_EQ(waitpid(server, &status, 0), server);
    EXPECT_EQ(status, 0);
  }
}

TEST(TcpFloorTest, ThroughAnIoUringNoBytesGoBySystemCallsOfSockets) {
  WithForbidden(SYS_sendto, EIO, [] {});
  if (IsSkipped()) return;
  const auto forbid = [] { return Forbid(SYS_sendto, EIO) && Forbid(SYS_recvfrom, EIO); };
  for (const TcpWay way : WaysOfThisKernel()) {
    if (way == TcpWay::kSockets) continue;
    SCOPED_TRACE(testing::Message() << "way " << static_cast<int>(way));
    TcpFloor floor = NewFloor();
    const pid_t server = fork();
    if (server == 0) {
      if (!forbid()) _exit(2);
      for (int i = 0; i < 3; ++i) {
        if (!ServeTcpSlice(floor).ok()) _exit(1);
      }
      _exit(0);
    }
    WithForbidden(SYS_sendto, EIO, [&] {
      ASSERT_TRUE(forbid());
      EXPECT_TRUE(RunTcpSlice(floor, {.duration_ms = 5}, way).ok());
      for (const CopyDirection direction : {CopyDirection::kToClient, CopyDirection::kToServer}) {
        EXPECT_TRUE(
            RunTcpCopySlice(floor, {.direction = direction, .size = kMiB, .duration_ms = 5}, way)
                .ok());
      }
    });
    int status = 0;
    ASSERT_EQ(waitpid(server, &status, 0), server);
    EXPECT_EQ(status, 0);
  }
}

TEST(TcpFloorTest, AWayThatThisMachineForbidsIsRefusedWithTheReason) {
  const CopySlice slice{.size = 4096};
  const auto status_of = [&](TcpWay way) { return CheckTcpWay(way, slice); };
  WithForbidden(SYS_io_uring_setup, EPERM, [&] {
    EXPECT_TRUE(status_of(TcpWay::kSockets).ok());
    EXPECT_EQ(status_of(TcpWay::kUring).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(status_of(TcpWay::kUring).message(), HasSubstr("kernel.io_uring_disabled"));
  });
  WithForbidden(SYS_io_uring_setup, ENOSYS, [&] {
    EXPECT_EQ(status_of(TcpWay::kUringMultishot).code(), absl::StatusCode::kUnimplemented);
  });
  WithForbidden(SYS_io_uring_register, ENOMEM, [&] {
    const absl::Status status = status_of(TcpWay::kUringZeroCopy);
    // Without io_uring the kernel does not come so far.
    if (!absl::IsPermissionDenied(status)) {
      EXPECT_TRUE(absl::IsResourceExhausted(status));
    }
  });
}

}  // namespace tcp_floor_test
}  // namespace verbena::benchmarks
