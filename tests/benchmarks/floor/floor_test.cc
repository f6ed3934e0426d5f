// Messages of every size and depth cross the floor's mapping between threads and between processes.
// A slice that does not fit and a descriptor of another kind are refused.

#include "verbena/benchmarks/floor/floor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {
namespace floor_test {

FloorMapping NewMapping() {
  absl::StatusOr<FloorMapping> mapping = FloorMapping::Create();
  EXPECT_TRUE(mapping.ok()) << mapping.status();
  return *std::move(mapping);
}

TEST(FloorTest, EverySizeAndDepthComesBackRight) {
  FloorMapping client = NewMapping();
  absl::StatusOr<FloorMapping> server = FloorMapping::Attach(client.fd());
  ASSERT_TRUE(server.ok()) << server.status();
  const FloorSlice slices[] = {
      {.size = 1, .outstanding = 1, .duration_ms = 5},
      {.size = 60, .outstanding = 1, .duration_ms = 5},
      {.size = 61, .outstanding = 3, .duration_ms = 5},
      {.size = kMaxFloorSize, .outstanding = kMaxFloorOutstanding, .duration_ms = 20}};
  std::thread thread([&] {
    for (std::size_t i = 0; i < std::size(slices); ++i) {
      EXPECT_EQ(ServeFloorSlice(*server), absl::OkStatus());
    }
  });
  for (const FloorSlice& slice : slices) {
    absl::StatusOr<FloorSample> sample = RunFloorSlice(client, slice);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_GT(sample->calls_per_s, 0);
    EXPECT_GT(sample->p50_ns, 0);
    EXPECT_GE(sample->p99_ns, sample->p50_ns);
  }
  thread.join();
}

TEST(FloorTest, ASliceCrossesProcesses) {
  FloorMapping mapping = NewMapping();
  const pid_t server = fork();
  if (server == 0) _exit(ServeFloorSlice(mapping).ok() ? 0 : 1);
  absl::StatusOr<FloorSample> sample =
      RunFloorSlice(mapping, {.size = 32, .outstanding = 4, .duration_ms = 5});
  EXPECT_TRUE(sample.ok()) << sample.status();
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

TEST(FloorTest, AServerIsReadyOnlyBetweenEnteringAndTheSlicesEnd) {
  FloorMapping mapping = NewMapping();
  EXPECT_FALSE(FloorServerReady(mapping));
  std::thread server([&] { EXPECT_EQ(ServeFloorSlice(mapping), absl::OkStatus()); });
  while (!FloorServerReady(mapping)) std::this_thread::yield();
  EXPECT_TRUE(RunFloorSlice(mapping, {.duration_ms = 1}).ok());
  server.join();
  EXPECT_FALSE(FloorServerReady(mapping));
}

TEST(FloorTest, ASliceThatDoesNotFitIsRefused) {
  FloorMapping mapping = NewMapping();
  for (const FloorSlice& slice : {FloorSlice{.size = 0}, FloorSlice{.size = kMaxFloorSize + 1},
                                  FloorSlice{.outstanding = kMaxFloorOutstanding + 1},
                                  FloorSlice{.outstanding = -1}, FloorSlice{.duration_ms = 0}}) {
    EXPECT_EQ(RunFloorSlice(mapping, slice).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(FloorTest, ADescriptorOfSomethingElseIsRefused) {
  EXPECT_FALSE(FloorMapping::Attach(-1).ok());
  const int null = open("/dev/null", O_RDWR);
  EXPECT_EQ(FloorMapping::Attach(null).status().code(), absl::StatusCode::kInvalidArgument);
  close(null);
}

}  // namespace floor_test
}  // namespace verbena::benchmarks
