// The outcome that Finish() tells is true when a stream's link dies at any of its events, on either
// side. VERBENA_STREAM_KILLS in the environment says how many links to kill under many streams at
// once.

#include "tests/rpc/killed_calls.h"
#include "tests/rpc/stream_ledger.h"
#include "tests/rpc/watched_device.h"

namespace verbena::internal {
namespace {

using KilledStreamsTest = KilledCalls<StreamLedgerService, StreamLedgerClient>;

TEST_F(KilledStreamsTest, FinishTellsTheTruthAtEveryEventOfALoneStream) {
  KillEachAlone(kEventsOfStreams);
}

TEST_F(KilledStreamsTest, FinishTellsTheTruthAtEveryEvent) {
  KillUnderMany(kEventsOfStreams, KillsWanted("VERBENA_STREAM_KILLS", 300), 8);
}

}  // namespace
}  // namespace verbena::internal
