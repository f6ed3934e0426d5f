#include "tests/transport/link/transfers_fixture.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::internal {

void TransfersFixture::StartWith(const LinkLimits& limits) {
  Start(limits, limits);
  absl::StatusOr<std::unique_ptr<BufferPool>> pool = BufferPool::Create(
      executor(), device_context().device(), device_context().pd(),
      {.name = "payloads",
       .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
       .exposed = true});
  ASSERT_TRUE(pool.ok()) << pool.status();
  pool_ = *std::move(pool);
}

void TransfersFixture::TearDown() {
  LinksFixture::TearDown();
  buffers_.clear();
  pool_.reset();
}

void TransfersFixture::StartTransfer(Link& link, size_t bytes, TransferOutcome& outcome) {
  StartTransferOf(link, 1, bytes, outcome);
}

void TransfersFixture::StartTransferOf(Link& link, size_t pieces, size_t bytes,
                                       TransferOutcome& outcome) {
  std::vector<BufferView> local;
  for (size_t i = 0; i < pieces; ++i) {
    buffers_.push_back(*pool_->TryAllocate(bytes));
    local.push_back(buffers_.back().view());
  }
  buffers_.push_back(*pool_->TryAllocate(pieces * bytes));
  const Buffer& remote = buffers_.back();
  link.StartTransfer(
      GetParam(), local,
      {reinterpret_cast<uintptr_t>(remote.data()), pieces * bytes, remote.region().rkey()},
      &outcome);
}

std::string DirectionName(const ::testing::TestParamInfo<Transfer::Direction>& direction) {
  return direction.param == Transfer::Direction::kWrite ? "Writes" : "Reads";
}

}  // namespace verbena::internal
