// How two QPs are brought from RESET to RTS, in full or step by step.

#ifndef VERBENA_TESTS_CONFORMANCE_CONNECT_H_
#define VERBENA_TESTS_CONFORMANCE_CONNECT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <source_location>

#include "tests/conformance/end.h"

namespace verbena::internal::conformance {

// A change of a QP's state, ready for ModifyQp; a case may spoil it first.
struct Transition {
  ibv_qp_attr attributes{};
  int mask = 0;
};

struct LinkOptions {
  uint8_t rnr_retry = 7;      // without end
  uint8_t min_rnr_timer = 1;  // 10 us
  uint8_t timeout = 14;       // 67 ms
  uint8_t retry_count = 7;
  uint8_t max_rd_atomic = 4;
  uint8_t max_dest_rd_atomic = 4;
  int qp_access = kAllAccess;
};

Transition ToInit(const LinkOptions& options);
Transition ToReadyToReceive(const End& self, const End& peer, const LinkOptions& options);
Transition ToReadyToSend(const LinkOptions& options);

// Takes both ends' QPs from RESET to RTS; those of iWARP devices through rdma_cm.
void ConnectQps(End& near, End& far, const LinkOptions& options = {},
                std::source_location where = std::source_location::current());

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_CONNECT_H_
