// The floor of copies runs in both directions between two processes, in every size and depth, and
// refuses a slice that does not fit its memory. Stamps of all words show each changed word; stamps
// of pages show a change in the first word of a page.

#include "verbena/benchmarks/floor/copy_floor.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/harness/stamps.h"

namespace verbena::benchmarks {
namespace copy_floor_test {

constexpr int kMiB = 1 << 20;

CopyFloor NewFloor(std::size_t bytes) {
  absl::StatusOr<CopyFloor> floor = CopyFloor::Create(bytes);
  EXPECT_TRUE(floor.ok()) << floor.status();
  return *std::move(floor);
}

void ExpectSlice(CopyFloor& floor, const CopySlice& slice) {
  absl::StatusOr<CopySample> sample = RunCopySlice(floor, slice);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_GT(sample->copies_per_s, 0);
  EXPECT_GT(sample->p50_ns, 0);
  EXPECT_GE(sample->p99_ns, sample->p50_ns);
}

TEST(CopyFloorTest, BothDirectionsCrossProcessesInEverySizeAndDepth) {
  const CopySlice slices[] = {
      {.direction = CopyDirection::kToClient, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = 8, .outstanding = 1, .duration_ms = 5},
      {.direction = CopyDirection::kToClient, .size = 12296, .outstanding = 3, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = 12296, .outstanding = 3, .duration_ms = 5},
      {.direction = CopyDirection::kToClient, .size = kMiB, .outstanding = 4, .duration_ms = 5},
      {.direction = CopyDirection::kToServer, .size = kMiB, .outstanding = 4, .duration_ms = 5}};
  CopyFloor floor = NewFloor(std::size_t{4} * kMiB);
  const pid_t server = fork();
  if (server == 0) {
    for (std::size_t i = 0; i < std::size(slices); ++i) {
      if (!ServeCopySlice(floor).ok()) _exit(1);
    }
    _exit(0);
  }
  for (const CopySlice& slice : slices) ExpectSlice(floor, slice);
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(status, 0);
}

TEST(CopyFloorTest, ASliceThatDoesNotFitIsRefused) {
  CopyFloor floor = NewFloor(kMiB);
  for (const CopySlice& slice :
       {CopySlice{.size = 0}, CopySlice{.size = 12}, CopySlice{.size = 2 * kMiB},
        CopySlice{.size = kMiB, .outstanding = 2}, CopySlice{.outstanding = 0},
        CopySlice{.duration_ms = 0}}) {
    EXPECT_EQ(RunCopySlice(floor, slice).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(StampsTest, AWordThatChangedIsSeenByWhoLooksAtAllAndAPageThatDidNotComeByAll) {
  std::vector<char> data(3 * 4096 + 8);
  WriteStamps(data.data(), data.size(), 7, Stamps::kAllWords);
  EXPECT_TRUE(HasStamps(data.data(), data.size(), 7, Stamps::kAllWords));
  EXPECT_TRUE(HasStamps(data.data(), data.size(), 7, Stamps::kPages));
  EXPECT_FALSE(HasStamps(data.data(), data.size(), 8, Stamps::kPages));
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, std::size_t{3 * 4096}}) {
    std::vector<char> other = data;
    other[offset + 3] ^= 1;
    EXPECT_FALSE(HasStamps(other.data(), other.size(), 7, Stamps::kPages)) << offset;
  }
  data[4096 + 100] ^= 1;
  EXPECT_TRUE(HasStamps(data.data(), data.size(), 7, Stamps::kPages));
  EXPECT_FALSE(HasStamps(data.data(), data.size(), 7, Stamps::kAllWords));
}

TEST(StampsTest, StampsOfPagesAreThoseOfAllWords) {
  std::vector<char> data(2 * 4096);
  WriteStamps(data.data(), data.size(), 1, Stamps::kAllWords);
  WriteStamps(data.data(), data.size(), 2, Stamps::kPages);
  EXPECT_TRUE(HasStamps(data.data(), data.size(), 2, Stamps::kPages));
  EXPECT_FALSE(HasStamps(data.data(), data.size(), 1, Stamps::kPages));
}

}  // namespace copy_floor_test
}  // namespace verbena::benchmarks
