#include "tools/verbena/selftest.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/qp.h"
#include "verbena/transport/link/rdma_options.h"
#include "verbena/transport/soft/soft_device.h"
#include "verbena/transport/verbs/rdma_device.h"

namespace verbena::doctor {
namespace {

using internal::Device;
using internal::PortAddress;

// The largest transfer, and the memory of each end.
constexpr size_t kTransferBytes = size_t{1} << 20;
constexpr size_t kMemoryBytes = 2 * kTransferBytes;
constexpr uint32_t kSmallBytes = 32;
constexpr uint32_t kInFlight = 32;
// Without a completion for so long, a device is taken to have lost it. Its own retries take up to
// some seconds.
constexpr Duration kPatience = std::chrono::seconds(20);
// A measurement ends after this long, though it has made fewer rounds.
constexpr Duration kMeasureTime = std::chrono::seconds(3);

TimePoint Now() { return Clock::Real().Now(); }

uint8_t PatternAt(size_t position) { return static_cast<uint8_t>(position * 131 + position / 251); }

// One end: a queue pair with its own completion queue and registered memory.
class End {
 public:
  static absl::StatusOr<std::unique_ptr<End>> Make(Device& device, ibv_pd* pd,
                                                   const PortAddress& port) {
    auto end = std::unique_ptr<End>(new End(device, pd));
    VERBENA_RETURN_IF_ERROR(end->Allocate());
    VERBENA_RETURN_IF_ERROR(end->MakeQp(port));
    return end;
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    qp_.Reset();
    mr_.Reset();
    if (memory_ != nullptr) device_.FreeMemory(memory_, kMemoryBytes).IgnoreError();
  }

  // A queue pair in INIT, in place of the former one.
  absl::Status MakeQp(const PortAddress& port) {
    qp_.Reset();
    cq_.Reset();
    VERBENA_ASSIGN_OR_RETURN(ibv_cq * cq, device_.CreateCq(4 * kInFlight + 2, nullptr, nullptr));
    cq_ = internal::CqHandle(device_, cq);
    const uint32_t inline_bytes = std::min(device_.capabilities().max_inline_bytes, kSmallBytes);
    LinkLimits limits;
    const auto most = static_cast<uint32_t>(std::max(device_.attributes().max_qp_wr, 2));
    limits.receives_per_link = std::min(2 * kInFlight, most);
    limits.send_queue_depth = std::min(limits.send_queue_depth, most - internal::kDrainMarkers);
    VERBENA_ASSIGN_OR_RETURN(qp_, internal::CreateLinkQp(device_, pd_, cq_.get(), /*srq=*/nullptr,
                                                         limits, inline_bytes, port));
    psn_ = internal::NewPsn();
    return absl::OkStatus();
  }
  internal::RemoteQp remote(const PortAddress& port) const {
    return {.qpn = qp_->qp_num,
            .psn = psn_,
            .gid = port.gid,
            .lid = port.lid,
            .mtu = port.path_mtu,
            .max_reads = internal::MaxReads(device_)};
  }
  absl::Status Connect(const PortAddress& port, const internal::RemoteQp& peer) {
    return internal::ConnectLinkQp(device_, qp_.get(), port, psn_, peer, RdmaOptions());
  }

