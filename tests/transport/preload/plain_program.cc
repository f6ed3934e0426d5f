// A program that knows nothing of Verbena: two queue pairs of one device, connected by LID alone,
// and a child process in between. Prints what arrived.

#include <infiniband/verbs.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct End {
  ibv_qp* qp = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  char memory[64] = {};
};

bool Make(ibv_context* context, ibv_pd* pd, End& end) {
  end.cq = ibv_create_cq(context, 8, nullptr, nullptr, 0);
  const int access = IBV_ACCESS_LOCAL_WRITE;
  end.mr = ibv_reg_mr(pd, end.memory, sizeof(end.memory), access);
  if (end.cq == nullptr || end.mr == nullptr) return false;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = end.cq;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  end.qp = ibv_create_qp(pd, &init);
  return end.qp != nullptr;
}

bool Connect(End& end, uint16_t lid, uint32_t qpn) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  if (ibv_modify_qp(end.qp, &attributes,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0) {
    return false;
  }
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = qpn;
  attributes.ah_attr.dlid = lid;
  attributes.ah_attr.port_num = 1;
  if (ibv_modify_qp(end.qp, &attributes,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) {
    return false;
  }
  attributes.qp_state = IBV_QPS_RTS;
  attributes.retry_cnt = 7;
  attributes.rnr_retry = 7;
  return ibv_modify_qp(end.qp, &attributes,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
}

// A child that does nothing but run another program.
bool RunChild() {
  const char* const arguments[] = {"/bin/true", nullptr};
  pid_t child;
  if (posix_spawn(&child, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ) !=
      0) {
    return false;
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool SendHello(End& from, End& to) {
  ibv_sge upper{.addr = reinterpret_cast<uint64_t>(to.memory), .length = 64, .lkey = to.mr->lkey};
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &upper, .num_sge = 1};
  ibv_recv_wr* bad_receive = nullptr;
  std::strcpy(from.memory, "hello");
  ibv_sge sge{.addr = reinterpret_cast<uint64_t>(from.memory), .length = 6, .lkey = from.mr->lkey};
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad_send = nullptr;
  if (ibv_post_recv(to.qp, &receive, &bad_receive) != 0 ||
      ibv_post_send(from.qp, &send, &bad_send) != 0) {
    return false;
  }
  ibv_wc wc{};
  while (ibv_poll_cq(to.cq, 1, &wc) == 0) continue;
  return wc.status == IBV_WC_SUCCESS;
}

bool Run() {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  if (ibv_fork_init() != 0 || count != 1) return false;
  ibv_context* context = ibv_open_device(devices[0]);
  ibv_pd* pd = context != nullptr ? ibv_alloc_pd(context) : nullptr;
  ibv_port_attr port{};
  static End ends[2];
  if (pd == nullptr || ibv_query_port(context, 1, &port) != 0 || !Make(context, pd, ends[0]) ||
      !Make(context, pd, ends[1]) || !Connect(ends[0], port.lid, ends[1].qp->qp_num) ||
      !Connect(ends[1], port.lid, ends[0].qp->qp_num)) {
    return false;
  }
  return RunChild() && SendHello(ends[0], ends[1]);
}

}  // namespace

int main() {
  if (!Run()) return std::perror("plain_program"), 1;
  std::puts("hello");
  // Nothing is destroyed, as in many programs.
  return 0;
}
