// A type-2 memory window opens its own range, with its own access, to its own QP, and nothing else.
// A binding that is not allowed fails.

#include <functional>
#include <optional>

#include "tests/conformance/windows.h"

namespace verbena::internal::conformance {
namespace {

class Windows : public WindowsTest {};

TEST_P(Windows, ABoundWindowIsWrittenReadAndChangedByItsPeer) {
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{5000}, kBytes}) {
    SCOPED_TRACE(bytes);
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region);
    ExpectWriteLands(c, region, target, 3, bytes);
    c.near.Post(Read(2, {c.near.memory.Piece(16384, bytes)}, target, 0));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 2));
    EXPECT_TRUE(c.near.Bytes(16384, bytes) == Pattern(3, bytes));
    if (capabilities().atomics) {
      c.near.Post(FetchAdd(3, c.near.memory.Piece(32768, 8), target, 0, 5));
      EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_FETCH_ADD, 3));
      EXPECT_EQ(c.near.Bytes(32768, 8), Pattern(3, 8));
    }
    // The neighbourhood is as it was.
    const std::string all = BytesOf(c.far, region);
    EXPECT_TRUE(all.substr(0, kOffset) == std::string(kOffset, '\0'));
    EXPECT_TRUE(all.substr(kOffset + bytes) == std::string(kRegionBytes - kOffset - bytes, '\0'));
  }
}

TEST_P(Windows, AnImmediateArrivesBehindWhatIsWrittenThroughAWindow) {
  if (!capabilities().write_with_immediate) GTEST_SKIP() << "the device has no immediates";
  for (const uint64_t bytes : {uint64_t{64}, kBytes}) {
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region);
    c.near.Put(0, Pattern(4, bytes));
    c.far.Post(Receive(7, {}));
    c.near.Post(WriteImmediate(1, {c.near.memory.Piece(0, bytes)}, target, 0, 5));
    EXPECT_THAT(c.far.ReceiveCompletion(), Succeeded(IBV_WC_RECV_RDMA_WITH_IMM, 7));
    EXPECT_TRUE(Must(far().ReadBytes(region, kOffset, bytes)) == Pattern(4, bytes));
    EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_WRITE, 1));
  }
}

TEST_P(Windows, NothingOutsideItsRangeIsReached) {
  struct Range {
    std::string name;
    uint64_t offset;  // in the region
    uint64_t bytes;
  };
  for (const Range& range :
       {Range{"one byte before", kOffset - 1, 8}, Range{"one byte beyond", kOffset + kBytes - 7, 8},
        Range{"well beyond", 4 * kOffset + kBytes, 8},
        Range{"larger by one byte", kOffset, kBytes + 1}}) {
    SCOPED_TRACE(range.name);
    for (const bool write : {true, false}) {
      QpPair c = Connect();
      const Memory region = Region(c.far);
      Mw window = Window(c.far);
      Memory target = Bind(c.far, window, region);
      target.address = region.address + range.offset;
      c.near.Put(0, Pattern(5, range.bytes));
      const std::string before = BytesOf(c.far, region);
      const ibv_sge piece = c.near.memory.Piece(0, range.bytes);
      c.near.Post(write ? Write(1, {piece}, target, 0) : Read(1, {piece}, target, 0));
      const ibv_wc wc = c.near.SendCompletion();
      EXPECT_THAT(wc.status, DemandStatus(IBV_WC_REM_ACCESS_ERR, Departure::kWindowRangeUnchecked,
                                          IBV_WC_SUCCESS));
      if (wc.status == IBV_WC_SUCCESS) continue;
      EXPECT_TRUE(BytesOf(c.far, region) == before) << "memory changed";
      EXPECT_TRUE(c.near.Bytes(0, range.bytes) == Pattern(5, range.bytes));
      c.far.AwaitState(IBV_QPS_ERR);
    }
  }
}