  absl::Status Receive(uint64_t id, size_t offset, uint32_t bytes) {
    ibv_sge element = ElementAt(offset, bytes);
    ibv_recv_wr request = {.wr_id = id, .next = nullptr, .sg_list = &element, .num_sge = 1};
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(qp_.get(), &request, &refused);
    return error == 0 ? absl::OkStatus() : internal::ErrnoStatus(error, "ibv_post_recv");
  }
  // `fill` completes the request.
  absl::Status Post(ibv_wr_opcode opcode, uint64_t id, size_t offset, uint32_t bytes,
                    const std::function<void(ibv_send_wr&)>& fill = {}) {
    ibv_sge element = ElementAt(offset, bytes);
    ibv_send_wr request = {};
    request.wr_id = id;
    request.sg_list = &element;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    if (fill) fill(request);
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(qp_.get(), &request, &refused);
    return error == 0 ? absl::OkStatus() : internal::ErrnoStatus(error, "ibv_post_send");
  }
  // The completions that are there: at most `most`, which is 16 or less.
  absl::StatusOr<int> Poll(ibv_wc* completions, int most) {
    const int count = ibv_poll_cq(cq_.get(), most, completions);
    if (count < 0) return absl::InternalError(fmt::format("ibv_poll_cq returned {}", count));
    return count;
  }
  // The next completion.
  absl::StatusOr<ibv_wc> Await() {
    // The clock is read seldom: reading it takes as long as a poll.
    TimePoint limit = TimePoint::max();
    for (uint32_t polls = 1;; ++polls) {
      ibv_wc completion = {};
      VERBENA_ASSIGN_OR_RETURN(const int count, Poll(&completion, 1));
      if (count == 1) return completion;
      if (polls % 1024 != 0) continue;
      if (limit == TimePoint::max()) limit = Now() + kPatience;
      if (Now() > limit) return absl::DeadlineExceededError("no completion came for 20 s");
    }
  }
  // The next completion, which must be a success of the request `id`.
  absl::Status AwaitSuccess(uint64_t id) {
    VERBENA_ASSIGN_OR_RETURN(const ibv_wc completion, Await());
    if (completion.status != IBV_WC_SUCCESS) {
      return absl::InternalError(fmt::format("request {} completed with {}", completion.wr_id,
                                             ibv_wc_status_str(completion.status)));
    }
    if (completion.wr_id != id) {
      return absl::InternalError(
          fmt::format("request {} completed in place of {}", completion.wr_id, id));
    }
    return absl::OkStatus();
  }

  uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(memory_); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }
  uint32_t rkey() const { return mr_->rkey; }
  ibv_qp* qp() const { return qp_.get(); }
  void Fill() {
    for (size_t i = 0; i < kMemoryBytes; ++i) bytes()[i] = PatternAt(i);
  }
  void Clear() { std::memset(memory_, 0, kMemoryBytes); }

 private:
  End(Device& device, ibv_pd* pd) : device_(device), pd_(pd) {}

  absl::Status Allocate() {
    VERBENA_ASSIGN_OR_RETURN(memory_, device_.AllocateMemory(kMemoryBytes));
    const int atomics = device_.capabilities().atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0;
    VERBENA_ASSIGN_OR_RETURN(ibv_mr * mr,
                             device_.RegMr(pd_, memory_, kMemoryBytes,
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                               IBV_ACCESS_REMOTE_READ | atomics));
    mr_ = internal::MrHandle(device_, mr);
    return absl::OkStatus();
  }
  ibv_sge ElementAt(size_t offset, uint32_t bytes) const {
    return {.addr = address() + offset, .length = bytes, .lkey = mr_->lkey};
  }

