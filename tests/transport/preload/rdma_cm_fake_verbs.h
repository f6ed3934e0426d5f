// Verbs without a device behind them, for tests of the connection manager alone: they stand in the
// place of libibverbs' functions in the test's program, and record what queue pairs are told.

#ifndef VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_FAKE_VERBS_H_
#define VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_FAKE_VERBS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace verbena::internal::preload {

// One call of ibv_modify_qp.
struct FakeModification {
  ibv_qp_attr attributes;
  int mask;
};

struct FakeQueuePair : ibv_qp {
  std::vector<FakeModification> modifications;
  uint32_t inline_bytes = 0;

  // The states that it was moved to.
  std::vector<ibv_qp_state> States() const;
};

inline FakeQueuePair& Fake(ibv_qp* qp) { return *static_cast<FakeQueuePair*>(qp); }

// Makes the next ibv_modify_qp to this state fail with EINVAL.
void FailNextFakeMove(ibv_qp_state state);

// Has ibv_create_qp fail with EINVAL for more inline bytes than that; UINT32_MAX: for none.
void LimitFakeInline(uint32_t bytes);

// Objects that were created and not destroyed, device and default domain left out.
int FakeObjects();

inline constexpr int kFakeReads = 16;  // max_qp_rd_atom
inline constexpr uint16_t kFakeLid = 0x21;

}  // namespace verbena::internal::preload

#endif  // VERBENA_TESTS_TRANSPORT_PRELOAD_RDMA_CM_FAKE_VERBS_H_
