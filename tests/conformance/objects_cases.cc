// A device has what its attributes promise and refuses what goes beyond them. No object can be
// destroyed while another uses it, and numbers and keys of live objects differ.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/conformance/fixture.h"

namespace verbena::internal::conformance {
namespace {

class Objects : public ConformanceTest {
 protected:
  // `status` is EBUSY's: the object is in use.
  static void ExpectBusy(const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("EBUSY"));
  }
};

TEST_P(Objects, TheDeviceHasWhatItsAttributesSay) {
  const ibv_device_attr& attributes = near_info().attributes;
  EXPECT_GE(attributes.max_qp, 1);
  EXPECT_GE(attributes.max_qp_wr, 16);
  EXPECT_GE(attributes.max_sge, 1);
  EXPECT_GE(attributes.max_cqe, 16);
  EXPECT_GE(attributes.phys_port_cnt, 1);
  EXPECT_EQ(attributes.atomic_cap != IBV_ATOMIC_NONE, capabilities().atomics);
  EXPECT_EQ(attributes.max_srq > 0, capabilities().srq);
  EXPECT_EQ(near_info().port.state, IBV_PORT_ACTIVE);
  EXPECT_GT(near_info().port.max_msg_sz, 0u);
}

TEST_P(Objects, PortsAndGidsBeyondTheLastAreRefused) {
  Device& device = near().device();
  const int ports = device.attributes().phys_port_cnt;
  EXPECT_FALSE(device.QueryPort(0).ok());
  EXPECT_FALSE(device.QueryPort(static_cast<uint8_t>(ports + 1)).ok());
  EXPECT_FALSE(device.QueryGid(static_cast<uint8_t>(ports + 1), 0).ok());
  EXPECT_FALSE(device.QueryGid(1, 1 << 20).ok());
  EXPECT_FALSE(device.QueryGid(1, -1).ok());
}

TEST_P(Objects, AQpGetsAtLeastWhatItAskedFor) {
  EndOptions options;
  options.cap.max_send_wr = 5;
  options.cap.max_recv_wr = 7;
  options.cap.max_send_sge = 2;
  options.cap.max_recv_sge = 3;
  QpPair c = Connect(options);
  EXPECT_GE(c.near.qp.cap.max_send_wr, 5u);
  EXPECT_GE(c.near.qp.cap.max_recv_wr, 7u);
  EXPECT_GE(c.near.qp.cap.max_send_sge, 2u);
  EXPECT_GE(c.near.qp.cap.max_recv_sge, 3u);
}

TEST_P(Objects, RequestsBeyondTheDevicesLimitsAreRefused) {
  QpPair c = Connect();
  const ibv_device_attr& attributes = near_info().attributes;
  const auto create = [&](auto spoil) {
    QpOptions options{.pd = c.near.pd, .send_cq = c.near.send_cq, .recv_cq = c.near.recv_cq};
    spoil(options);
    return near().CreateQp(options).ok();
  };
  const auto beyond = [](int most) { return static_cast<uint32_t>(most) + 1; };
  EXPECT_TRUE(create([](QpOptions&) {}));
  EXPECT_FALSE(create([&](QpOptions& q) { q.cap.max_send_wr = beyond(attributes.max_qp_wr); }));
  EXPECT_FALSE(create([&](QpOptions& q) { q.cap.max_recv_wr = beyond(attributes.max_qp_wr); }));
  EXPECT_FALSE(create([&](QpOptions& q) { q.cap.max_send_sge = beyond(attributes.max_sge); }));
  EXPECT_FALSE(create([&](QpOptions& q) { q.cap.max_recv_sge = beyond(attributes.max_sge); }));
  EXPECT_FALSE(near().CreateCq(beyond(attributes.max_cqe), CqChannel()).ok());
  EXPECT_FALSE(near().CreateCq(0, CqChannel()).ok());
  if (!capabilities().srq) return;
  EXPECT_FALSE(near().CreateSrq(c.near.pd, beyond(attributes.max_srq_wr), 1).ok());
  EXPECT_FALSE(near().CreateSrq(c.near.pd, 16, beyond(attributes.max_srq_sge)).ok());
}

TEST_P(Objects, ATypeOfQpThatTheDeviceLacksIsRefusedAndNotMisunderstood) {
  QpPair c = Connect();
  QpOptions options{.pd = c.near.pd, .send_cq = c.near.send_cq, .recv_cq = c.near.recv_cq};
  options.type = static_cast<ibv_qp_type>(77);
  EXPECT_FALSE(near().CreateQp(options).ok());
  options.type = IBV_QPT_UC;
  absl::StatusOr<Qp> qp = near().CreateQp(options);
  if (!qp.ok()) return;
  // A device with UC must refuse what UC has not.
  c.near.qp = *qp;
  EXPECT_NE(c.near.TryPost({Read(1, {c.near.memory.Piece(0, 8)}, c.far.memory, 0)}).error, 0);
}

TEST_P(Objects, MemoryOfNoBytesOrOutsideTheProcessIsRefused) {
  Device& device = near().device();
  ibv_pd* pd = Must(device.AllocPd());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where nothing is mapped, there is no object.
  void* const unmapped = reinterpret_cast<void*>(uintptr_t{4096});
  alignas(4096) static char page[4096];
  EXPECT_FALSE(device.RegMr(pd, page, 0, IBV_ACCESS_LOCAL_WRITE).ok()) << "no bytes";
  EXPECT_FALSE(device.RegMr(pd, unmapped, 4096, IBV_ACCESS_LOCAL_WRITE).ok()) << "not mapped";
  const absl::StatusOr<ibv_mr*> wraps = device.RegMr(pd, page, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE);
  if (!Demand(!wraps.ok(), Departure::kWrappingRegionTaken)) Must(device.DeregMr(*wraps));
  EXPECT_TRUE(device.DeallocPd(pd).ok()) << "what was refused is in use";
}

TEST_P(Objects, MemoryThatTheProcessMayNotWriteIsRefusedForWriting) {
  Device& device = near().device();
  ibv_pd* pd = Must(device.AllocPd());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(device.RegMr(pd, memory, page, IBV_ACCESS_LOCAL_WRITE).ok());
  EXPECT_TRUE(device.DeallocPd(pd).ok()) << "what was refused is in use";
  munmap(memory, page);
}

TEST_P(Objects, APdInUseStaysUntilItsLastObjectIsGone) {
  const Pd pd = Must(near().AllocPd());
  const Memory memory = Must(near().Register(pd, 4096, 0));
  ExpectBusy(near().DeallocPd(pd));
  Must(near().Deregister(memory));

  const Cq cq = Must(near().CreateCq(16, CqChannel()));
  const Qp qp = Must(near().CreateQp({.pd = pd, .send_cq = cq, .recv_cq = cq}));
  ExpectBusy(near().DeallocPd(pd));
  Must(near().DestroyQp(qp));

  if (capabilities().srq) {
    const Srq srq = Must(near().CreateSrq(pd, 16, 1));
    ExpectBusy(near().DeallocPd(pd));
    Must(near().DestroySrq(srq));
  }
  Must(near().DeallocPd(pd));
}

TEST_P(Objects, ACqInUseStaysUntilItsLastQpIsGone) {
  const Pd pd = Must(near().AllocPd());
  const Cq send_cq = Must(near().CreateCq(16, CqChannel()));
  const Cq recv_cq = Must(near().CreateCq(16, CqChannel()));
  const Qp qp = Must(near().CreateQp({.pd = pd, .send_cq = send_cq, .recv_cq = recv_cq}));
  ExpectBusy(near().DestroyCq(send_cq));
  ExpectBusy(near().DestroyCq(recv_cq));
  Must(near().DestroyQp(qp));
  Must(near().DestroyCq(send_cq));
  Must(near().DestroyCq(recv_cq));
}

TEST_P(Objects, AnSrqInUseStaysUntilItsLastQpIsGone) {
  if (!capabilities().srq) GTEST_SKIP() << "the device has no shared receive queues";
  const Pd pd = Must(near().AllocPd());
  const Cq cq = Must(near().CreateCq(16, CqChannel()));
  const Srq srq = Must(near().CreateSrq(pd, 16, 1));
  const Qp qp = Must(near().CreateQp({.pd = pd, .send_cq = cq, .recv_cq = cq, .srq = srq}));
  ExpectBusy(near().DestroySrq(srq));
  Must(near().DestroyQp(qp));
  Must(near().DestroySrq(srq));
}

TEST_P(Objects, AChannelInUseStaysUntilItsLastCqIsGone) {
  const CqChannel channel = Must(near().CreateChannel());
  const Cq cq = Must(near().CreateCq(16, channel));
  ExpectBusy(near().DestroyChannel(channel));
  Must(near().DestroyCq(cq));
  Must(near().DestroyChannel(channel));
}

TEST_P(Objects, AnObjectThatWasRefusedItsDestructionGoesOnWorking) {
  if (auto why = ReasonToSpare(Departure::kRefusedCqUnmapped); !why.empty()) GTEST_SKIP() << why;
  QpPair c = Connect();
  ExpectBusy(near().DestroyCq(c.near.send_cq));
  ExpectBusy(near().DeallocPd(c.near.pd));
  ExpectBusy(far().DestroyCq(c.far.recv_cq));
  ExpectWorks(c);
}

TEST_P(Objects, QpNumbersAreNotReusedSoon) {
  if (near_info().kind == DeviceKind::kRdma) GTEST_SKIP() << "verbs do not promise it";
  const Pd pd = Must(near().AllocPd());
  const Cq cq = Must(near().CreateCq(16, CqChannel()));
  std::set<uint32_t> seen;
  for (int i = 0; i < 500; ++i) {
    const Qp qp = Must(near().CreateQp({.pd = pd, .send_cq = cq, .recv_cq = cq}));
    EXPECT_LT(qp.number, 1u << 24) << "a QPN has 24 bits";
    EXPECT_TRUE(seen.insert(qp.number).second) << "QPN " << qp.number << " came again";
    Must(near().DestroyQp(qp));
  }
}

TEST_P(Objects, QpsThatLiveAtOnceHaveNumbersOfTheirOwn) {
  const Pd pd = Must(near().AllocPd());
  const Cq cq = Must(near().CreateCq(16, CqChannel()));
  std::set<uint32_t> seen;
  const int count = std::min(200, near_info().attributes.max_qp / 2);
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    const Qp qp = Must(near().CreateQp({.pd = pd, .send_cq = cq, .recv_cq = cq}));
    EXPECT_TRUE(seen.insert(qp.number).second);
  }
}

