// Requests whose replies outnumber the credits that a rogue client issued in its handshake. The
// rogue issues no more unless the test does.

#ifndef VERBENA_TESTS_RPC_WAITING_REPLIES_H_
#define VERBENA_TESTS_RPC_WAITING_REPLIES_H_

#include <cstddef>
#include <vector>

#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing.pb.h"

namespace verbena::internal {

// Bytes of a reply that takes a SEND of its own.
inline constexpr size_t kLargeReply = 3000;

// One call more than there are credits, in slots from 0, so that the last reply has to wait.
inline std::vector<RogueFrame> MoreCallsThanCredits() {
  testing::InflateRequest inflate;
  inflate.set_reply_bytes(kLargeReply);
  std::vector<RogueFrame> requests;
  for (uint32_t slot = 0; slot <= RoguePeer::kCredits; ++slot) {
    requests.push_back(
        Request("verbena.testing.Testing/Inflate", slot, 0, inflate.SerializeAsString()));
  }
  return requests;
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_WAITING_REPLIES_H_
