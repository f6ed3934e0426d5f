#include "tests/conformance/matchers.h"

#include <algorithm>

namespace verbena::internal::conformance {
namespace {

template <typename Wr>
void SetSges(Wr& wr, std::initializer_list<ibv_sge> sges) {
  wr.sge_count = static_cast<uint32_t>(sges.size());
  std::copy(sges.begin(), sges.end(), wr.sges.begin());
}

SendWr OneSided(ibv_wr_opcode opcode, uint64_t wr_id, std::initializer_list<ibv_sge> sges,
                const Memory& target, uint64_t offset) {
  SendWr wr = Send(wr_id, sges);
  wr.opcode = opcode;
  wr.remote_address = target.address + offset;
  wr.rkey = target.rkey;
  return wr;
}

}  // namespace

std::string Pattern(uint32_t seed, uint64_t bytes) {
  std::string pattern(bytes, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : pattern) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return pattern;
}

SendWr Send(uint64_t wr_id, std::initializer_list<ibv_sge> sges) {
  SendWr wr{.wr_id = wr_id};
  SetSges(wr, sges);
  return wr;
}

SendWr SendImmediate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, uint32_t immediate) {
  SendWr wr = Send(wr_id, sges);
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.immediate = immediate;
  return wr;
}

SendWr Write(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& target,
             uint64_t offset) {
  return OneSided(IBV_WR_RDMA_WRITE, wr_id, sges, target, offset);
}

SendWr WriteImmediate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& target,
                      uint64_t offset, uint32_t immediate) {
  SendWr wr = OneSided(IBV_WR_RDMA_WRITE_WITH_IMM, wr_id, sges, target, offset);
  wr.immediate = immediate;
  return wr;
}

SendWr Read(uint64_t wr_id, std::initializer_list<ibv_sge> sges, const Memory& source,
            uint64_t offset) {
  return OneSided(IBV_WR_RDMA_READ, wr_id, sges, source, offset);
}

SendWr CompareSwap(uint64_t wr_id, const ibv_sge& old_value, const Memory& target, uint64_t offset,
                   uint64_t compare, uint64_t swap) {
  SendWr wr = OneSided(IBV_WR_ATOMIC_CMP_AND_SWP, wr_id, {old_value}, target, offset);
  wr.compare_add = compare;
  wr.swap = swap;
  return wr;
}

SendWr FetchAdd(uint64_t wr_id, const ibv_sge& old_value, const Memory& target, uint64_t offset,
                uint64_t add) {
  SendWr wr = OneSided(IBV_WR_ATOMIC_FETCH_AND_ADD, wr_id, {old_value}, target, offset);
  wr.compare_add = add;
  return wr;
}

SendWr SendInvalidate(uint64_t wr_id, std::initializer_list<ibv_sge> sges, uint32_t rkey) {
  SendWr wr = Send(wr_id, sges);
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.rkey = rkey;
  return wr;
}

SendWr LocalInvalidate(uint64_t wr_id, uint32_t rkey) {
  SendWr wr = Send(wr_id, {});
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.rkey = rkey;
  return wr;
}

SendWr BindWindow(uint64_t wr_id, const Mw& window, uint32_t rkey, const Memory& region,
                  uint64_t offset, uint64_t bytes, int access) {
  SendWr wr = Send(wr_id, {});
  wr.opcode = IBV_WR_BIND_MW;
  wr.rkey = rkey;
  wr.bind = {.window = window.id,
             .region = region.id,
             .address = region.address + offset,
             .bytes = bytes,
             .access = static_cast<unsigned>(access)};
  return wr;
}

RecvWr Receive(uint64_t wr_id, std::initializer_list<ibv_sge> sges) {
  RecvWr wr{.wr_id = wr_id};
  SetSges(wr, sges);
  return wr;
}

SendWr Unsignalled(SendWr wr) {
  wr.flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
  return wr;
}

SendWr Flagged(SendWr wr, unsigned flags) {
  wr.flags |= flags;
  return wr;
}

}  // namespace verbena::internal::conformance