  Device& device_;
  ibv_pd* const pd_;
  std::byte* memory_ = nullptr;
  internal::MrHandle mr_;
  internal::CqHandle cq_;
  internal::QpHandle qp_;
  uint32_t psn_ = 0;
};

// Both ends, connected to each other. Checks that end a queue pair call Connect() again.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Make(Device& device, const PortAddress& port) {
    auto bench = std::unique_ptr<Bench>(new Bench(device, port));
    VERBENA_ASSIGN_OR_RETURN(ibv_pd * pd, device.AllocPd());
    bench->pd_ = internal::PdHandle(device, pd);
    VERBENA_ASSIGN_OR_RETURN(bench->near_, End::Make(device, pd, port));
    VERBENA_ASSIGN_OR_RETURN(bench->far_, End::Make(device, pd, port));
    VERBENA_RETURN_IF_ERROR(bench->JoinEnds());
    return bench;
  }

  absl::Status Connect() {
    VERBENA_RETURN_IF_ERROR(near_->MakeQp(port_));
    VERBENA_RETURN_IF_ERROR(far_->MakeQp(port_));
    return JoinEnds();
  }

  End& near() { return *near_; }
  End& far() { return *far_; }
  const internal::DeviceCapabilities& can() const { return device_.capabilities(); }

  // The near end's memory has the pattern, and the far end's none.
  void Prepare() {
    near_->Fill();
    far_->Clear();
  }
  static absl::Status SameBytes(const End& to, const End& from, size_t bytes) {
    const auto [wrong, source] = std::mismatch(to.bytes(), to.bytes() + bytes, from.bytes());
    if (wrong == to.bytes() + bytes) return absl::OkStatus();
    return absl::DataLossError(
        fmt::format("byte {} of {} is {}, not {}", wrong - to.bytes(), bytes, *wrong, *source));
  }
  // `request` at the far end's memory.
  void AtFar(ibv_send_wr& request) const {
    request.wr.rdma.remote_addr = far_->address();
    request.wr.rdma.rkey = far_->rkey();
  }

 private:
  Bench(Device& device, const PortAddress& port) : device_(device), port_(port) {}

  absl::Status JoinEnds() {
    VERBENA_RETURN_IF_ERROR(near_->Connect(port_, far_->remote(port_)));
    return far_->Connect(port_, near_->remote(port_));
  }

  Device& device_;
  const PortAddress port_;
  internal::PdHandle pd_;
  std::unique_ptr<End> near_;
  std::unique_ptr<End> far_;
};

// --- Checks --------------------------------------------------------------------------------------

absl::Status SendArrives(Bench& bench, uint32_t bytes, unsigned flags) {
  bench.Prepare();
  VERBENA_RETURN_IF_ERROR(bench.far().Receive(7, 0, bytes));
  VERBENA_RETURN_IF_ERROR(bench.near().Post(
      IBV_WR_SEND, 8, 0, bytes, [flags](ibv_send_wr& request) { request.send_flags |= flags; }));
  VERBENA_ASSIGN_OR_RETURN(const ibv_wc received, bench.far().Await());
  if (received.status != IBV_WC_SUCCESS || received.wr_id != 7 || received.byte_len != bytes) {
    return absl::InternalError(fmt::format("a receive of {} bytes, {}", received.byte_len,
                                           ibv_wc_status_str(received.status)));
  }
  VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(8));
  return Bench::SameBytes(bench.far(), bench.near(), bytes);
}

absl::Status SmallSend(Bench& bench) { return SendArrives(bench, kSmallBytes, 0); }
absl::Status InlineSend(Bench& bench) { return SendArrives(bench, kSmallBytes, IBV_SEND_INLINE); }
absl::Status FrameSend(Bench& bench) { return SendArrives(bench, LinkLimits().eager_bytes, 0); }

absl::Status ImmediateArrives(Bench& bench) {
  VERBENA_RETURN_IF_ERROR(bench.far().Receive(1, 0, 64));
  VERBENA_RETURN_IF_ERROR(bench.near().Post(
      IBV_WR_SEND_WITH_IMM, 2, 0, 8, [](ibv_send_wr& request) { request.imm_data = 0x12345678; }));
  VERBENA_ASSIGN_OR_RETURN(const ibv_wc received, bench.far().Await());
  VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(2));
  const bool has = (received.wc_flags & IBV_WC_WITH_IMM) != 0 && received.imm_data == 0x12345678;
  return has ? absl::OkStatus() : absl::DataLossError("the immediate did not arrive");
}

absl::Status WriteArrives(Bench& bench) {
  bench.Prepare();
  VERBENA_RETURN_IF_ERROR(
      bench.near().Post(IBV_WR_RDMA_WRITE, 1, 0, kTransferBytes,
                        [&bench](ibv_send_wr& request) { bench.AtFar(request); }));
  VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(1));
  return Bench::SameBytes(bench.far(), bench.near(), kTransferBytes);
}

