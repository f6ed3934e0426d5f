// A landing counts for its client and source until its memory is free, even after its link is lost.

#include "verbena/rpc/server/landings.h"
#include "tests/rpc/first_device.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/rpc/runtime_pair.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace landings_test {

constexpr size_t kBytes = 64 << 10;

Task<absl::Status> LoseALink(Runtime& runtime) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer landing,
                              co_await PayloadMemoryOf(runtime)->receive().Allocate(kBytes));
  auto source = std::make_shared<ServerSource>(
      ClientBounds{.calls = 1, .bytes = 2 * kBytes, .granted = kBytes, .responses = kBytes});
  auto client = std::make_shared<ServerClient>(
      source, ClientBounds{.calls = 1, .bytes = kBytes, .granted = kBytes, .responses = kBytes});
  auto holders = std::make_shared<MemoryHolders>();
  const std::weak_ptr<ServerClient> lives = client;
  QuotaHold hold = client->TryGrant(kBytes);
  EXPECT_TRUE(hold);
  holders->grants = kBytes;
  // As a lease does.
  BufferPin pin(landing.view());
  ReturnWithMemory(std::move(landing), std::move(hold), *client, holders);
  EXPECT_EQ(source->grants().used(), kBytes);
  EXPECT_EQ(source->requests().room(), kBytes);
  EXPECT_EQ(holders->grants, kBytes);
  EXPECT_FALSE(client->TryGrant(kBytes));
  // The last link of the client goes, and it connects anew.
  client.reset();
  EXPECT_FALSE(lives.expired());
  pin.Reset();
  EXPECT_TRUE(lives.expired());
  EXPECT_EQ(source->grants().used(), 0u);
  EXPECT_EQ(source->requests().room(), 2 * kBytes);
  EXPECT_EQ(holders->grants, 0u);
  co_return absl::OkStatus();
}

class LandingsTest : public RuntimePair {};

TEST_F(LandingsTest, TheShareOfALostLinksLandingReturnsWithItsMemory) {
  const std::unique_ptr<Runtime> runtime = StartRuntime();
  EXPECT_EQ(runtime->BlockOn(LoseALink(*runtime)), absl::OkStatus());
}

}  // namespace landings_test
}  // namespace verbena::internal