TEST_P(Windows, OnlyTheAccessThatItWasBoundWithIsGiven) {
  struct Attempt {
    int needed;
    std::function<SendWr(const QpPair&, const Memory&)> wr;
  };
  std::vector<Attempt> attempts{{IBV_ACCESS_REMOTE_WRITE,
                                 [](const QpPair& c, const Memory& target) {
                                   return Write(1, {c.near.memory.Piece(0, 8)}, target, 0);
                                 }},
                                {IBV_ACCESS_REMOTE_READ, [](const QpPair& c, const Memory& target) {
                                   return Read(1, {c.near.memory.Piece(0, 8)}, target, 0);
                                 }}};
  if (capabilities().atomics) {
    attempts.push_back({IBV_ACCESS_REMOTE_ATOMIC, [](const QpPair& c, const Memory& target) {
                          return FetchAdd(1, c.near.memory.Piece(0, 8), target, 0, 1);
                        }});
  }
  for (const Attempt& attempt : attempts) {
    SCOPED_TRACE(attempt.needed);
    QpPair c = Connect();
    // The region itself gives more: what counts is the window.
    const Memory region = Region(c.far, kAllAccess | IBV_ACCESS_MW_BIND);
    Mw window = Window(c.far);
    const Memory target = Bind(c.far, window, region, kOffset, kBytes, kRemote & ~attempt.needed);
    ExpectRefused(c, region, attempt.wr(c, target));
  }
}

TEST_P(Windows, ARegionUnderWindowsIsItselfClosedToPeers) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  Bind(c.far, window, region);
  Memory target = region;
  target.address += kOffset;
  ExpectWriteRefused(c, region, target);
}

TEST_P(Windows, AWindowForReadingNeedsNoLocalWrite) {
  QpPair c = Connect();
  const Memory region = Region(c.far, IBV_ACCESS_MW_BIND);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region, kOffset, kBytes, IBV_ACCESS_REMOTE_READ);
  c.near.Put(0, Pattern(1, 8));
  c.near.Post(Read(1, {c.near.memory.Piece(0, 8)}, target, 0));
  EXPECT_THAT(c.near.SendCompletion(), Succeeded(IBV_WC_RDMA_READ, 1));
  EXPECT_EQ(c.near.Bytes(0, 8), std::string(8, '\0'));
}

TEST_P(Windows, AWindowsKeyIsNoLocalKey) {
  QpPair c = Connect();
  const Memory region = Region(c.near);
  Mw window = Window(c.near);
  Memory local = Bind(c.near, window, region);
  local.lkey = local.rkey;
  c.far.Post(Receive(7, {c.far.memory.Piece(0, 64)}));
  c.near.Post(Send(1, {local.Piece(0, 64)}));
  EXPECT_THAT(c.near.SendCompletion().status, FailsAtSource());
}

TEST_P(Windows, AnotherQpOfTheSamePeerIsRefused) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  for (const uint64_t bytes : {uint64_t{8}, kBytes}) {
    QpPair other = ConnectAgain(c);
    ExpectWriteRefused(other, region, target, bytes);
  }
  // The QP to which the window is bound can still use it.
  ExpectWriteLands(c, region, target, 6);
}