absl::Status ReadArrives(Bench& bench) {
  bench.near().Clear();
  bench.far().Fill();
  VERBENA_RETURN_IF_ERROR(
      bench.near().Post(IBV_WR_RDMA_READ, 1, 0, kTransferBytes,
                        [&bench](ibv_send_wr& request) { bench.AtFar(request); }));
  VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(1));
  return Bench::SameBytes(bench.near(), bench.far(), kTransferBytes);
}

// A response proves that the payload before it is there.
absl::Status SendBehindWrite(Bench& bench) {
  bench.Prepare();
  VERBENA_RETURN_IF_ERROR(bench.far().Receive(1, kTransferBytes, kSmallBytes));
  VERBENA_RETURN_IF_ERROR(
      bench.near().Post(IBV_WR_RDMA_WRITE, 2, 0, kTransferBytes, [&bench](ibv_send_wr& request) {
        bench.AtFar(request);
        request.send_flags = 0;
      }));
  VERBENA_RETURN_IF_ERROR(bench.near().Post(IBV_WR_SEND, 3, 0, kSmallBytes));
  VERBENA_RETURN_IF_ERROR(bench.far().AwaitSuccess(1));
  VERBENA_RETURN_IF_ERROR(Bench::SameBytes(bench.far(), bench.near(), kTransferBytes));
  return bench.near().AwaitSuccess(3);
}

absl::Status FetchAndAdd(Bench& bench) {
  bench.near().Clear();
  bench.far().Clear();
  const uint64_t before = 40;
  std::memcpy(bench.far().bytes(), &before, sizeof(before));
  VERBENA_RETURN_IF_ERROR(bench.near().Post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, sizeof(before),
                                            [&bench](ibv_send_wr& request) {
                                              request.wr.atomic.remote_addr = bench.far().address();
                                              request.wr.atomic.rkey = bench.far().rkey();
                                              request.wr.atomic.compare_add = 2;
                                            }));
  VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(1));
  uint64_t fetched = 0, after = 0;
  std::memcpy(&fetched, bench.near().bytes(), sizeof(fetched));
  std::memcpy(&after, bench.far().bytes(), sizeof(after));
  if (fetched == before && after == before + 2) return absl::OkStatus();
  return absl::DataLossError(fmt::format("40 + 2 gave {}, and fetched {}", after, fetched));
}

absl::Status ExpectFailure(End& end, ibv_wc_status status) {
  VERBENA_ASSIGN_OR_RETURN(const ibv_wc completion, end.Await());
  if (completion.status == status) return absl::OkStatus();
  return absl::InternalError(fmt::format("the request completed with {}, not {}",
                                         ibv_wc_status_str(completion.status),
                                         ibv_wc_status_str(status)));
}

absl::Status BadKeyIsRefused(Bench& bench) {
  bench.Prepare();
  VERBENA_RETURN_IF_ERROR(
      bench.near().Post(IBV_WR_RDMA_WRITE, 1, 0, 4096, [&bench](ibv_send_wr& request) {
        bench.AtFar(request);
        request.wr.rdma.rkey ^= 0x5a5a5a;
      }));
  VERBENA_RETURN_IF_ERROR(ExpectFailure(bench.near(), IBV_WC_REM_ACCESS_ERR));
  if (bench.far().bytes()[1] != 0) return absl::DataLossError("the bytes were written");
  return absl::OkStatus();
}

absl::Status SendWaitsForReceive(Bench& bench) {
  bench.Prepare();
  VERBENA_RETURN_IF_ERROR(bench.near().Post(IBV_WR_SEND, 1, 0, kSmallBytes));
  // kRnrRetry tries, 10 ms apart, and then it fails.
  return ExpectFailure(bench.near(), IBV_WC_RNR_RETRY_EXC_ERR);
}

absl::Status ErrorFlushes(Bench& bench, Device& device) {
  VERBENA_RETURN_IF_ERROR(bench.near().Receive(1, 0, kSmallBytes));
  VERBENA_RETURN_IF_ERROR(internal::MoveQpToError(device, bench.near().qp()));
  VERBENA_RETURN_IF_ERROR(ExpectFailure(bench.near(), IBV_WC_WR_FLUSH_ERR));
  VERBENA_RETURN_IF_ERROR(internal::PostDrainMarker(bench.near().qp(), 2));
  return ExpectFailure(bench.near(), IBV_WC_WR_FLUSH_ERR);
}

