#include "verbena/transport/soft/lent_payloads.h"

#include <algorithm>
#include <cstring>

#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {

void LentPayloads::Add(uint64_t position, uint32_t offset, const void* from, uint32_t bytes) {
  VERBENA_CHECK(!full()) << "position " << position;
  loans_[count_lent_++] = {.message = position,
                           .at = position * kLineBytes + kHeaderBytes + offset,
                           .from = static_cast<const std::byte*>(from),
                           .bytes = bytes};
}

size_t LentPayloads::Describe(uint64_t from, uint64_t to, std::span<iovec> parts) const {
  size_t count = 0;
  const auto add = [&](const std::byte* start, uint64_t bytes) {
    if (bytes != 0) parts[count++] = {.iov_base = const_cast<std::byte*>(start), .iov_len = bytes};
  };
  for (size_t i = 0; i < count_lent_ && from != to; ++i) {
    const Loan& loan = loans_[i];
    if (loan.at >= to) break;
    if (loan.at + loan.bytes <= from) continue;
    if (loan.at > from) {
      add(ByteAt(from), loan.at - from);
      from = loan.at;
    }
    const uint64_t end = std::min(loan.at + loan.bytes, to);
    add(loan.from + (from - loan.at), end - from);
    from = end;
  }
  add(ByteAt(from), to - from);
  return count;
}

uint64_t LentPayloads::WholeMessages(uint64_t from, uint64_t to) const {
  for (const Loan& loan : std::span(loans_).first(count_lent_)) {
    if (loan.at + loan.bytes <= to * kLineBytes) continue;
    return loan.message > from && loan.message < to ? loan.message : to;
  }
  return to;
}

LentPayloads::Settlement LentPayloads::Settle(uint64_t unsent) {
  Settlement settlement;
  for (const Loan& loan : std::span(loans_).first(count_lent_)) {
    const uint64_t sent = loan.at >= unsent ? 0 : std::min<uint64_t>(unsent - loan.at, loan.bytes);
    const uint64_t left = loan.bytes - sent;
    if (left != 0) std::memcpy(ByteAt(loan.at + sent), loan.from + sent, left);
    settlement.sent += sent;
    settlement.copied += left;
  }
  count_lent_ = 0;
  return settlement;
}

}  // namespace verbena::internal::soft
