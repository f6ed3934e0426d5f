#include "verbena/transport/soft/state.h"

#include <fcntl.h>
#include <pthread.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/soft/control_socket.h"
#include "verbena/transport/soft/tcp_format.h"

namespace verbena::internal::soft {
namespace {

constexpr int kMaxCqe = 1 << 22;
constexpr int kMaxWr = 1 << 16;

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceShare>> DeviceShare::Create(bool shared) {
  auto share = std::make_shared<DeviceShare>();
  constexpr size_t kControlBytes = sizeof(CqControl) * kMaxCompletionQueues;
  if (!shared) {
    VERBENA_ASSIGN_OR_RETURN(share->controls, SharedRegion::Anonymous(kControlBytes));
    VERBENA_ASSIGN_OR_RETURN(share->table_memory, SharedRegion::Anonymous(sizeof(DeviceTables)));
    return share;
  }
  VERBENA_ASSIGN_OR_RETURN(share->controls, SharedRegion::Create("verbena-soft-cq", kControlBytes));
  VERBENA_ASSIGN_OR_RETURN(share->table_memory,
                           SharedRegion::Create("verbena-soft-tables", sizeof(DeviceTables)));
  const std::string path = fmt::format("/proc/self/fd/{}", share->table_memory.fd());
  share->tables_read_only = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!share->tables_read_only) return ErrnoStatus(errno, "opening " + path);
  return share;
}

SoftState::SoftState(const SoftDeviceOptions& options, std::shared_ptr<DeviceShare> share,
                     const DeviceAddress& address, uint64_t guid, Engine& engine)
    : options_(options),
      clock_(options.clock != nullptr ? *options.clock : Clock::Real()),
      engine_(engine),
      share_(std::move(share)),
      address_(address),
      memory_(share_->tables().memory),
      windows_(memory_, share_->tables()),
      slots_(std::make_unique<QpSlot[]>(kMaxQueuePairs)) {
  std::snprintf(device_.name, sizeof(device_.name), "%s", options_.name.c_str());
  std::snprintf(device_.dev_name, sizeof(device_.dev_name), "%s", options_.name.c_str());
  device_.node_type = IBV_NODE_CA;
  device_.transport_type = IBV_TRANSPORT_IB;
  context_.device = &device_;
  context_.cmd_fd = -1;
  context_.async_fd = async_events_.fd();
  context_.num_comp_vectors = 1;
  pthread_mutex_init(&context_.mutex, nullptr);
  FillAttributes(guid);
}

SoftState::~SoftState() { pthread_mutex_destroy(&context_.mutex); }

void SoftState::FillAttributes(uint64_t guid) {
  std::snprintf(attributes_.fw_ver, sizeof(attributes_.fw_ver), "verbena");
  attributes_.node_guid = guid;
  attributes_.sys_image_guid = guid;
  attributes_.max_mr_size = uint64_t{1} << 47;
  attributes_.page_size_cap = ~uint64_t{4095};
  attributes_.max_qp = static_cast<int>(options_.max_queue_pairs);
  attributes_.max_qp_wr = kMaxWr;
  attributes_.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD |
                                 IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  attributes_.max_sge = kMaxSge;
  attributes_.max_sge_rd = kMaxSge;
  attributes_.max_cq = kMaxCompletionQueues;
  attributes_.max_cqe = kMaxCqe;
  attributes_.max_mr = kMaxMemoryKeys - 1;
  attributes_.max_mw = kMaxMemoryKeys - 1;
  attributes_.max_pd = kMaxQueuePairs;
  attributes_.max_qp_rd_atom = 16;
  attributes_.max_res_rd_atom = 16 * kMaxQueuePairs;
  attributes_.max_qp_init_rd_atom = 16;
  attributes_.atomic_cap = IBV_ATOMIC_GLOB;
  attributes_.max_srq = kMaxQueuePairs;
  attributes_.max_srq_wr = kMaxWr;
  attributes_.max_srq_sge = kMaxSge;
  attributes_.max_pkeys = 1;
  attributes_.phys_port_cnt = 1;
  capabilities_ = {.max_inline_bytes = kMaxInlineBytes,
                   .srq = true,
                   .srq_limit_event = true,
                   .last_wqe_event = true,
                   .write_with_immediate = true,
                   .send_with_immediate = true,
                   .atomics = true,
                   .memory_windows = true,
                   .windows_checked = true,
                   .rnr_nak = true,
                   .remote_key_checked = true,
                   .wire_revision = address_.lid == 0 ? ControlMessage::kRevision
                                                      : uint32_t{TcpGreeting::kVersion}};
  Withhold(*options_.profile, attributes_, capabilities_);
}

ibv_port_attr SoftState::port_attributes() const {
  ibv_port_attr attributes{};
  attributes.state = IBV_PORT_ACTIVE;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = IBV_MTU_4096;
  attributes.gid_tbl_len = 1;
  attributes.lid = address_.lid;
  attributes.max_msg_sz = kMaxMessageBytes;
  attributes.pkey_tbl_len = 1;
  attributes.max_vl_num = 1;
  attributes.active_width = 2;   // 4x
  attributes.active_speed = 64;  // HDR
  attributes.phys_state = 5;     // link up
  attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  Withhold(*options_.profile, attributes);
  return attributes;
}

DeviceAddress SoftState::AddressOf(const ibv_ah_attr& vector) const {
  DeviceAddress address{.gid = vector.grh.dgid, .lid = vector.dlid};
  // Without a GID, a LID names a device of our own subnet: of this host.
  if (address_.lid != 0 && vector.is_global == 0) address.gid = address_.gid;
  return address;
}

void SoftState::AddReceiver(ibv_qp& qp) {
  QpSlot& slot = slots_[qp.qp_num & (kMaxQueuePairs - 1)];
  VERBENA_CHECK(slot.qp.load(std::memory_order_relaxed) == nullptr)
      << "the slot of QP " << qp.qp_num << " is taken";
  slot.qp.store(&qp, std::memory_order_relaxed);
  slot.receive_cq.store(qp.recv_cq, std::memory_order_release);
}

void SoftState::HideReceiver(const ibv_qp& qp) {
  slots_[qp.qp_num & (kMaxQueuePairs - 1)].receive_cq.store(nullptr, std::memory_order_release);
}

void SoftState::RemoveReceiver(const ibv_qp& qp) {
  slots_[qp.qp_num & (kMaxQueuePairs - 1)].qp.store(nullptr, std::memory_order_relaxed);
}

void SoftState::ReportOverrun() {
  overrun_.store(true);
  engine_.Wake();
}

}  // namespace verbena::internal::soft