// Runs checks, each on queue pairs that work.
class Checks {
 public:
  explicit Checks(Bench& bench) : bench_(bench) {}

  void Run(std::string what, const std::function<absl::Status(Bench&)>& check,
           std::string reason_to_skip = "") {
    Check done;
    done.what = std::move(what);
    done.skipped = std::move(reason_to_skip);
    if (done.skipped.empty()) {
      done.result = bench_.Connect();
      if (done.result.ok()) done.result = check(bench_);
    }
    done_.push_back(std::move(done));
  }
  std::vector<Check> Take() { return std::move(done_); }

 private:
  Bench& bench_;
  std::vector<Check> done_;
};

std::vector<Check> RunChecks(Bench& bench, Device& device) {
  const internal::DeviceCapabilities& can = bench.can();
  const auto unless = [](bool has, const char* why) { return has ? "" : why; };
  Checks checks(bench);
  checks.Run("a SEND of 32 bytes arrives", SmallSend);
  checks.Run("a SEND of 32 bytes arrives inline", InlineSend,
             unless(can.max_inline_bytes >= kSmallBytes, "the device takes no inline data"));
  checks.Run("a SEND of a whole frame arrives", FrameSend);
  checks.Run("a SEND brings its immediate", ImmediateArrives,
             unless(can.send_with_immediate, "the device has no immediates"));
  checks.Run("a WRITE of 1 MiB arrives", WriteArrives);
  checks.Run("a READ of 1 MiB gets the target's bytes", ReadArrives);
  checks.Run("a SEND arrives behind the WRITE before it", SendBehindWrite);
  checks.Run("an atomic operation adds", FetchAndAdd,
             unless(can.atomics, "the device has no atomic operations"));
  checks.Run("a WRITE with a wrong key is refused", BadKeyIsRefused,
             unless(can.remote_key_checked, "the device does not report it"));
  checks.Run("a SEND without a receive fails after its retries", SendWaitsForReceive,
             unless(can.rnr_nak, "the device ends the connection instead"));
  checks.Run(
      "a queue pair in ERR flushes its requests",
      [&device](Bench& each) { return ErrorFlushes(each, device); },
      unless(can.flushes_in_error, "the device does not flush what is posted in ERR"));
  return checks.Take();
}

// --- Measuring -----------------------------------------------------------------------------------

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

absl::Status MeasurePingPong(Bench& bench, uint32_t exchanges, Measured& measured) {
  std::vector<double> half_us;
  half_us.reserve(exchanges);
  const TimePoint limit = Now() + kMeasureTime;
  for (uint32_t i = 0; i < exchanges && Now() < limit; ++i) {
    VERBENA_RETURN_IF_ERROR(bench.far().Receive(1, 0, kSmallBytes));
    VERBENA_RETURN_IF_ERROR(bench.near().Receive(2, 0, kSmallBytes));
    const TimePoint begun = Now();
    VERBENA_RETURN_IF_ERROR(bench.near().Post(IBV_WR_SEND, 3, 64, kSmallBytes));
    VERBENA_RETURN_IF_ERROR(bench.far().AwaitSuccess(1));
    VERBENA_RETURN_IF_ERROR(bench.far().Post(IBV_WR_SEND, 4, 64, kSmallBytes));
    // The SEND's completion and the answer, in either order.
    for (int each = 0; each < 2; ++each) {
      VERBENA_ASSIGN_OR_RETURN(const ibv_wc completion, bench.near().Await());
      if (completion.status != IBV_WC_SUCCESS) {
        return absl::InternalError(ibv_wc_status_str(completion.status));
      }
    }
    half_us.push_back(Seconds(Now() - begun) * 1e6 / 2);
    VERBENA_RETURN_IF_ERROR(bench.far().AwaitSuccess(4));
  }
  if (half_us.empty()) return absl::OkStatus();
  std::ranges::sort(half_us);
  measured.half_round_trip_us = half_us[half_us.size() / 2];
  measured.half_round_trip_p99_us = half_us[half_us.size() * 99 / 100];
  return absl::OkStatus();
}

