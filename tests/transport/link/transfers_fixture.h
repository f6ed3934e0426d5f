// TransfersFixture: two ends of links, and payloads that move between them in one direction.
//
// A test's parameter is the direction: the client writes to the server's memory, or READs it. Both
// ends of each transfer lie in one pool, which the fixture owns. One thread.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_TRANSFERS_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_LINK_TRANSFERS_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

// How a transfer has ended. Must outlive it.
class TransferOutcome final : public TransferListener {
 public:
  void OnTransferDone(const absl::Status& status) override { status_ = status; }
  bool done() const { return status_.has_value(); }
  bool ok() const { return done() && status_->ok(); }
  // While done().
  const absl::Status& status() const { return *status_; }

 private:
  std::optional<absl::Status> status_;
};

class TransfersFixture : public LinksFixture,
                         public ::testing::WithParamInterface<Transfer::Direction> {
 protected:
  // Both ends have `limits`.
  void StartWith(const LinkLimits& limits);
  void TearDown() override;
  void StartTransfer(Link& link, size_t bytes, TransferOutcome& outcome);
  // The local end consists of so many pieces of `bytes` each.
  void StartTransferOf(Link& link, size_t pieces, size_t bytes, TransferOutcome& outcome);

 private:
  std::unique_ptr<BufferPool> pool_;
  std::vector<Buffer> buffers_;
};

inline auto BothDirections() {
  return ::testing::Values(Transfer::Direction::kWrite, Transfer::Direction::kRead);
}
std::string DirectionName(const ::testing::TestParamInfo<Transfer::Direction>& direction);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_TRANSFERS_FIXTURE_H_
