// Coroutine frames are allocated from the heap only until a steady state is reached. Idle memory is
// bounded, and a frame may be freed on any thread, also after its owner's end.

#include "verbena/transport/coro/frame_pool.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/manual_scheduler.h"
#include "tests/transport/coro/counted_new.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace frame_pool_test {

constexpr size_t kSizes[] = {1, 100, 112, 113, 128, 1000, 4096, 8000, 8176, 8177, 100'000};

TEST(FramePoolTest, FramesAreAlignedAndApartFromEachOther) {
  std::vector<unsigned char*> frames;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    auto* frame = static_cast<unsigned char*>(AllocateFrame(kSizes[i]));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(frame) % 16, 0u);
    std::memset(frame, static_cast<int>(i + 1), kSizes[i]);
    frames.push_back(frame);
  }
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    EXPECT_EQ(frames[i][0], i + 1);
    EXPECT_EQ(frames[i][kSizes[i] - 1], i + 1);
    FreeFrame(frames[i], kSizes[i]);
  }
}

TEST(FramePoolTest, FreedFrameIsReusedBySizesOfItsClassOnly) {
  void* first = AllocateFrame(500);
  FreeFrame(first, 500);
  void* larger = AllocateFrame(2000);
  EXPECT_NE(larger, first);
  void* alike = AllocateFrame(600);
  EXPECT_EQ(alike, first);
  FreeFrame(larger, 2000);
  FreeFrame(alike, 600);
}

TEST(FramePoolTest, SteadyStateAllocatesNothing) {
  const auto use_all = [] {
    void* frames[16];
    for (size_t i = 0; i < 16; ++i) frames[i] = AllocateFrame(i * 500);
    for (size_t i = 0; i < 16; ++i) FreeFrame(frames[i], i * 500);
  };
  use_all();
  const size_t before = CountedNews();
  for (int round = 0; round < 1000; ++round) use_all();
  EXPECT_EQ(CountedNews(), before);
}

TEST(FramePoolTest, IdleMemoryIsBounded) {
  constexpr size_t kBytes = 4000;
  constexpr size_t kFrames = 16 * 1024 * 1024 / kBytes;  // twice what may be kept
  std::vector<void*> frames(kFrames);
  for (void*& frame : frames) frame = AllocateFrame(kBytes);
  const size_t before = CountedDeletes();
  for (void* frame : frames) FreeFrame(frame, kBytes);
  EXPECT_GE(CountedDeletes() - before, kFrames * 2 / 5);
}

TEST(FramePoolTest, FrameFreedOnAnotherThreadComesHome) {
  void* frame = AllocateFrame(700);
  std::thread([&] { FreeFrame(frame, 700); }).join();
  // The list of that class may hold others from earlier.
  std::vector<void*> taken;
  bool came_home = false;
  const size_t before = CountedNews();
  while (!came_home && CountedNews() - before < 64) {
    taken.push_back(AllocateFrame(700));
    came_home = taken.back() == frame;
  }
  EXPECT_TRUE(came_home);
  for (void* again : taken) FreeFrame(again, 700);
}

TEST(FramePoolTest, MemoryOnItsWayHomeIsBounded) {
  constexpr size_t kBytes = 4000;
  constexpr size_t kFrames = 1500;  // 6 MB, where 2 may wait
  std::vector<void*> frames(kFrames);
  for (void*& frame : frames) frame = AllocateFrame(kBytes);
  size_t deleted = 0;
  std::thread([&] {
    const size_t before = CountedDeletes();
    for (void* frame : frames) FreeFrame(frame, kBytes);
    deleted = CountedDeletes() - before;
  }).join();
  EXPECT_GE(deleted, kFrames / 2);
}

TEST(FramePoolTest, FramesOutliveTheThreadThatAllocatedThem) {
  std::vector<void*> frames(100);
  std::thread([&] {
    for (void*& frame : frames) frame = AllocateFrame(300);
    FreeFrame(frames.back(), 300);
    frames.pop_back();
  }).join();
  const size_t before = CountedDeletes();
  for (void* frame : frames) {
    std::memset(frame, 1, 300);
    FreeFrame(frame, 300);
  }
  // The frames, and the pool with the last of them.
  EXPECT_EQ(CountedDeletes() - before, frames.size() + 1);
}

TEST(FramePoolTest, FreeingRacesWithTheEndOfTheOwner) {
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> frames(200);
    std::atomic<bool> allocated = false;
    std::thread owner([&] {
      for (void*& frame : frames) frame = AllocateFrame(256);
      allocated = true;
      allocated.notify_all();
      for (int i = 0; i < 50; ++i) FreeFrame(AllocateFrame(256), 256);
    });
    allocated.wait(false);
    std::thread half([&] {
      for (size_t i = 0; i < 100; ++i) FreeFrame(frames[i], 256);
    });
    for (size_t i = 100; i < 200; ++i) FreeFrame(frames[i], 256);
    half.join();
    owner.join();
  }
}

TEST(FramePoolTest, ThreadLocalsDestroyedAfterThePoolMayStillFreeAndAllocate) {
  struct Late {
    void* frame = nullptr;
    ~Late() {
      FreeFrame(frame, 300);
      void* again = AllocateFrame(300);
      std::memset(again, 1, 300);
      FreeFrame(again, 300);
    }
  };
  std::thread([] {
    static thread_local Late late;  // constructed before the pool: destroyed after it
    late.frame = nullptr;
    late.frame = AllocateFrame(300);
  }).join();
}

Task<int> Leaf(int value) { co_return value; }

Task<int> Sum(int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await Leaf(i);
  co_return sum;
}

TEST(FramePoolTest, CoroutinesInSteadyStateAllocateNothing) {
  ManualScheduler scheduler;
  EXPECT_EQ(scheduler.Run(Sum(10)), 45);
  const size_t before = CountedNews();
  EXPECT_EQ(scheduler.Run(Sum(10'000)), 49'995'000);
  EXPECT_EQ(CountedNews(), before);
}

TEST(FramePoolDeathTest, UseOfAFreedFrameIsReported) {
#ifdef VERBENA_HAS_ASAN
  auto* frame = static_cast<volatile char*>(AllocateFrame(200));
  FreeFrame(const_cast<char*>(frame), 200);
  EXPECT_DEATH(frame[10] = 1, "use-after-poison");
#else
  GTEST_SKIP() << "needs AddressSanitizer";
#endif
}

TEST(FramePoolDeathTest, UseOfAFrameOnItsWayHomeIsReported) {
#ifdef VERBENA_HAS_ASAN
  auto* frame = static_cast<volatile char*>(AllocateFrame(200));
  std::thread([&] { FreeFrame(const_cast<char*>(frame), 200); }).join();
  EXPECT_DEATH(frame[10] = 1, "use-after-poison");
#else
  GTEST_SKIP() << "needs AddressSanitizer";
#endif
}

}  // namespace frame_pool_test
}  // namespace verbena::internal
