// Matchers of completions and posts, and builders of WRs, for cases that read as sentences.

#ifndef VERBENA_TESTS_CONFORMANCE_MATCHERS_H_
#define VERBENA_TESTS_CONFORMANCE_MATCHERS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "tests/conformance/objects.h"
#include "verbena/transport/device/verbs_status.h"

// How gtest shows a completion; found by argument-dependent lookup.
inline void PrintTo(const ibv_wc& wc, std::ostream* out) {
  *out << verbena::internal::WcStatusName(wc.status) << " of WR " << wc.wr_id << ", opcode "
       << wc.opcode << ", " << wc.byte_len << " bytes, QPN " << wc.qp_num;
}

namespace verbena::internal::conformance {

MATCHER_P(HasStatus, status, std::string(negation ? "is not " : "is ") + WcStatusName(status)) {
  return arg.status == status;
}

MATCHER_P(HasWrId, wr_id, "has the wr_id " + testing::PrintToString(wr_id)) {
  return arg.wr_id == static_cast<uint64_t>(wr_id);
}

MATCHER_P2(Succeeded, opcode, wr_id,
           "is IBV_WC_SUCCESS of WR " + testing::PrintToString(wr_id) + ", opcode " +
               testing::PrintToString(static_cast<int>(opcode))) {
  return arg.status == IBV_WC_SUCCESS && arg.opcode == opcode &&
         arg.wr_id == static_cast<uint64_t>(wr_id);
}

MATCHER_P2(Failed, status, wr_id,
           std::string("is ") + WcStatusName(status) + " of WR " + testing::PrintToString(wr_id)) {
  return arg.status == status && arg.wr_id == static_cast<uint64_t>(wr_id);
}

// A post that took everything.
MATCHER(Accepted, "was accepted") {
  *result_listener << "errno " << arg.error << " after " << arg.accepted;
  return arg.error == 0;
}

// A post whose first `accepted` WRs were taken, and whose next was refused with `error`.
MATCHER_P2(RefusedAfter, accepted, error,
           "was refused with errno " + testing::PrintToString(error) + " after " +
               testing::PrintToString(accepted)) {
  *result_listener << "errno " << arg.error << " after " << arg.accepted;
  return arg.error == error && arg.accepted == static_cast<uint32_t>(accepted);
}

// `bytes` bytes that differ with `seed` and from place to place.
std::string Pattern(uint32_t seed, uint64_t bytes);

SendWr Send(uint64_t wr_id, std::initializer_list<ibv_sge> sges);
SendWr SendImmediate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, uint32_t immediate);
SendWr Write(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& target,
             uint64_t offset);
SendWr WriteImmediate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& target,
                      uint64_t offset, uint32_t immediate);
SendWr Read(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& source,
            uint64_t offset);
SendWr CompareSwap(uint64_t wr_id, const ibv_sge& old_value, const Memory& target, uint64_t offset,
                   uint64_t compare, uint64_t swap);
SendWr FetchAdd(uint64_t wr_id, const ibv_sge& old_value, const Memory& target, uint64_t offset,
                uint64_t add);
SendWr SendInvalidate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, uint32_t rkey);
SendWr LocalInvalidate(uint64_t wr_id, uint32_t rkey);
// Binds `window` to `bytes` bytes of `region` from `offset`. The window's key becomes `rkey`.
SendWr BindWindow(uint64_t wr_id, const Mw& window, uint32_t rkey, const Memory& region,
                  uint64_t offset, uint64_t bytes, int access);
RecvWr Receive(uint64_t wr_id, std::initializer_list<ibv_sge> sges);

// The WR with other flags.
SendWr Unsignalled(SendWr wr);
SendWr Flagged(SendWr wr, unsigned flags);

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_MATCHERS_H_
