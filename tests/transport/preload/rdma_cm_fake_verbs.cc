#include "tests/transport/preload/rdma_cm_fake_verbs.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

// Macros of verbs.h, whose functions are defined here.
#undef ibv_query_port

namespace verbena::internal::preload {
namespace {

std::atomic<int> objects = 0;
std::atomic<int> failing_state = -1;
std::atomic<uint32_t> most_inline = UINT32_MAX;
std::atomic<uint32_t> last_number = 100;

ibv_context* TheContext() {
  static ibv_device device = {};
  static ibv_context context = [] {
    ibv_context made = {};
    made.device = &device;
    return made;
  }();
  return &context;
}

template <typename T>
T* Count(T* object) {
  ++objects;
  return object;
}

template <typename T>
int Discard(T* object) {
  --objects;
  delete object;
  return 0;
}

}  // namespace

std::vector<ibv_qp_state> FakeQueuePair::States() const {
  std::vector<ibv_qp_state> states;
  for (const FakeModification& each : modifications) states.push_back(each.attributes.qp_state);
  return states;
}

void FailNextFakeMove(ibv_qp_state state) { failing_state = state; }

void LimitFakeInline(uint32_t bytes) { most_inline = bytes; }

// The default domain of the connection manager is one of them.
int FakeObjects() { return objects - 1; }

}  // namespace verbena::internal::preload

extern "C" {

using namespace verbena::internal::preload;

ibv_device** ibv_get_device_list(int* count) {
  static ibv_device* list[2] = {};
  list[0] = TheContext()->device;
  *count = 1;
  return list;
}

void ibv_free_device_list(ibv_device** /*list*/) {}

ibv_context* ibv_open_device(ibv_device* /*device*/) { return TheContext(); }

int ibv_close_device(ibv_context* /*context*/) { return 0; }

int ibv_query_device(ibv_context* /*context*/, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->max_qp_rd_atom = kFakeReads;
  attributes->max_qp_init_rd_atom = kFakeReads;
  return 0;
}

int ibv_query_port(ibv_context* /*context*/, uint8_t /*port*/, _compat_ibv_port_attr* attributes) {
  auto& port = *reinterpret_cast<ibv_port_attr*>(attributes);
  port.lid = kFakeLid;
  port.active_mtu = IBV_MTU_4096;
  return 0;
}

int ibv_query_gid(ibv_context* /*context*/, uint8_t /*port*/, int /*index*/, ibv_gid* gid) {
  // 127.0.0.15
  *gid = {.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 15}};
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = Count(new ibv_pd{});
  pd->context = context;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) { return Discard(pd); }

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = Count(new ibv_comp_channel{});
  channel->context = context;
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) { return Discard(channel); }

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                      ibv_comp_channel* channel, int /*vector*/) {
  auto* cq = Count(new ibv_cq{});
  cq->context = context;
  cq->cqe = entries;
  cq->cq_context = cq_context;
  cq->channel = channel;
  return cq;
}

int ibv_destroy_cq(ibv_cq* cq) { return Discard(cq); }

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* /*attributes*/) {
  auto* srq = Count(new ibv_srq{});
  srq->context = pd->context;
  srq->pd = pd;
  return srq;
}

int ibv_destroy_srq(ibv_srq* srq) { return Discard(srq); }

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (init->cap.max_inline_data > most_inline) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = Count(new FakeQueuePair{});
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->srq = init->srq;
  qp->qp_num = ++last_number;
  qp->inline_bytes = init->cap.max_inline_data;
  return qp;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  int failing = attributes->qp_state;
  if (failing_state.compare_exchange_strong(failing, -1)) return EINVAL;
  Fake(qp).modifications.push_back({*attributes, mask});
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) { return Discard(&Fake(qp)); }

}  // extern "C"