// SENDs with kInFlight under way. Receives are posted before the SENDs that take them.
absl::Status MeasureSends(Bench& bench, uint32_t sends, Measured& measured) {
  for (uint32_t i = 0; i < kInFlight; ++i) {
    VERBENA_RETURN_IF_ERROR(bench.far().Receive(i, 64 * size_t{i}, kSmallBytes));
  }
  const TimePoint begun = Now();
  uint32_t posted = 0, arrived = 0, completed = 0;
  TimePoint progress = begun;
  bool enough = false;
  while (completed < posted || arrived < posted || (!enough && posted < sends)) {
    enough = enough || Now() - begun > kMeasureTime;
    while (!enough && posted < sends && posted < arrived + kInFlight &&
           posted < completed + kInFlight) {
      VERBENA_RETURN_IF_ERROR(bench.near().Post(IBV_WR_SEND, posted++, 0, kSmallBytes));
    }
    ibv_wc completions[16];
    VERBENA_ASSIGN_OR_RETURN(const int received, bench.far().Poll(completions, 16));
    for (int i = 0; i < received; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) {
        return absl::InternalError(ibv_wc_status_str(completions[i].status));
      }
      const uint64_t slot = completions[i].wr_id;
      VERBENA_RETURN_IF_ERROR(bench.far().Receive(slot, 64 * slot, kSmallBytes));
    }
    VERBENA_ASSIGN_OR_RETURN(const int sent, bench.near().Poll(completions, 16));
    for (int i = 0; i < sent; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) {
        return absl::InternalError(ibv_wc_status_str(completions[i].status));
      }
    }
    arrived += static_cast<uint32_t>(received);
    completed += static_cast<uint32_t>(sent);
    if (received + sent > 0) progress = Now();
    if (Now() - progress > kPatience) return absl::DeadlineExceededError("no completion for 20 s");
  }
  const double seconds = Seconds(Now() - begun);
  if (posted > 0 && seconds > 0) measured.sends_per_second = posted / seconds;
  return absl::OkStatus();
}

absl::StatusOr<double> MeasureTransfers(Bench& bench, ibv_wr_opcode opcode, uint32_t transfers) {
  const TimePoint begun = Now();
  uint32_t posted = 0, completed = 0;
  while (posted < transfers && Now() - begun < kMeasureTime) {
    VERBENA_RETURN_IF_ERROR(bench.near().Post(
        opcode, posted, posted % 2 * kTransferBytes, kTransferBytes, [&](ibv_send_wr& request) {
          bench.AtFar(request);
          request.wr.rdma.remote_addr += posted % 2 * kTransferBytes;
        }));
    ++posted;
    if (posted > completed + 1) {
      VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(completed));
      ++completed;
    }
  }
  for (; completed < posted; ++completed) {
    VERBENA_RETURN_IF_ERROR(bench.near().AwaitSuccess(completed));
  }
  const double seconds = Seconds(Now() - begun);
  return seconds > 0 ? static_cast<double>(posted) * kTransferBytes / seconds : 0;
}

