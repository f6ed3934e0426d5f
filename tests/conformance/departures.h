// Departure: a rule of verbs that a known device does not keep.
//
// A case that a departure concerns accepts it from the devices that departures.cc lists for it, and
// notes that it saw it. Every other device must keep the rule. The report (report.h) prints the
// noted departures: one that a device no longer shows drops out of the table in docs/devices.md.
// Safe from any thread.

#ifndef VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_
#define VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_

#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "tests/conformance/objects.h"

namespace verbena::internal::conformance {

enum class Departure {
  kUnknownOpcodeTaken,
  kBadWrUnset,
  kReceiveOnSrqQpBadWrUnset,
  kReceiveQueueDeeper,
  kLocalKeyStatus,
  kLocalErrorFlushed,
  kExecutedFlushed,
  kReceiveKeyStatus,
  kShortReceiveStatus,
  kShortReceivePeerStatus,
  kReceiveInErrorKept,
  kOversizedMessageSent,
  kPkeyIndexUnchecked,
  kResponderDepthUnchecked,
  kGrhFlagOnReceive,
  kWindowRangeUnchecked,
  kForeignWindowInvalidated,
  kFreeWindowInvalidated,
  kInvalidationFlag,
  kBindingAcrossPds,
  kBindingWrapsAround,
  kBindingBehindRetry,
  kBindingRepeated,
  kStateUntold,
  kEndUntold,
  kNegativeErrno,
  kRefusalInChainLost,
  kInlineBeyondGrant,
  kEmptyReceiveRefused,
  kReadPiecesDropped,
  kReadOvertaken,
  kSendInErrorKept,
  kReceiveKeyGeneral,
  kSolicitedUnheard,
  kFailureUnheard,
  kSrqUnknown,
  kReceiveOnSrqQpCrashes,
  kRefusedCqUnmapped,
  kWrappingRegionTaken,
  kUnreadableRead,
  kQpAccessIgnored,
  kUnderWayStatus,
  kWriteAfterDeregistration,
};

// The report's text for a departure, and the devices that have it, as bits (departures.cc).
struct DepartureText {
  std::string what;
  std::string demanded;
  std::string instead;
  unsigned devices = 0;
};

DepartureText TextOf(Departure departure);

// True if the device is known for this departure.
bool IsKnown(Departure departure, const HostInfo& device);

// Notes that a case saw this departure.
void Note(Departure departure);
std::vector<Departure> NotedDepartures();

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_
