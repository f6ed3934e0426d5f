// Waking a peer's engine costs one system call for many messages. A process that is stopped in the
// middle of a wake-up delays the messages of no other. Only a device of our own process is taken
// for one, whatever the kernel says of the others' process ids. Each arena has a number of its own.

#include "verbena/transport/soft/peer.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

namespace verbena::internal::soft {
namespace peer_test {

// How often the engine was woken since the last look.
uint64_t Wakings(int fd) {
  eventfd_t count = 0;
  return eventfd_read(fd, &count) == 0 ? count : 0;
}

class WakeTest : public testing::Test {
 protected:
  WakeTest() { control_->doorbell.Take(); }

  std::unique_ptr<Peer> NewPeer(int doorbell) {
    return std::make_unique<Peer>(
        PeerParts{.controls = control_.get(), .tables = nullptr, .doorbell = UniqueFd(doorbell)});
  }

  // Belongs to a CQ that nobody polls.
  std::unique_ptr<CqControl> control_ = std::make_unique<CqControl>();
};

TEST_F(WakeTest, OneWakeUpServesManyMessagesUntilTheEngineHasTakenTheDoorbell) {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::unique_ptr<Peer> peer = NewPeer(fd);
  for (int i = 0; i < 3; ++i) peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();
  EXPECT_FALSE(control_->doorbell.IsRung());
  for (int i = 0; i < 3; ++i) peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
}

// Between ringing and waking, that is. Without this the engine sleeps on, with the messages of all
// other peers, until the stopped one goes on.
TEST_F(WakeTest, APeerThatIsStoppedWhileItWakesTheEngineHoldsUpNoOther) {
  // Its write blocks, since the count is full.
  const int stuck = eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(eventfd_write(stuck, UINT64_MAX - 1), 0);
  const std::unique_ptr<Peer> stopped = NewPeer(stuck);
  std::thread waker([&] { stopped->Wake(*control_); });
  while (!control_->doorbell.IsRung()) sched_yield();

  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const std::unique_ptr<Peer> peer = NewPeer(fd);
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
  control_->doorbell.Take();

  // Goes on, and says that the engine was woken, which has taken the doorbell twice since.
  eventfd_t count = 0;
  ASSERT_EQ(eventfd_read(stuck, &count), 0);
  waker.join();
  peer->Wake(*control_);
  EXPECT_EQ(Wakings(fd), 1u);
}

// A place in memory of this process's own.
MemoryLocation PlaceOf(void* memory) {
  return {.address = reinterpret_cast<uint64_t>(memory), .arena = 0, .arena_offset = 0};
}

// The address that it names is one of ours, too.
TEST(PeerMemoryTest, PeerWhoseProcessIsNotHeldIsReachedInItsArenasAlone) {
  uint64_t ours = 1;
  uint64_t other = 2;
  // The kernel would copy: this pid is there, if not the peer's.
  Peer peer(PeerParts{.pid = getpid(), .pid_fd = {}, .least_by_kernel = 0});
  EXPECT_EQ(peer.Map(PlaceOf(&ours), sizeof(ours)), nullptr);
  EXPECT_FALSE(peer.CanReach(PlaceOf(&ours), sizeof(ours)));
  EXPECT_FALSE(peer.CopyByKernel(/*write=*/true, &other, PlaceOf(&ours), sizeof(ours)));
  EXPECT_FALSE(peer.CopyByKernel(/*write=*/false, &other, PlaceOf(&ours), sizeof(ours)));
  EXPECT_EQ(ours, 1u);
  EXPECT_EQ(other, 2u);
  EXPECT_FALSE(peer.ProcessEnded());

  SharedRegion arena = SharedRegion::Create("peer_test", 4096).value();
  std::byte* const mapped = arena.data();
  ASSERT_TRUE(peer.AddArena(3, std::move(arena)).ok());
  MemoryLocation inside = PlaceOf(&ours);
  inside.arena = 3;
  inside.arena_offset = 4088;
  EXPECT_EQ(peer.Map(inside, 8), mapped + 4088);
  EXPECT_TRUE(peer.CanReach(inside, 8));
  EXPECT_EQ(peer.Map(inside, 9), nullptr);
  EXPECT_FALSE(peer.CanReach(inside, 9));
}

TEST(PeerMemoryDeathTest, AnArenaIsNotPutWhereAnotherOneIsMapped) {
  Peer peer(PeerParts{});
  ASSERT_TRUE(peer.AddArena(3, SharedRegion::Create("peer_test", 4096).value()).ok());
  SharedRegion next = SharedRegion::Create("peer_test", 4096).value();
  EXPECT_DEATH((void)peer.AddArena(3 + kMaxArenas, std::move(next)),
               "arena 67 comes where arena 3 is mapped");
}

TEST(ArenasTest, NoTwoHaveTheSameNumberAndLaterOnesOfAPlaceHaveGreaterOnes) {
  Arenas arenas(/*shared=*/true);
  std::set<uint32_t> seen;
  uint32_t last[kMaxArenas] = {};
  for (uint32_t i = 0; i < 3 * kMaxArenas; ++i) {
    const std::shared_ptr<const SharedArena> arena = arenas.Allocate(4096).value();
    EXPECT_TRUE(seen.insert(arena->id).second) << arena->id;
    const uint32_t place = arena->id % kMaxArenas;
    EXPECT_NE(place, 0u);
    EXPECT_LT(std::exchange(last[place], arena->id), arena->id);
    EXPECT_EQ(arenas.Remove(arena->region.data()), arena);
  }
}

TEST(PeerMemoryTest, MemoryThatIsNotMappedThereIsNoReasonToGiveUpThePeer) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (process < 0) GTEST_SKIP() << "this kernel, or this container, has no pidfd_open";
  Peer peer(PeerParts{.pid = getpid(), .pid_fd = UniqueFd(process), .least_by_kernel = 0});
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const gone = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  uint64_t ours = 1;
  uint64_t other = 2;
  EXPECT_FALSE(peer.CopyByKernel(/*write=*/true, &other, PlaceOf(gone), sizeof(other)));
  EXPECT_FALSE(peer.CopyByKernel(/*write=*/false, &other, PlaceOf(gone), sizeof(other)));
  EXPECT_TRUE(peer.CanReach(PlaceOf(&ours), sizeof(ours)));
  EXPECT_TRUE(peer.CopyByKernel(/*write=*/true, &other, PlaceOf(&ours), sizeof(ours)));
  EXPECT_EQ(ours, 2u);
  munmap(gone, page);
}

}  // namespace peer_test
}  // namespace verbena::internal::soft