TEST_P(Objects, KeysOfRegionsThatLiveAtOnceDiffer) {
  const Pd pd = Must(near().AllocPd());
  const Memory first = Must(near().Register(pd, 4096, kAllAccess));
  std::set<uint32_t> lkeys{first.lkey};
  std::set<uint32_t> rkeys{first.rkey};
  for (int i = 0; i < 200; ++i) {
    const Memory again = Must(near().RegisterAgain(first, pd, kAllAccess));
    EXPECT_TRUE(lkeys.insert(again.lkey).second);
    EXPECT_TRUE(rkeys.insert(again.rkey).second);
  }
}

TEST_P(Objects, ManyConnectionsComeAndGo) {
  QpPair c = Connect();
  for (int i = 0; i < 50; ++i) {
    QpPair fresh = ConnectAgain(c);
    ExpectWorks(fresh);
    Must(near().DestroyQp(fresh.near.qp));
    Must(far().DestroyQp(fresh.far.qp));
  }
  ExpectWorks(c);
}

TEST_P(Objects, ManyConnectionsWorkAtOnce) {
  QpPair first = Connect();
  std::vector<QpPair> all;
  for (int i = 0; i < 40; ++i) all.push_back(ConnectAgain(first));
  for (QpPair& c : all) ExpectWorks(c);
  for (QpPair& c : all) {
    std::swap(c.near, c.far);
    ExpectWorks(c);
  }
}

VERBENA_CONFORMANCE_SUITE(Objects);

}  // namespace
}  // namespace verbena::internal::conformance
