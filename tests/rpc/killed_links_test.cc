// The outcome that a caller is told is true when its link dies at any event of its call, on either
// side. VERBENA_LINK_KILLS in the environment says how many links to kill under many calls at once.

#include "tests/rpc/killed_calls.h"
#include "tests/rpc/ledger_service.h"
#include "tests/rpc/watched_device.h"

namespace verbena::internal {
namespace {

using KilledLinksTest = KilledCalls<LedgerService, LedgerClient>;

TEST_F(KilledLinksTest, OutcomesAreTrueAtEveryEventOfALoneCall) { KillEachAlone(kEventsOfCalls); }

TEST_F(KilledLinksTest, OutcomesAreTrueAtEveryEvent) {
  KillUnderMany(kEventsOfCalls, KillsWanted("VERBENA_LINK_KILLS", 300), 4);
}

}  // namespace
}  // namespace verbena::internal
