#include "verbena/transport/verbs/rdma_device.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/device/process_memory.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/verbs/port.h"
#include "verbena/transport/verbs/siw.h"

namespace verbena::internal {
namespace {

// ibv_get_device_list's array, freed at the end. Devices opened from it stay valid.
class DeviceList {
 public:
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (devices_ != nullptr) ibv_free_device_list(devices_);
  }

  ibv_device** begin() const { return devices_; }
  ibv_device** end() const { return devices_ != nullptr ? devices_ + count_ : nullptr; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

absl::Status OpenError(ibv_device* device) {
  return ErrnoStatus(errno, fmt::format("ibv_open_device({})", ibv_get_device_name(device)));
}

// Why a device that exists cannot be opened; OK when all can.
absl::Status FirstOpenError(const DeviceList& list) {
  for (ibv_device* device : list) {
    ibv_context* context = ibv_open_device(device);
    if (context == nullptr) return OpenError(device);
    ibv_close_device(context);
  }
  return absl::OkStatus();
}

// If the kernel does not copy pinned pages for a child, registered memory must be kept from the
// child. The process must ask for that before its first registration.
void PrepareToFork() {
  if (ibv_is_fork_initialized() != IBV_FORK_DISABLED) return;
  if (const int error = ibv_fork_init(); error != 0) {
    VERBENA_LOG_LINE(kDevice, kWarning,
                     fmt::format("{}; do not fork while RDMA devices are open",
                                 ErrnoStatus(error, "ibv_fork_init").ToString()));
  }
}

bool SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

// How often a probe looks for what a device may never do. It counts looks, not time: a thread that
// stands still for 100 ms would miss a time limit, and find an able device unable.
constexpr int kLooks = 100;
// The same for what an able device does sooner or later, which takes longer on a busy machine.
constexpr int kPatientLooks = 1000;
// The wr_ids of a probe's receive, and of its SEND in ERR. Keys, of 32 bits, name its other
// requests.
constexpr uint64_t kReceive = uint64_t{1} << 32;
constexpr uint64_t kMarker = kReceive + 1;
constexpr int kLookMilliseconds = 1;

// The PD and CQ that every probe needs.
struct TestBed {
  PdHandle pd;
  CqHandle cq;
};

absl::StatusOr<TestBed> MakeBench(Device& device) {
  TestBed bench;
  VERBENA_ASSIGN_OR_RETURN(ibv_pd * pd, device.AllocPd());
  bench.pd = PdHandle(device, pd);
  VERBENA_ASSIGN_OR_RETURN(ibv_cq * cq, device.CreateCq(16, nullptr, nullptr));
  bench.cq = CqHandle(device, cq);
  return bench;
}

ibv_qp_init_attr RcQp(const TestBed& bench, ibv_srq* srq, uint32_t send_sges,
                      uint32_t inline_bytes) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = bench.cq.get();
  attributes.recv_cq = bench.cq.get();
  attributes.srq = srq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = 8;
  attributes.cap.max_recv_wr = srq == nullptr ? 4 : 0;
  attributes.cap.max_send_sge = send_sges;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = inline_bytes;
  return attributes;
}

// Whether the device makes such a queue pair.
absl::Status Makes(Device& device, const TestBed& bench, ibv_qp_init_attr attributes) {
  absl::StatusOr<ibv_qp*> qp = device.CreateQp(bench.pd.get(), attributes);
  if (qp.ok()) QpHandle(device, *qp).Reset();
  return qp.status();
}

// Makes the least RC queue pair. Some devices have ports, GIDs and datagrams, but no RC (EFA,
// usNIC): their providers say EOPNOTSUPP, or EINVAL. EINVAL may also be about the queue pair's
// sizes. It is about RC if the device makes a queue pair of datagrams with the same sizes. Other
// errors may pass, so they stay as they are.
absl::Status CheckReliable(Device& device, const TestBed& bench) {
  ibv_qp_init_attr attributes = RcQp(bench, nullptr, 1, 0);
  absl::Status made = Makes(device, bench, attributes);
  if (made.ok()) return made;
  attributes.qp_type = IBV_QPT_UD;
  const bool no_rc = absl::IsUnimplemented(made) ||
                     (absl::IsInvalidArgument(made) && Makes(device, bench, attributes).ok());
  if (!no_rc) return made;
  return absl::UnimplementedError(fmt::format(
      "{} has no reliable connections (RC queue pairs), which links are made of; use another RDMA "
      "device, or soft:tcp: {}",
      device.name(), std::string(made.message())));
}

// Providers refuse what they cannot inline, or grant less of it (i40iw: 48), and round up what they
// can. So the answer is what the first QP that is made says that it got; a few say nothing.
uint32_t ProbeMaxInline(Device& device, const TestBed& bench) {
  const auto send_sges = static_cast<uint32_t>(std::clamp(device.attributes().max_sge, 1, 4));
  for (uint32_t bytes : {2048, 1024, 512, 256, 128, 64, 32}) {
    ibv_qp_init_attr attributes = RcQp(bench, nullptr, send_sges, bytes);
    absl::StatusOr<ibv_qp*> qp = device.CreateQp(bench.pd.get(), attributes);
    if (!qp.ok()) continue;
    QpHandle owner(device, *qp);
    const uint32_t granted = attributes.cap.max_inline_data;
    return granted != 0 ? granted : bytes;
  }
  return 0;
}

SrqHandle MakeSrq(Device& device, const TestBed& bench) {
  if (device.attributes().max_srq == 0) return {};
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = 4;
  attributes.attr.max_sge = 1;
  absl::StatusOr<ibv_srq*> srq = device.CreateSrq(bench.pd.get(), attributes);
  return srq.ok() ? SrqHandle(device, *srq) : SrqHandle();
}

bool ProbeSrqLimit(Device& device, ibv_srq* srq) {
  ibv_srq_attr attributes{};
  attributes.srq_limit = 1;
  if (!device.ModifySrq(srq, attributes, IBV_SRQ_LIMIT).ok()) return false;
  attributes.srq_limit = 0;
  return device.ModifySrq(srq, attributes, IBV_SRQ_LIMIT).ok();
}

// True when the event came within kLooks looks. Others that come meanwhile are acknowledged and
// dropped: nobody else uses the device yet.
bool AwaitLastWqe(Device& device) {
  for (int look = 0; look < kLooks; ++look) {
    pollfd waiting{.fd = device.async_fd(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kLookMilliseconds) <= 0) continue;
    absl::StatusOr<ibv_async_event> event = device.GetAsyncEvent();
    if (!event.ok()) continue;
    const bool found = event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
    device.AckAsyncEvent(*event);
    if (found) return true;
  }
  return false;
}

// The queue pairs of one probe, on its CQ.
struct TestQps {
  QpHandle qp;
  // At the other end of `qp`, both in RTS. None if the device connects no queue pairs by their
  // numbers (iWARP), or not to themselves, or its port is down: `qp` is in INIT then.
  QpHandle peer;
};

bool ToInit(Device& device, ibv_qp* qp) {
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = device.default_port().port;
  change.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  return device.ModifyQp(qp, change, kInit).ok();
}

// From INIT to RTS, connected to `peer` of the same port.
absl::Status Connect(Device& device, ibv_qp* qp, const ibv_qp* peer) {
  const DevicePort port = device.default_port();
  VERBENA_ASSIGN_OR_RETURN(const ibv_port_attr attributes, device.QueryPort(port.port));
  if (attributes.state != IBV_PORT_ACTIVE) return absl::UnavailableError("the port is down");
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_RTR;
  change.path_mtu = attributes.active_mtu;
  change.dest_qp_num = peer->qp_num;
  change.max_dest_rd_atomic = 1;
  change.min_rnr_timer = 12;  // 0.64 ms
  change.ah_attr.port_num = port.port;
  change.ah_attr.dlid = attributes.lid;
  change.ah_attr.is_global = 1;
  VERBENA_ASSIGN_OR_RETURN(change.ah_attr.grh.dgid, device.QueryGid(port.port, port.gid_index));
  change.ah_attr.grh.sgid_index = port.gid_index;
  change.ah_attr.grh.hop_limit = 64;
  VERBENA_RETURN_IF_ERROR(device.ModifyQp(qp, change,
                                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  VERBENA_RETURN_IF_ERROR(device.AwaitPeer(qp));
  change.qp_state = IBV_QPS_RTS;
  change.timeout = 14;  // 67 ms: nothing is lost within a device, but a software one may be busy
  change.retry_cnt = 7;
  change.rnr_retry = 7;
  change.max_rd_atomic = 1;
  return device.ModifyQp(qp, change,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

QpHandle MakeQp(Device& device, const TestBed& bench, ibv_srq* srq) {
  ibv_qp_init_attr attributes = RcQp(bench, srq, 1, 0);
  absl::StatusOr<ibv_qp*> qp = device.CreateQp(bench.pd.get(), attributes);
  if (!qp.ok()) return {};
  QpHandle owner(device, *qp);
  return ToInit(device, *qp) ? std::move(owner) : QpHandle();
}

// With a receive queue of their own if `srq` is null. No `qp` if the device makes none.
TestQps MakeQps(Device& device, const TestBed& bench, ibv_srq* srq) {
  TestQps made{.qp = MakeQp(device, bench, srq), .peer = MakeQp(device, bench, nullptr)};
  const bool iwarp = device.context()->device->transport_type == IBV_TRANSPORT_IWARP;
  if (!made.qp || !made.peer || iwarp || !Connect(device, made.peer.get(), made.qp.get()).ok()) {
    made.peer.Reset();
    return made;
  }
  if (Connect(device, made.qp.get(), made.peer.get()).ok()) return made;
  // Whatever state it is in: one that never had a peer comes in its place.
  return {.qp = MakeQp(device, bench, srq), .peer = {}};
}

bool ToError(Device& device, ibv_qp* qp) {
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_ERR;
  return device.ModifyQp(qp, change, IBV_QP_STATE).ok();
}

// OK if a completion of `wr_id` comes within kPatientLooks looks, and is a success. Drops others
// that come meanwhile. `what` names the request in the error.
absl::Status Succeeds(const TestBed& bench, uint64_t wr_id, const char* what) {
  ibv_wc completion{};
  for (int look = 0; look < kPatientLooks; ++look) {
    while (ibv_poll_cq(bench.cq.get(), 1, &completion) > 0) {
      if (completion.wr_id != wr_id) continue;
      if (completion.status == IBV_WC_SUCCESS) return absl::OkStatus();
      return absl::UnimplementedError(
          fmt::format("{} ended with {}", what, ibv_wc_status_str(completion.status)));
    }
    poll(nullptr, 0, kLookMilliseconds);
  }
  return absl::UnimplementedError(fmt::format("{} did not end", what));
}

// True when the provider takes the request. What becomes of it is another question.
bool Takes(ibv_qp* qp, ibv_send_wr& request) {
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  return ibv_post_send(qp, &request, &refused) == 0;
}

absl::Status Post(ibv_qp* qp, ibv_send_wr& request, const char* what) {
  if (Takes(qp, request)) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format("{} is refused", what));
}

// True when a SEND of no bytes came back within kLooks looks, however it ended.
bool ProbeErrorFlush(const TestBed& bench, ibv_qp* in_error) {
  ibv_send_wr send{};
  send.wr_id = kMarker;
  send.opcode = IBV_WR_SEND;
  if (!Takes(in_error, send)) return false;
  ibv_wc completion{};
  for (int look = 0; look < kLooks; ++look) {
    while (ibv_poll_cq(bench.cq.get(), 1, &completion) > 0) {
      if (completion.wr_id == kMarker) return true;
    }
    poll(nullptr, 0, kLookMilliseconds);
  }
  return false;
}

// Soft-RoCE's, from the kernel's drivers/infiniband/sw/rxe/rxe_param.h.
constexpr uint32_t kRxeVendorId = 0xffffff;

bool HasType2Windows(const ibv_device_attr& attributes) {
  constexpr unsigned kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return attributes.max_mw > 0 && (attributes.device_cap_flags & kType2) != 0;
}

// What a lease of `region` by `window` posts: here, and by the peer at its end.
ibv_send_wr BindOf(ibv_mw* window, ibv_mr* region, uint32_t key) {
  ibv_send_wr bind{};
  bind.wr_id = key;
  bind.opcode = IBV_WR_BIND_MW;
  bind.bind_mw.mw = window;
  bind.bind_mw.rkey = key;
  bind.bind_mw.bind_info = {.mr = region,
                            .addr = reinterpret_cast<uint64_t>(region->addr),
                            .length = region->length,
                            .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  return bind;
}

ibv_send_wr EndOf(uint32_t key, ibv_wr_opcode opcode) {
  ibv_send_wr end{};
  end.wr_id = key;
  end.opcode = opcode;
  end.invalidate_rkey = key;
  return end;
}

// Leases `region` twice between two QPs in RTS: once the lease ends here, once by the peer's SEND.
absl::Status LeaseTwice(const TestQps& qps, const TestBed& bench, ibv_srq* srq, ibv_mw* window,
                        ibv_mr* region) {
  const uint32_t first = ibv_inc_rkey(window->rkey);
  const uint32_t second = ibv_inc_rkey(first);
  ibv_send_wr bind = BindOf(window, region, first);
  ibv_send_wr end = EndOf(first, IBV_WR_LOCAL_INV);
  VERBENA_RETURN_IF_ERROR(Post(qps.qp.get(), bind, "a bind"));
  VERBENA_RETURN_IF_ERROR(Succeeds(bench, first, "a bind"));
  window->rkey = first;  // providers find a window by its present key
  VERBENA_RETURN_IF_ERROR(Post(qps.qp.get(), end, "an invalidation"));
  VERBENA_RETURN_IF_ERROR(Succeeds(bench, first, "an invalidation"));
  ibv_recv_wr receive{};
  receive.wr_id = kReceive;
  ibv_recv_wr* refused = nullptr;
  const int error = srq != nullptr ? ibv_post_srq_recv(srq, &receive, &refused)
                                   : ibv_post_recv(qps.qp.get(), &receive, &refused);
  if (error != 0) return ErrnoStatus(error, "posting a receive");
  bind = BindOf(window, region, second);
  end = EndOf(second, IBV_WR_SEND_WITH_INV);
  VERBENA_RETURN_IF_ERROR(Post(qps.qp.get(), bind, "a second bind"));
  VERBENA_RETURN_IF_ERROR(Succeeds(bench, second, "a second bind"));
  VERBENA_RETURN_IF_ERROR(Post(qps.peer.get(), end, "a SEND that invalidates"));
  return Succeeds(bench, kReceive, "the receive of a SEND that invalidates");
}

// True when the provider takes the same requests on a QP in ERR, where none is carried out.
bool TakesLease(ibv_qp* in_error, ibv_mw* window, ibv_mr* region) {
  const uint32_t key = ibv_inc_rkey(window->rkey);
  ibv_send_wr bind = BindOf(window, region, key);
  ibv_send_wr end = EndOf(key, IBV_WR_LOCAL_INV);
  ibv_send_wr send = EndOf(key, IBV_WR_SEND_WITH_INV);
  return Takes(in_error, bind) && Takes(in_error, end) && Takes(in_error, send);
}

// A window, and memory that it may open.
struct TestWindow {
  static constexpr size_t kBytes = 4096;

  explicit TestWindow(Device& device, ibv_pd* pd) {
    absl::StatusOr<std::byte*> mapped = MapPages(kBytes);
    if (!mapped.ok()) return;
    memory = *mapped;
    absl::StatusOr<ibv_mr*> mr =
        device.RegMr(pd, memory, kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    if (!mr.ok()) return;
    region = MrHandle(device, *mr);
    absl::StatusOr<ibv_mw*> mw = device.AllocMw(pd);
    if (mw.ok()) window = MwHandle(device, *mw);
  }
  TestWindow(const TestWindow&) = delete;
  TestWindow& operator=(const TestWindow&) = delete;
  ~TestWindow() {
    window.Reset();
    region.Reset();
    if (memory != nullptr) UnmapPages(memory, kBytes);
  }

  std::byte* memory = nullptr;
  MrHandle region;
  MwHandle window;  // none: the device has no windows
};

// What becomes of queue pairs in ERR, and of memory windows, on two that are connected to each
// other as those of a link are. Some providers take windows' requests in RTS alone, or allocate
// windows and refuse to bind them (mana), and some raise LAST_WQE only for a queue pair that had a
// peer. On one that has none, "no" may be wrong: its links then end without waiting for the event,
// receives may be in doubt (transport/link/receives.h), and leases are of regions.
void ProbeQps(Device& device, const TestBed& bench, ibv_srq* srq, DeviceCapabilities& found) {
  const TestQps qps = MakeQps(device, bench, srq);
  if (!qps.qp) return;
  // Destroyed first: the other way round takes rxe 6.1 a minute.
  std::optional<TestWindow> memory;
  if (HasType2Windows(device.attributes())) memory.emplace(device, bench.pd.get());
  const bool has_window = memory.has_value() && memory->window;
  if (has_window && qps.peer) {
    const absl::Status leased =
        LeaseTwice(qps, bench, srq, memory->window.get(), memory->region.get());
    found.memory_windows = leased.ok();
    if (!leased.ok()) {
      VERBENA_LOG_LINE(
          kDevice, kWarning,
          fmt::format("{} has memory windows that cannot lease memory, so leases there are of "
                      "regions: {}",
                      device.name(), std::string(leased.message())),
          {{"device", device.name()}});
    }
  }
  if (!ToError(device, qps.qp.get())) return;
  found.last_wqe_event = srq != nullptr && AwaitLastWqe(device);
  found.flushes_in_error = ProbeErrorFlush(bench, qps.qp.get());
  if (has_window && !qps.peer) {
    found.memory_windows = TakesLease(qps.qp.get(), memory->window.get(), memory->region.get());
  }
}

DevicePort PortOf(const PortChoice& choice) {
  for (const int index : choice.alike) VERBENA_CHECK(index >= 0 && index <= UINT8_MAX) << index;
  VERBENA_CHECK(choice.gid_index >= 0 && choice.gid_index <= UINT8_MAX) << choice.gid_index;
  return {.port = choice.port,
          .gid_index = static_cast<uint8_t>(choice.gid_index),
          .roce_v1 = choice.roce_v1,
          .alike = {choice.alike.begin(), choice.alike.end()}};
}

}  // namespace

std::vector<RdmaDeviceInfo> RdmaDevice::List() {
  std::vector<RdmaDeviceInfo> infos;
  for (ibv_device* device : DeviceList()) {
    infos.push_back({.name = ibv_get_device_name(device),
                     .node_guid = be64toh(ibv_get_device_guid(device)),
                     .iwarp = device->transport_type == IBV_TRANSPORT_IWARP});
  }
  return infos;
}

absl::StatusOr<std::unique_ptr<RdmaDevice>> RdmaDevice::Open(const std::string& name) {
  PrepareToFork();
  const DeviceList list;
  absl::StatusOr<PortChoice> choice = ChoosePort(ListPorts(), name);
  if (!choice.ok()) {
    const absl::Status closed = FirstOpenError(list);
    return closed.ok() ? choice.status() : closed;
  }
  for (ibv_device* device : list) {
    if (choice->device != ibv_get_device_name(device)) continue;
    ibv_context* context = ibv_open_device(device);
    if (context == nullptr) return OpenError(device);
    std::unique_ptr<RdmaDevice> opened(new RdmaDevice(context, name, PortOf(*choice)));
    VERBENA_RETURN_IF_ERROR(opened->Initialize());
    return opened;
  }
  return absl::UnavailableError(fmt::format("{} was removed just now", choice->device));
}

RdmaDevice::RdmaDevice(ibv_context* context, std::string wanted, DevicePort default_port)
    : name_(ibv_get_device_name(context->device)),
      wanted_(std::move(wanted)),
      context_(context),
      default_port_(std::move(default_port)) {}

RdmaDevice::~RdmaDevice() {
  queue_key_cover_.Reset();
  ibv_close_device(context_);
}

absl::Status RdmaDevice::Initialize() {
  if (!SetNonBlocking(context_->async_fd)) return Failed("fcntl(async_fd, O_NONBLOCK)");
  VERBENA_RETURN_IF_ERROR(Check(ibv_query_device(context_, &attributes_), "ibv_query_device"));
  VERBENA_ASSIGN_OR_RETURN(capabilities_, ProbeCapabilities(*this));
  queue_key_cover_ = CoverSiwQueueKey(*this);
  IgnoreSiwSigpipe(*this);
  return absl::OkStatus();
}

absl::Status RdmaDevice::Check(int result, const std::string& what) const {
  if (result == 0) return absl::OkStatus();
  return ErrnoStatus(ErrorOfResult(result, errno), fmt::format("{} on {}", what, name_));
}

absl::Status RdmaDevice::Failed(const std::string& what) const { return Check(-1, what); }

absl::StatusOr<ibv_port_attr> RdmaDevice::QueryPort(uint8_t port) {
  ibv_port_attr attributes{};
  VERBENA_RETURN_IF_ERROR(Check(ibv_query_port(context_, port, &attributes),
                                fmt::format("ibv_query_port(port={})", port)));
  return attributes;
}

absl::StatusOr<DevicePort> RdmaDevice::ChoosePortAgain() {
  // Not ListPorts(): opening each device takes milliseconds, and asynchronous events wait
  // meanwhile.
  std::vector<PortInfo> ports = PortsOf(context_);
  std::erase_if(ports, [this](const PortInfo& each) { return each.port != default_port_.port; });
  VERBENA_ASSIGN_OR_RETURN(PortChoice choice, ChoosePort(ports, wanted_));
  return PortOf(choice);
}

absl::StatusOr<ibv_gid> RdmaDevice::QueryGid(uint8_t port, int index) {
  ibv_gid gid{};
  VERBENA_RETURN_IF_ERROR(Check(ibv_query_gid(context_, port, index, &gid),
                                fmt::format("ibv_query_gid(port={}, index={})", port, index)));
  return gid;
}

absl::StatusOr<ibv_pd*> RdmaDevice::AllocPd() {
  ibv_pd* pd = ibv_alloc_pd(context_);
  if (pd == nullptr) return Failed("ibv_alloc_pd");
  return pd;
}

absl::Status RdmaDevice::DeallocPd(ibv_pd* pd) {
  return Check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

absl::StatusOr<ibv_mr*> RdmaDevice::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  ibv_mr* mr = ibv_reg_mr(pd, address, bytes, access);
  if (mr != nullptr) return mr;
  const int error = ErrorOfResult(-1, errno);
  const ProcessMemory memory = ReadProcessMemory();
  return RegistrationStatus(
      error, fmt::format("ibv_reg_mr(bytes={}, access={:#x}) on {}", bytes, access, name_), bytes,
      memory.memlock, memory.pinned);
}

absl::Status RdmaDevice::DeregMr(ibv_mr* mr) { return Check(ibv_dereg_mr(mr), "ibv_dereg_mr"); }

absl::StatusOr<ibv_mw*> RdmaDevice::AllocMw(ibv_pd* pd) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  if (mw == nullptr) return Failed("ibv_alloc_mw(type 2)");
  return mw;
}

absl::Status RdmaDevice::DeallocMw(ibv_mw* mw) {
  return Check(ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

absl::StatusOr<ibv_comp_channel*> RdmaDevice::CreateCompChannel() {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  if (channel == nullptr) return Failed("ibv_create_comp_channel");
  if (!SetNonBlocking(channel->fd)) {
    absl::Status status = Failed("fcntl(comp channel, O_NONBLOCK)");
    ibv_destroy_comp_channel(channel);
    return status;
  }
  return channel;
}

absl::Status RdmaDevice::DestroyCompChannel(ibv_comp_channel* channel) {
  return Check(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}

absl::StatusOr<ibv_cq*> RdmaDevice::GetCqEvent(ibv_comp_channel* channel) {
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  if (ibv_get_cq_event(channel, &cq, &cq_context) == 0) return cq;
  if (errno == EAGAIN) return absl::UnavailableError("no completion event waits");
  return Failed("ibv_get_cq_event");
}

void RdmaDevice::AckCqEvents(ibv_cq* cq, unsigned count) { ibv_ack_cq_events(cq, count); }

absl::StatusOr<ibv_cq*> RdmaDevice::CreateCq(int entries, void* cq_context,
                                             ibv_comp_channel* channel) {
  return CreateCqOnVector(entries, cq_context, channel, /*comp_vector=*/0);
}

absl::StatusOr<ibv_cq*> RdmaDevice::CreateCqOnVector(int entries, void* cq_context,
                                                     ibv_comp_channel* channel, int comp_vector) {
  ibv_cq* cq = ibv_create_cq(context_, entries, cq_context, channel, comp_vector);
  if (cq == nullptr) {
    return Failed(fmt::format("ibv_create_cq(cqe={}, comp_vector={})", entries, comp_vector));
  }
  return cq;
}

absl::Status RdmaDevice::DestroyCq(ibv_cq* cq) {
  return Check(ibv_destroy_cq(cq), "ibv_destroy_cq");
}

absl::StatusOr<ibv_srq*> RdmaDevice::CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes) {
  ibv_srq_init_attr requested = attributes;
  ibv_srq* srq = ibv_create_srq(pd, &requested);
  if (srq == nullptr) {
    return Failed(fmt::format("ibv_create_srq(max_wr={}, max_sge={})", attributes.attr.max_wr,
                              attributes.attr.max_sge));
  }
  return srq;
}

absl::Status RdmaDevice::ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask) {
  ibv_srq_attr requested = attributes;
  return Check(ibv_modify_srq(srq, &requested, mask),
               fmt::format("ibv_modify_srq(mask={:#x})", mask));
}

absl::StatusOr<ibv_srq_attr> RdmaDevice::QuerySrq(ibv_srq* srq) {
  ibv_srq_attr attributes{};
  VERBENA_RETURN_IF_ERROR(Check(ibv_query_srq(srq, &attributes), "ibv_query_srq"));
  return attributes;
}

absl::Status RdmaDevice::DestroySrq(ibv_srq* srq) {
  return Check(ibv_destroy_srq(srq), "ibv_destroy_srq");
}

absl::StatusOr<ibv_qp*> RdmaDevice::CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
  const ibv_qp_cap asked = attributes.cap;
  ibv_qp* qp = ibv_create_qp(pd, &attributes);
  if (qp == nullptr) {
    return Failed(fmt::format(
        "ibv_create_qp(max_send_wr={}, max_recv_wr={}, max_send_sge={}, max_inline_data={})",
        asked.max_send_wr, asked.max_recv_wr, asked.max_send_sge, asked.max_inline_data));
  }
  std::lock_guard lock(qps_mutex_);
  const QpIdentity identity{++last_identity_};
  const bool is_new = qps_.try_emplace(qp, identity).second;
  VERBENA_CHECK(is_new) << name_ << " makes a queue pair where another one is";
  existing_.insert(identity);
  return qp;
}

absl::Status RdmaDevice::ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) {
  ibv_qp_attr requested = attributes;
  return Check(ibv_modify_qp(qp, &requested, mask),
               fmt::format("ibv_modify_qp(qpn={:#x}, state={}, mask={:#x})", qp->qp_num,
                           static_cast<int>(attributes.qp_state), mask));
}

absl::StatusOr<ibv_qp_attr> RdmaDevice::QueryQp(ibv_qp* qp, int mask) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  VERBENA_RETURN_IF_ERROR(Check(ibv_query_qp(qp, &attributes, mask, &init),
                                fmt::format("ibv_query_qp(qpn={:#x})", qp->qp_num)));
  return attributes;
}

absl::Status RdmaDevice::DestroyQp(ibv_qp* qp) {
  const uint32_t qpn = qp->qp_num;
  QpIdentity identity;
  {
    // The lock is not held while ibv_destroy_qp waits for this QP's events to be acknowledged.
    std::lock_guard lock(qps_mutex_);
    const auto found = qps_.find(qp);
    VERBENA_CHECK(found != qps_.end()) << "a queue pair that is not one of " << name_;
    identity = found->second;
    qps_.erase(found);
  }
  absl::Status status = Check(ibv_destroy_qp(qp), fmt::format("ibv_destroy_qp(qpn={:#x})", qpn));
  std::lock_guard lock(qps_mutex_);
  VERBENA_CHECK(existing_.contains(identity)) << "a queue pair of " << name_ << " ends twice";
  if (status.ok()) {
    existing_.erase(identity);
  } else {
    qps_[qp] = identity;
  }
  return status;
}

QpIdentity RdmaDevice::IdentityOf(const ibv_qp* qp) {
  std::lock_guard lock(qps_mutex_);
  const auto found = qps_.find(qp);
  VERBENA_CHECK(found != qps_.end()) << "a queue pair that is not one of " << name_;
  return found->second;
}

bool RdmaDevice::Quiesced(QpIdentity qp) {
  std::lock_guard lock(qps_mutex_);
  return !existing_.contains(qp);
}

absl::StatusOr<ibv_async_event> RdmaDevice::GetAsyncEvent() {
  ibv_async_event event{};
  if (ibv_get_async_event(context_, &event) == 0) return event;
  if (errno == EAGAIN) return absl::UnavailableError("no asynchronous event waits");
  return Failed("ibv_get_async_event");
}

int ErrorOfResult(int result, int errno_value) {
  VERBENA_CHECK(result != 0) << "a call that succeeded has no error";
  if (result > 0) return result;
  if (result < -1) return -result;
  return errno_value > 0 ? errno_value : EIO;
}

absl::Status RegistrationStatus(int error, const std::string& what, size_t bytes,
                                rlim_t memlock_limit, uint64_t pinned_bytes) {
  VERBENA_CHECK(error > 0) << error;
  if (error != ENOMEM || memlock_limit == RLIM_INFINITY) return ErrnoStatus(error, what);
  return ErrnoStatus(
      error, fmt::format("{}: RLIMIT_MEMLOCK is {} bytes, {} are pinned already, and at least {} "
                         "are needed (ulimit -l, LimitMEMLOCK=, or --ulimit memlock=)",
                         what, memlock_limit, pinned_bytes, pinned_bytes + bytes));
}

absl::StatusOr<DeviceCapabilities> ProbeCapabilities(Device& device) {
  VERBENA_CHECK((fcntl(device.async_fd(), F_GETFL) & O_NONBLOCK) != 0)
      << "a read of events would wait: descriptor " << device.async_fd();
  // iWARP has no immediates, no RNR NAK (a SEND without a receive ends the connection), and its
  // writes complete when TCP has the bytes, before the target has seen the key.
  const bool iwarp = device.context()->device->transport_type == IBV_TRANSPORT_IWARP;
  DeviceCapabilities found;
  found.write_with_immediate = !iwarp;
  found.send_with_immediate = !iwarp;
  found.rnr_nak = !iwarp;
  found.remote_key_checked = !iwarp;
  found.emulated = device.attributes().vendor_id == kRxeVendorId || IsSiw(device);
  if (IsSiw(device)) {
    found.max_unsignalled_bytes = kMaxUnsignalledBytesOnSiw;
    found.root_pins = RootPins::kWithinTheLimit;
  }
  found.atomics = device.attributes().atomic_cap != IBV_ATOMIC_NONE;

  VERBENA_ASSIGN_OR_RETURN(const TestBed bench, MakeBench(device));
  VERBENA_RETURN_IF_ERROR(CheckReliable(device, bench));
  found.max_inline_bytes = ProbeMaxInline(device, bench);
  SrqHandle srq = MakeSrq(device, bench);
  found.srq = static_cast<bool>(srq);
  found.srq_limit_event = srq && !iwarp && ProbeSrqLimit(device, srq.get());
  ProbeQps(device, bench, srq.get(), found);
  found.windows_checked = found.memory_windows && device.attributes().vendor_id != kRxeVendorId;
  return found;
}

}  // namespace verbena::internal