TEST_P(Windows, ABindingThatIsNotAllowedFails) {
  struct Spoilt {
    std::string name;
    std::function<void(QpPair&, Mw&, const Memory&, SendWr&)> spoil;
    std::optional<Departure> departure = {};
  };
  const auto use = [](SendWr& wr, const Memory& region) {
    wr.bind.region = region.id;
    wr.bind.address = region.address;
  };
  const std::vector<Spoilt> all{
      {"a region without MW_BIND",
       [&](QpPair& c, Mw&, const Memory&, SendWr& wr) { use(wr, Region(c.far, kAllAccess)); }},
      {"a region of another PD",
       [&](QpPair&, Mw&, const Memory&, SendWr& wr) {
         use(wr, Must(far().Register(Must(far().AllocPd()), kRegionBytes, kUnderWindows)));
       },
       Departure::kBindingAcrossPds},
      {"a window of another PD",
       [&](QpPair&, Mw&, const Memory&, SendWr& wr) {
         const Mw window = Must(far().AllocMw(Must(far().AllocPd())));
         wr.bind.window = window.id;
         wr.rkey = window.NextKey();
       }},
      {"one byte beyond the region",
       [](QpPair&, Mw&, const Memory& region, SendWr& wr) {
         wr.bind.address = region.address + kRegionBytes - kBytes + 1;
       }},
      {"one byte before the region", [](QpPair&, Mw&, const Memory& region,
                                        SendWr& wr) { wr.bind.address = region.address - 1; }},
      {"a range that wraps around the address space",
       [](QpPair&, Mw&, const Memory&, SendWr& wr) { wr.bind.bytes = ~uint64_t{0}; },
       Departure::kBindingWrapsAround},
      {"a range of no bytes", [](QpPair&, Mw&, const Memory&, SendWr& wr) { wr.bind.bytes = 0; }},
      {"writing to a region without LOCAL_WRITE",
       [&](QpPair& c, Mw&, const Memory&, SendWr& wr) {
         use(wr, Region(c.far, IBV_ACCESS_MW_BIND));
       }},
      {"a window that is bound already",
       [](QpPair& c, Mw& window, const Memory& region, SendWr& wr) {
         Bind(c.far, window, region);
         wr.rkey = window.NextKey();
       }}};
  for (const Spoilt& spoilt : all) {
    SCOPED_TRACE(spoilt.name);
    QpPair c = Connect();
    const Memory region = Region(c.far);
    Mw window = Window(c.far);
    SendWr wr = BindWindow(9, window, window.NextKey(), region, kOffset, kBytes, kRemote);
    spoilt.spoil(c, window, region, wr);
    // Refused at once, or when its turn comes.
    if (c.far.TryPost({wr}).error != 0) continue;
    const ibv_wc wc = c.far.SendCompletion();
    if (spoilt.departure && !Demand(wc.status != IBV_WC_SUCCESS, *spoilt.departure)) continue;
    EXPECT_THAT(wc, HasWrId(9));
    EXPECT_THAT(wc.status, DemandStatus(IBV_WC_MW_BIND_ERR, Departure::kLocalErrorFlushed,
                                        IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(c.far.State(), IBV_QPS_ERR);
  }
}

TEST_P(Windows, AWindowOpensAnotherRangeUnderItsNextKeyAndNotUnderTheOldOne) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory first = Bind(c.far, window, region);
  ExpectWriteLands(c, region, first, 6);
  Invalidate(c.far, window.rkey);
  const Memory second = Bind(c.far, window, region, 3 * kOffset);
  ExpectWriteLands(c, region, second, 7);
  Memory old_key = second;
  old_key.rkey = first.rkey;
  ExpectWriteRefused(c, region, old_key);
}

TEST_P(Windows, AllKeysOfAWindowServeInTurnAndBeginAnew) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const uint32_t first = window.NextKey();
  for (uint32_t turn = 0; turn < 256; ++turn) {
    const Memory target = Bind(c.far, window, region, turn * 8, 8);
    ASSERT_EQ(target.rkey >> 8, first >> 8);
    ASSERT_EQ(target.rkey & 0xff, (first + turn) & 0xff);
    ExpectWriteLands(c, region, target, turn);
    Invalidate(c.far, window.rkey);
  }
  Bind(c.far, window, region);
  EXPECT_EQ(window.rkey, first);
}

TEST_P(Windows, ManyWindowsOnOneRegionDoNotMix) {
  constexpr uint64_t kWindows = 64;
  EndOptions options;
  options.cap.max_send_wr = 128;
  QpPair c = Connect(options);
  const Memory region = Region(c.far);
  std::vector<Mw> windows;
  std::vector<SendWr> binds;
  for (uint64_t i = 0; i < kWindows; ++i) {
    windows.push_back(Window(c.far));
    binds.push_back(Unsignalled(
        BindWindow(i, windows[i], windows[i].NextKey(), region, i * 1024, 1024, kRemote)));
    windows[i].rkey = windows[i].NextKey();
  }
  binds.back().flags |= IBV_SEND_SIGNALED;
  EXPECT_THAT(c.far.TryPost(binds), Accepted());
  EXPECT_THAT(c.far.SendCompletion(), Succeeded(IBV_WC_BIND_MW, kWindows - 1));
  const auto target = [&](uint64_t i) {
    return Memory{.rkey = windows[i].rkey, .address = region.address + i * 1024, .bytes = 1024};
  };
  for (uint64_t i = 0; i < kWindows; ++i) {
    ExpectWriteLands(c, region, target(i), static_cast<uint32_t>(i), 1024);
  }
  std::vector<SendWr> ends;
  for (uint64_t i = 0; i < kWindows; i += 2) ends.push_back(LocalInvalidate(i, windows[i].rkey));
  EXPECT_THAT(c.far.TryPost(ends), Accepted());
  for (const ibv_wc& wc : c.far.SendCompletions(kWindows / 2)) {
    EXPECT_THAT(wc, HasStatus(IBV_WC_SUCCESS));
  }
  ExpectWriteLands(c, region, target(5), 99, 1024);
  ExpectWriteRefused(c, region, target(4), 1024);
}

