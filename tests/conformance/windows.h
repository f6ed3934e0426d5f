// WindowsTest: the fixture of the cases about type-2 memory windows.
//
// Skips them on a device that has no memory windows.

#ifndef VERBENA_TESTS_CONFORMANCE_WINDOWS_H_
#define VERBENA_TESTS_CONFORMANCE_WINDOWS_H_

#include <string>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {

inline constexpr int kRemote =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr int kUnderWindows = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
inline constexpr uint64_t kRegionBytes = 65536;
// The part of its region to which most cases bind a window.
inline constexpr uint64_t kOffset = 4096;
inline constexpr uint64_t kBytes = 8192;

// The far side owns regions and windows, the near side uses them.
class WindowsTest : public ConformanceTest {
 protected:
  std::string ReasonToSkip() const override {
    return capabilities().memory_windows ? "" : "the device has no memory windows";
  }

  static Memory Region(const End& end, int access = kUnderWindows, uint64_t bytes = kRegionBytes) {
    return Must(end.host().Register(end.pd, bytes, access));
  }
  static Mw Window(const End& end) { return Must(end.host().AllocMw(end.pd)); }

  // Binds the window under its next key. Returns the range as a peer names it.
  static Memory Bind(End& owner, Mw& window, const Memory& region, uint64_t offset = kOffset,
                     uint64_t bytes = kBytes, int access = kRemote,
                     std::source_location where = std::source_location::current()) {
    window.rkey = window.NextKey();
    owner.Post(BindWindow(100, window, window.rkey, region, offset, bytes, access), where);
    const ibv_wc bound = owner.SendCompletion(where);
    if (bound.status != IBV_WC_SUCCESS || bound.opcode != IBV_WC_BIND_MW) {
      EndCase("the window was not bound: " + testing::PrintToString(bound), where);
    }
    return {.rkey = window.rkey, .address = region.address + offset, .bytes = bytes};
  }

  static void Invalidate(End& owner, uint32_t rkey,
                         std::source_location where = std::source_location::current()) {
    owner.Post(LocalInvalidate(101, rkey), where);
    const ibv_wc done = owner.SendCompletion(where);
    if (done.status != IBV_WC_SUCCESS || done.opcode != IBV_WC_LOCAL_INV) {
      EndCase("the window was not invalidated: " + testing::PrintToString(done), where);
    }
  }

  static std::string BytesOf(const End& owner, const Memory& region) {
    return Must(owner.host().ReadBytes(region, 0, region.bytes));
  }

  // Expects that `wr`, which reaches into `region`, is refused and changes nothing, and that both
  // QPs enter ERR.
  static void ExpectRefused(QpPair& c, const Memory& region, const SendWr& wr) {
    const std::string before = BytesOf(c.far, region);
    c.near.Post(wr);
    EXPECT_THAT(c.near.SendCompletion(), Failed(IBV_WC_REM_ACCESS_ERR, wr.wr_id));
    EXPECT_EQ(c.near.State(), IBV_QPS_ERR);
    c.far.AwaitState(IBV_QPS_ERR);
    EXPECT_TRUE(BytesOf(c.far, region) == before) << "memory changed";
  }
  static void ExpectWriteRefused(QpPair& c, const Memory& region, const Memory& target,
                                 uint64_t bytes = 8) {
    c.near.Put(0, Pattern(77, bytes));
    ExpectRefused(c, region, Write(1, {c.near.memory.Piece(0, bytes)}, target, 0));
  }

  static void ExpectWriteLands(QpPair& c, const Memory& region, const Memory& target, uint32_t seed,
                               uint64_t bytes = 8) {
    c.near.Put(0, Pattern(seed, bytes));
    c.near.Post(Write(1, {c.near.memory.Piece(0, bytes)}, target, 0));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
    EXPECT_TRUE(Must(c.far.host().ReadBytes(region, target.address - region.address, bytes)) ==
                Pattern(seed, bytes));
  }

  // Expects a SEND_WITH_INV of `rkey` to fail, and no receive to succeed.
  static void ExpectSendInvalidateFails(QpPair& c, uint32_t rkey) {
    c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
    c.near.Post(SendInvalidate(1, {c.near.memory.Piece(0, 8)}, rkey));
    EXPECT_THAT(c.near.SendCompletion(), testing::Not(HasStatus(IBV_WC_SUCCESS)));
    c.far.AwaitState(IBV_QPS_ERR);
    EXPECT_THAT(Must(c.far.host().Await(c.far.recv_cq, 1, 50)),
                testing::Each(testing::Not(HasStatus(IBV_WC_SUCCESS))));
  }
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_WINDOWS_H_
