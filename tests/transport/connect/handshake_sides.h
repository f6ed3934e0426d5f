// Link parameters for tests of the handshake. Most fields differ from their defaults, so that a
// test sees a field that does not travel.

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_HANDSHAKE_SIDES_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_HANDSHAKE_SIDES_H_

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {

inline LinkParameters Side(const std::string& name, uint32_t qp_number) {
  LinkParameters side;
  side.name = name;
  side.kind = LinkKind::kRoce;
  side.wire_revision = 5;
  side.gid[0] = 0xfe;
  side.gid[15] = static_cast<uint8_t>(qp_number);
  side.lid = 7;
  side.qp_number = qp_number;
  side.packet_sequence_number = 0xabcdef;
  side.mtu_bytes = 1024;
  side.max_reads = 3;
  side.initial_credits = 8;
  side.eager_bytes = 8192;
  side.executor_count = 4;
  side.runtime_id.bytes = {1, 2, 3, static_cast<uint8_t>(qp_number)};
  return side;
}

inline void ExpectSame(const LinkParameters& got, const LinkParameters& sent) {
  EXPECT_EQ(got.name, sent.name);
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.wire_revision, sent.wire_revision);
  EXPECT_EQ(got.gid, sent.gid);
  EXPECT_EQ(got.lid, sent.lid);
  EXPECT_EQ(got.qp_number, sent.qp_number);
  EXPECT_EQ(got.packet_sequence_number, sent.packet_sequence_number);
  EXPECT_EQ(got.mtu_bytes, sent.mtu_bytes);
  EXPECT_EQ(got.max_reads, sent.max_reads);
  EXPECT_EQ(got.initial_credits, sent.initial_credits);
  EXPECT_EQ(got.eager_bytes, sent.eager_bytes);
  EXPECT_EQ(got.executor_index, sent.executor_index);
  EXPECT_EQ(got.executor_count, sent.executor_count);
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_HANDSHAKE_SIDES_H_