absl::Status Measure(Bench& bench, const SelftestOptions& options, Measured& measured) {
  VERBENA_RETURN_IF_ERROR(bench.Connect());
  VERBENA_RETURN_IF_ERROR(MeasurePingPong(bench, options.exchanges, measured));
  VERBENA_RETURN_IF_ERROR(MeasureSends(bench, options.sends, measured));
  VERBENA_RETURN_IF_ERROR(bench.Connect());
  VERBENA_ASSIGN_OR_RETURN(measured.write_bytes_per_second,
                           MeasureTransfers(bench, IBV_WR_RDMA_WRITE, options.transfers));
  VERBENA_ASSIGN_OR_RETURN(measured.read_bytes_per_second,
                           MeasureTransfers(bench, IBV_WR_RDMA_READ, options.transfers));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> Open(const std::string& name) {
  if (name == "soft") {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<internal::SoftDevice> device,
                             internal::SoftDevice::Create({}));
    return std::unique_ptr<Device>(std::move(device));
  }
  const std::string prefix = "rdma:";
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<internal::RdmaDevice> device,
      internal::RdmaDevice::Open(name.starts_with(prefix) ? name.substr(prefix.size()) : name));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace

bool SelftestReport::passed() const {
  return std::ranges::all_of(checks, [](const Check& check) { return check.result.ok(); });
}

absl::StatusOr<SelftestReport> Selftest(Device& device, const SelftestOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const PortAddress port,
                           internal::ReadPortAddress(device, device.default_port(), RdmaOptions()));
  if (port.kind == internal::LinkKind::kIwarp) {
    return absl::UnimplementedError(
        fmt::format("{} is iWARP, whose queue pairs rdma_cm alone connects, and this test does "
                    "not: run tests/conformance of the sources",
                    device.name()));
  }
  SelftestReport report;
  report.device = device.name();
  report.kind = internal::LinkKindName(port.kind);
  report.mtu_bytes = 128u << port.path_mtu;
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(device, port));
  report.checks = RunChecks(*bench, device);
  Check measures;
  measures.what = "it is measured without a failure";
  measures.result = Measure(*bench, options, report.measured);
  report.checks.push_back(std::move(measures));
  return report;
}

std::string Describe(const SelftestReport& report) {
  std::string out = fmt::format("selftest of {}: {}, path MTU {}\n", report.device, report.kind,
                                report.mtu_bytes);
  size_t failed = 0;
  for (const Check& check : report.checks) {
    const char* word = !check.skipped.empty() ? "skipped" : check.result.ok() ? "ok" : "FAILED";
    out += fmt::format("  {:<8} {}", word, check.what);
    if (!check.skipped.empty()) out += fmt::format(" ({})", check.skipped);
    if (!check.result.ok()) {
      out += fmt::format(": {}", std::string(check.result.message()));
      ++failed;
    }
    out += "\n";
  }
  const Measured& measured = report.measured;
  out += "measured between two queue pairs of the device, one thread, polled\n";
  const auto line = [&out](const char* what, double figure, const std::string& text) {
    out += fmt::format("  {:<42} {}\n", what, figure > 0 ? text : std::string("not measured"));
  };
  line("half a round trip of 32 bytes, p50 and p99", measured.half_round_trip_us,
       fmt::format("{:.2f} and {:.2f} us", measured.half_round_trip_us,
                   measured.half_round_trip_p99_us));
  line("SENDs of 32 bytes, 32 in flight", measured.sends_per_second,
       fmt::format("{:.0f} a second", measured.sends_per_second));
  line("WRITEs of 1 MiB, two in flight", measured.write_bytes_per_second,
       fmt::format("{:.2f} GB/s", measured.write_bytes_per_second / 1e9));
  line("READs of 1 MiB, two in flight", measured.read_bytes_per_second,
       fmt::format("{:.2f} GB/s", measured.read_bytes_per_second / 1e9));
  out += failed == 0 ? "All that was tried works.\n"
                     : fmt::format("{} of {} checks failed.\n", failed, report.checks.size());
  return out;
}

int RunSelftest(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Device>> device = Open(name);
  absl::StatusOr<SelftestReport> report =
      device.ok() ? Selftest(**device, {}) : absl::StatusOr<SelftestReport>(device.status());
  if (!report.ok()) {
    fmt::print(stderr, "verbena: {} cannot be tested: {}\n", name, report.status().ToString());
    return 2;
  }
  fmt::print("{}", Describe(*report));
  return report->passed() ? 0 : 1;
}

}  // namespace verbena::doctor
