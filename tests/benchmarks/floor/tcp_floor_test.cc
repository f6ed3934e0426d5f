// The floor over TCP carries messages and payloads in both directions between two processes, in
// every size and depth, leaves nothing behind for the next slice, and refuses a slice that it
// cannot run.

#include "verbena/benchmarks/floor/tcp_floor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {
namespace {

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

TEST(TcpFloorTest, SlicesOfEachKindCrossProcessesOneBehindTheOther) {
  const FloorSlice messages[] = {{.size = 32, .outstanding = 1, .duration_ms = 5},
                                 {.size = 1, .outstanding = 512, .duration_ms = 5},
                                 {.size = 1024, .outstanding = 512, .duration_ms = 5}};
  const CopySlice payloads[] = {
      {.direction = CopyDirection::kToClient, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToClient, .size = kMiB, .outstanding = 4, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = kMiB, .outstanding = 4, .duration_ms = 5}};
  TcpFloor floor = NewFloor();
  const pid_t server = fork();
  if (server == 0) {
    for (int i = 0; i < 7; ++i) {
      if (!ServeTcpSlice(floor).ok()) _exit(1);
    }
    _exit(0);
  }
  for (const FloorSlice& slice : messages) {
    const absl::StatusOr<FloorSample> sample = RunTcpSlice(floor, slice);
    ASSERT_TRUE(sample.ok()) << sample.status();
    ExpectFigures(sample, sample->calls_per_s);
  }
  for (const CopySlice& slice : payloads) {
    const absl::StatusOr<CopySample> sample = RunTcpCopySlice(floor, slice);
    ASSERT_TRUE(sample.ok()) << sample.status();
    ExpectFigures(sample, sample->copies_per_s);
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
  TcpFloor floor = NewFloor();
  const pid_t server = fork();
  if (server == 0) {
    close(floor.client_fd());
    shutdown(floor.server_fd(), SHUT_RDWR);
    _exit(ServeTcpSlice(floor).ok() ? 1 : 0);
  }
  EXPECT_TRUE(absl::IsUnavailable(RunTcpSlice(floor, {.duration_ms = 1000}).status()));
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace verbena::benchmarks