TEST_P(Windows, ABindingStandsBeforeTheSendBehindItArrives) {
  EndOptions options;
  options.cap.max_send_wr = 64;
  QpPair c = Connect(options);
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  for (uint32_t turn = 0; turn < 100; ++turn) {
    window.rkey = window.NextKey();
    c.near.Post(Receive(7, {c.near.memory.Piece(1024, 64)}));
    EXPECT_THAT(c.far.TryPost({Unsignalled(BindWindow(1, window, window.rkey, region, kOffset,
                                                      kBytes, kRemote)),
                               Send(2, {c.far.memory.Piece(0, 8)})}),
                Accepted());
    EXPECT_THAT(c.near.ReceiveCompletion(), Succeeded(IBV_WC_RECV, 7));
    const Memory target{.rkey = window.rkey, .address = region.address + kOffset, .bytes = kBytes};
    ExpectWriteLands(c, region, target, turn, turn % 2 == 0 ? 8 : kBytes);
    EXPECT_THAT(c.far.SendCompletion(), Succeeded(IBV_WC_SEND, 2));
    Invalidate(c.far, window.rkey);
  }
}

TEST_P(Windows, ABindingBehindASendThatIsRetriedIsDoneOnce) {
  if (!capabilities().rnr_nak) GTEST_SKIP() << "a SEND without a receive ends the connection";
  if (auto why = ReasonToSpare(Departure::kBindingBehindRetry); !why.empty()) {
    GTEST_SKIP() << why;
  }
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  window.rkey = window.NextKey();
  EXPECT_THAT(c.far.TryPost({Send(1, {c.far.memory.Piece(0, 8)}),
                             BindWindow(2, window, window.rkey, region, kOffset, kBytes, kRemote),
                             Unsignalled(Send(3, {c.far.memory.Piece(0, 8)})),
                             Send(4, {c.far.memory.Piece(0, 8)})}),
              Accepted());
  const std::vector<ibv_wc> early = Must(far().Await(c.far.send_cq, 1, 10));
  if (!Demand(early.empty(), Departure::kBindingRepeated)) return;
  for (uint64_t i = 0; i < 3; ++i) c.near.Post(Receive(i, {c.near.memory.Piece(1024, 64)}));
  const std::vector<ibv_wc> all = c.far.SendCompletions(3);
  if (!Demand(all[1].status == IBV_WC_SUCCESS, Departure::kBindingRepeated)) return;
  EXPECT_THAT(all[0], Succeeded(IBV_WC_SEND, 1));
  EXPECT_THAT(all[1], Succeeded(IBV_WC_BIND_MW, 2));
  EXPECT_THAT(all[2], Succeeded(IBV_WC_SEND, 4));
  EXPECT_EQ(c.near.ReceiveCompletions(3).size(), 3u);
  const Memory target{.rkey = window.rkey, .address = region.address + kOffset, .bytes = kBytes};
  ExpectWriteLands(c, region, target, 3);
}

TEST_P(Windows, ARegionCannotGoWhileAWindowIsBoundToIt) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  EXPECT_FALSE(far().Deregister(region).ok());
  // The attempt did no harm.
  ExpectWriteLands(c, region, target, 6);
  Invalidate(c.far, window.rkey);
  Must(far().Deregister(region));
}

TEST_P(Windows, AWindowThatIsDeallocatedIsClosedAndLetsItsRegionGo) {
  QpPair c = Connect();
  const Memory region = Region(c.far);
  Mw window = Window(c.far);
  const Memory target = Bind(c.far, window, region);
  Must(far().DeallocMw(window));
  ExpectWriteRefused(c, region, target);
  Must(far().Deregister(region));
}

TEST_P(Windows, AProtectionDomainCannotGoWhileItHasWindows) {
  const Pd pd = Must(near().AllocPd());
  const Mw window = Must(near().AllocMw(pd));
  EXPECT_FALSE(near().DeallocPd(pd).ok());
  Must(near().DeallocMw(window));
  Must(near().DeallocPd(pd));
}

VERBENA_CONFORMANCE_SUITE(Windows);

}  // namespace
}  // namespace verbena::internal::conformance
