// soft_device_bench: SENDs over the soft device's shared memory, between two processes pinned to
// two cores, beside the floor: what two processes that only copy bytes can do.
//
// Ping-pong: one SEND in flight, one in 16 signalled, an SRQ on both sides. Stream: posts
// of 32 SENDs, the last one signalled, in one direction. Slices of both alternate with slices of
// the floor, and medians are printed, since the floor itself moves.
//
//   soft_device_bench [seconds per row]

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::benchmarks {
namespace {

using std::chrono::steady_clock;

constexpr int kReceives = 2048;
constexpr int kSendDepth = 512;
constexpr uint32_t kStride = 4096 + 64;
constexpr int kBatch = 32;
constexpr auto kSlice = std::chrono::milliseconds(50);

void Check(bool good, const char* what) {
  if (good) return;
  fmt::print(stderr, "soft_device_bench: {} failed\n", what);
  std::abort();
}

struct Address {
  ibv_gid gid;
  uint32_t qpn;
};

// A device with one QP, an SRQ full of receives, and one CQ, as an executor has it.
class QpEnd {
 public:
  QpEnd()
      : device_(verbena::internal::SoftDevice::Create().value()),
        memory_(size_t{kReceives} * kStride) {
    pd_ = verbena::internal::PdHandle(*device_, device_->AllocPd().value());
    mr_ = verbena::internal::MrHandle(
        *device_,
        device_->RegMr(pd_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE).value());
    cq_ = verbena::internal::CqHandle(
        *device_, device_->CreateCq(kReceives + kSendDepth, nullptr, nullptr).value());
    ibv_srq_init_attr srq{};
    srq.attr = {.max_wr = kReceives, .max_sge = 1, .srq_limit = 0};
    srq_ = verbena::internal::SrqHandle(*device_, device_->CreateSrq(pd_.get(), srq).value());
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_.get();
    init.srq = srq_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = kSendDepth;
    init.cap.max_send_sge = 1;
    init.cap.max_inline_data = 4096;
    qp_ = verbena::internal::QpHandle(*device_, device_->CreateQp(pd_.get(), init).value());
    for (int i = 0; i < kReceives; ++i) Repost(i);
    Flush();
  }

  void Connect(int socket) {
    Address ours{device_->QueryGid(1, 0).value(), qp_->qp_num};
    Address theirs{};
    Check(write(socket, &ours, sizeof(ours)) == sizeof(ours), "telling our address");
    Check(recv(socket, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs), "hearing theirs");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    Modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = theirs.qpn;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = theirs.gid;
    Modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    Modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  // `count` SENDs of `bytes` in one post; the last one signalled when `signal`.
  void Send(uint32_t bytes, int count, bool signal) {
    ibv_send_wr wrs[kBatch];
    ibv_sge sge{.addr = reinterpret_cast<uint64_t>(payload_), .length = bytes, .lkey = 0};
    for (int i = 0; i < count; ++i) {
      wrs[i] = {};
      wrs[i].next = i + 1 == count ? nullptr : &wrs[i + 1];
      wrs[i].sg_list = &sge;
      wrs[i].num_sge = 1;
      wrs[i].opcode = IBV_WR_SEND;
      wrs[i].send_flags = IBV_SEND_INLINE;
    }
    if (signal) wrs[count - 1].send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    Check(ibv_post_send(qp_.get(), wrs, &bad) == 0, "ibv_post_send");
  }

  void Repost(uint64_t id) {
    const int index = unposted_++;
    sges_[index] = {.addr = reinterpret_cast<uint64_t>(memory_.data() + id * kStride),
                    .length = 4096,
                    .lkey = mr_->lkey};
    receives_[index] = {.wr_id = id, .next = nullptr, .sg_list = &sges_[index], .num_sge = 1};
    if (unposted_ == kBatch) Flush();
  }

  void Flush() {
    if (unposted_ == 0) return;
    for (int i = 0; i + 1 < unposted_; ++i) receives_[i].next = &receives_[i + 1];
    ibv_recv_wr* bad = nullptr;
    Check(ibv_post_srq_recv(srq_.get(), receives_, &bad) == 0, "ibv_post_srq_recv");
    unposted_ = 0;
  }

  int Poll(ibv_wc* wc) {
    const int count = ibv_poll_cq(cq_.get(), kBatch, wc);
    for (int i = 0; i < count; ++i) Check(wc[i].status == IBV_WC_SUCCESS, "a work request");
    return count;
  }
  const std::byte* Received(const ibv_wc& wc) const { return memory_.data() + wc.wr_id * kStride; }
  std::byte* payload() { return payload_; }

 private:
  void Modify(const ibv_qp_attr& attr, int mask) {
    Check(device_->ModifyQp(qp_.get(), attr, mask).ok(), "ibv_modify_qp");
  }

  std::unique_ptr<verbena::internal::SoftDevice> device_;
  std::vector<std::byte> memory_;
  verbena::internal::PdHandle pd_;
  verbena::internal::MrHandle mr_;
  verbena::internal::CqHandle cq_;
  verbena::internal::SrqHandle srq_;
  verbena::internal::QpHandle qp_;
  alignas(64) std::byte payload_[4096] = {};
  ibv_recv_wr receives_[kBatch];
  ibv_sge sges_[kBatch];
  int unposted_ = 0;
};

// The first byte of every message.
enum class Kind : uint8_t { kEcho = 1, kStream, kLastOfStream, kFloor };

// Answers echoes, swallows streams, serves floor slices when told to.
[[noreturn]] void Serve(FloorMapping mapping, int core, int socket, pid_t client) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Check(getppid() == client && PinToCore(core).ok(), "pinning the server");
  QpEnd endpoint;
  endpoint.Connect(socket);
  ibv_wc wc[kBatch];
  for (uint64_t sent = 0;;) {
    const int count = endpoint.Poll(wc);
    bool floor = false;
    for (int i = 0; i < count; ++i) {
      if (wc[i].opcode != IBV_WC_RECV) continue;
      const Kind kind = static_cast<Kind>(*endpoint.Received(wc[i]));
      if (kind == Kind::kEcho || kind == Kind::kLastOfStream) {
        endpoint.Send(wc[i].byte_len, 1, ++sent % 16 == 0);
      }
      floor |= kind == Kind::kFloor;
      endpoint.Repost(wc[i].wr_id);
    }
    endpoint.Flush();
    if (floor) Check(ServeFloorSlice(mapping).ok(), "a floor slice");
  }
}

// Nanoseconds per round trip: the median of one slice's batches, which a preemption does not move.
double PingPong(QpEnd& endpoint, uint32_t bytes) {
  endpoint.payload()[0] = static_cast<std::byte>(Kind::kEcho);
  constexpr int kRounds = 64;
  ibv_wc wc[kBatch];
  uint64_t sent = 0;
  std::vector<double> batches;
  const auto start = steady_clock::now();
  auto before = start;
  while (before - start < kSlice) {
    for (int i = 0; i < kRounds; ++i) {
      endpoint.Send(bytes, 1, ++sent % 16 == 0);
      for (bool answered = false; !answered;) {
        const int count = endpoint.Poll(wc);
        for (int j = 0; j < count; ++j) {
          if (wc[j].opcode != IBV_WC_RECV) continue;
          answered = true;
          endpoint.Repost(wc[j].wr_id);
        }
      }
      endpoint.Flush();
    }
    const auto now = steady_clock::now();
    batches.push_back(std::chrono::duration<double, std::nano>(now - before).count() / kRounds);
    before = now;
  }
  return Median(std::move(batches));
}

// SENDs per second of one slice.
double Stream(QpEnd& endpoint, uint32_t bytes) {
  endpoint.payload()[0] = static_cast<std::byte>(Kind::kStream);
  ibv_wc wc[kBatch];
  uint64_t sent = 0;
  int outstanding = 0;
  const auto start = steady_clock::now();
  while (steady_clock::now() - start < kSlice) {
    while (outstanding + kBatch <= kSendDepth) {
      endpoint.Send(bytes, kBatch, true);
      outstanding += kBatch;
      sent += kBatch;
    }
    outstanding -= kBatch * endpoint.Poll(wc);
  }
  // The answer to the last one proves that all have arrived.
  while (outstanding != 0) outstanding -= kBatch * endpoint.Poll(wc);
  endpoint.payload()[0] = static_cast<std::byte>(Kind::kLastOfStream);
  endpoint.Send(bytes, 1, false);
  while (true) {
    const int count = endpoint.Poll(wc);
    for (int i = 0; i < count; ++i) endpoint.Repost(wc[i].wr_id);
    if (count != 0) break;
  }
  endpoint.Flush();
  const auto end = steady_clock::now();
  return sent / std::chrono::duration<double>(end - start).count();
}

double Floor(QpEnd& endpoint, FloorMapping& mapping, int bytes) {
  endpoint.payload()[0] = static_cast<std::byte>(Kind::kFloor);
  endpoint.Send(1, 1, false);
  auto sample = RunFloorSlice(
      mapping, {.size = bytes, .outstanding = 1, .duration_ms = static_cast<int>(kSlice.count())});
  Check(sample.ok(), "the floor");
  return sample->p50_ns;
}

double EmptyPoll(QpEnd& endpoint) {
  ibv_wc wc[kBatch];
  constexpr int kPolls = 1'000'000;
  const auto start = steady_clock::now();
  for (int i = 0; i < kPolls; ++i) endpoint.Poll(wc);
  return std::chrono::duration<double, std::nano>(steady_clock::now() - start).count() / kPolls;
}

void Run(double seconds) {
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  Check(cores.ok(), "choosing two cores");
  FloorMapping mapping = FloorMapping::Create().value();
  int sockets[2];
  Check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  const pid_t client = getpid();
  const pid_t server = fork();
  if (server == 0) Serve(std::move(mapping), cores->server, sockets[1], client);
  Check(server > 0 && PinToCore(cores->client).ok(), "pinning the client");
  QpEnd endpoint;
  endpoint.Connect(sockets[0]);
  const int slices = static_cast<int>(std::chrono::duration<double>(seconds) / (3 * kSlice)) + 1;
  fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10}\n", "bytes", "floor ns", "send ns", "over ns",
             "M sends/s");
  for (uint32_t bytes : {32u, 64u, 128u, 512u, 1024u, 4096u}) {
    std::vector<double> floor;
    std::vector<double> ping_pong;
    std::vector<double> stream;
    for (int i = 0; i < slices; ++i) {
      floor.push_back(Floor(endpoint, mapping, static_cast<int>(bytes)));
      ping_pong.push_back(PingPong(endpoint, bytes));
      stream.push_back(Stream(endpoint, bytes));
    }
    fmt::print("{:>6} {:>10.0f} {:>10.0f} {:>10.0f} {:>10.2f}\n", bytes, Median(floor),
               Median(ping_pong), Median(ping_pong) - Median(floor), Median(stream) / 1e6);
  }
  fmt::print("empty poll: {:.1f} ns\n", EmptyPoll(endpoint));
  kill(server, SIGKILL);
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  verbena::benchmarks::Run(argc > 1 ? std::atof(argv[1]) : 1.0);
  return 0;
}
