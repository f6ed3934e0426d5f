#include "verbena/benchmarks/parameters/verbs_end.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstdlib>
#include <utility>

#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/qp.h"

namespace verbena::benchmarks {
namespace {

// Buffers this far apart do not share a set of the L1 cache.
constexpr size_t kPadding = 64;
constexpr int kPollBatch = 32;
// The wr_id of a receive is this bit and the QP's index. The wr_id of a signalled send WR is the
// number of WRs that its completion proves to be done.
constexpr uint64_t kReceive = uint64_t{1} << 63;

void MustBeZero(int error, const char* what) {
  if (error != 0) Must(internal::ErrnoStatus(error, what), what);
}

internal::PortAddress AddressOf(internal::Device& device) {
  const internal::DevicePort port = device.default_port();
  return Must(ReadPortAddress(device, port, {}), "ibv_query_port and ibv_query_gid");
}

}  // namespace

void Must(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  fmt::print(stderr, "parameters_bench: {}: {}\n", what, status.ToString());
  std::exit(1);
}

VerbsEnd::VerbsEnd(internal::Device& device, const EndOptions& options)
    : device_(device), options_(options) {
  const size_t stride = options.message_bytes + kPadding;
  const int receives = options.receive_depth;
  memory_.resize(stride * (2 + static_cast<size_t>(receives)));
  outgoing_ = memory_.data();
  landing_ = memory_.data() + stride;
  receives_ = memory_.data() + 2 * stride;
  pd_ = internal::PdHandle(device, Must(device.AllocPd(), "ibv_alloc_pd"));
  mr_ = internal::MrHandle(
      device,
      Must(device.RegMr(pd_.get(), memory_.data(), memory_.size(),
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
           "ibv_reg_mr"));
  channel_ = internal::CompChannelHandle(
      device, Must(device.CreateCompChannel(), "ibv_create_comp_channel"));
  const int entries = options.qps * (options.send_depth + receives);
  cq_ = internal::CqHandle(
      device, Must(device.CreateCq(entries, nullptr, channel_.get()), "ibv_create_cq"));
  if (options.srq) {
    ibv_srq_init_attr attributes = {};
    attributes.attr.max_wr = static_cast<uint32_t>(receives);
    attributes.attr.max_sge = 1;
    srq_ = internal::SrqHandle(device,
                               Must(device.CreateSrq(pd_.get(), attributes), "ibv_create_srq"));
  }
  for (int i = 0; i < options.qps; ++i) {
    ibv_qp_init_attr init = {};
    init.send_cq = cq_.get();
    init.recv_cq = cq_.get();
    init.srq = srq_.get();
    init.cap.max_send_wr = static_cast<uint32_t>(options.send_depth);
    init.cap.max_recv_wr = options.srq ? 0 : static_cast<uint32_t>(receives);
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = options.inline_bytes;
    init.qp_type = IBV_QPT_RC;
    qps_.emplace_back(device, Must(device.CreateQp(pd_.get(), init), "ibv_create_qp"));
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = device.default_port().port;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    Must(device.ModifyQp(qps_.back().get(), attributes,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "ibv_modify_qp to INIT");
  }
  sends_.resize(static_cast<size_t>(options.send_depth));
  since_signal_.resize(qps_.size());
  missing_.resize(qps_.size(), receives);
  receive_requests_.resize(static_cast<size_t>(receives));
}

void VerbsEnd::Connect(VerbsEnd& one, VerbsEnd& other) {
  one.ConnectTo(other);
  other.ConnectTo(one);
  for (VerbsEnd* end : {&one, &other}) {
    const int queues = end->options_.srq ? 1 : end->options_.qps;
    for (int i = 0; i < queues; ++i) end->PostReceives(end->options_.receive_depth, i);
  }
}

void VerbsEnd::ConnectTo(const VerbsEnd& peer) {
  const internal::PortAddress here = AddressOf(device_);
  const internal::PortAddress there = AddressOf(peer.device_);
  for (size_t i = 0; i < qps_.size(); ++i) {
    const internal::RemoteQp remote = {.qpn = peer.qps_[i]->qp_num,
                                       .psn = 0,
                                       .gid = there.gid,
                                       .lid = there.lid,
                                       .mtu = there.path_mtu};
    Must(ConnectLinkQp(device_, qps_[i].get(), here, 0, remote, {}), "ibv_modify_qp to RTS");
  }
  remote_address_ = reinterpret_cast<uintptr_t>(peer.landing_);
  remote_key_ = peer.mr_->rkey;
}

const uint8_t* VerbsEnd::last_received() const {
  // PostReceives() begins with the second buffer.
  const auto receives = static_cast<uint64_t>(options_.receive_depth);
  return receives_ + received_ % receives * (options_.message_bytes + kPadding);
}

void VerbsEnd::PostReceives(int count, int qp) {
  std::vector<ibv_sge> elements(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    next_receive_ = (next_receive_ + 1) % options_.receive_depth;
    elements[i] = {reinterpret_cast<uintptr_t>(receives_ + static_cast<size_t>(next_receive_) *
                                                               (options_.message_bytes + kPadding)),
                   static_cast<uint32_t>(options_.message_bytes), mr_->lkey};
    receive_requests_[i] = {.wr_id = kReceive | static_cast<uint64_t>(qp),
                            .next = i + 1 < count ? &receive_requests_[i + 1] : nullptr,
                            .sg_list = &elements[i],
                            .num_sge = 1};
  }
  missing_[static_cast<size_t>(qp)] -= count;
  ibv_recv_wr* refused = nullptr;
  if (srq_) {
    MustBeZero(ibv_post_srq_recv(srq_.get(), receive_requests_.data(), &refused),
               "ibv_post_srq_recv");
  } else {
    MustBeZero(
        ibv_post_recv(qps_[static_cast<size_t>(qp)].get(), receive_requests_.data(), &refused),
        "ibv_post_recv");
  }
}

void VerbsEnd::PostSends(const Post& post) {
  ibv_sge element = {reinterpret_cast<uintptr_t>(outgoing_), post.bytes, mr_->lkey};
  int& since_signal = since_signal_[static_cast<size_t>(post.qp)];
  for (int i = 0; i < post.count; ++i) {
    ibv_send_wr& request = sends_[i];
    request = {};
    request.next = i + 1 < post.count ? &sends_[i + 1] : nullptr;
    request.sg_list = &element;
    request.num_sge = 1;
    request.opcode = post.opcode;
    request.wr.rdma.remote_addr = remote_address_;
    request.wr.rdma.rkey = remote_key_;
    if (post.inline_data) request.send_flags |= IBV_SEND_INLINE;
    if (++since_signal >= post.signal_every) {
      request.send_flags |= IBV_SEND_SIGNALED;
      request.wr_id = static_cast<uint64_t>(std::exchange(since_signal, 0));
    }
  }
  ibv_send_wr* refused = nullptr;
  MustBeZero(ibv_post_send(qps_[static_cast<size_t>(post.qp)].get(), sends_.data(), &refused),
             "ibv_post_send");
  posted_ += static_cast<uint64_t>(post.count);
}

int VerbsEnd::Poll() {
  ibv_wc completions[kPollBatch];
  const int count = ibv_poll_cq(cq_.get(), kPollBatch, completions);
  if (count < 0) Must(absl::InternalError("it returned an error"), "ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    Must(internal::WcStatus(completions[i], "the other end"), "a completion");
    if ((completions[i].wr_id & kReceive) != 0) {
      ++received_;
      ++missing_[completions[i].wr_id & ~kReceive];
    } else {
      sent_ += completions[i].wr_id;
    }
  }
  return count;
}

void VerbsEnd::Sleep() {
  MustBeZero(ibv_req_notify_cq(cq_.get(), /*solicited_only=*/0), "ibv_req_notify_cq");
  // Completions from before the arming raise no event.
  if (Poll() > 0) return;
  pollfd waiting = {.fd = channel_->fd, .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, /*timeout=*/-1) < 0) {
  }
  if (device_.GetCqEvent(channel_.get()).ok()) device_.AckCqEvents(cq_.get(), 1);
}

}  // namespace verbena::benchmarks
