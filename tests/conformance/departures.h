// Departures: where a device is known to do otherwise than verbs demand.
//
// A case that one concerns accepts, of the devices in the table alone, what they do instead, and
// notes that it saw it. Any other device has to do what is demanded. The report (report.h) prints
// what was seen, so that a device that mends its ways drops out of the table of docs/devices.md.
// Safe from any thread.

#ifndef VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_
#define VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_

#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "tests/conformance/objects.h"

namespace verbena::conformance {

enum class Departure {
  kUnknownOpcodeTaken,
  kBadWrUnset,
  kReceiveOnSrqQpBadWrUnset,
  kReceiveQueueDeeper,
  kLocalKeyStatus,
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
  kStateUntold,
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

// As the report prints it, and which of the known devices have it (departures.cc).
struct DepartureText {
  std::string what;
  std::string demanded;
  std::string instead;
  unsigned devices = 0;
};

DepartureText TextOf(Departure departure);

// True when the device is known to depart so.
bool IsKnown(Departure departure, const HostInfo& device);

// Notes that a device did.
void Note(Departure departure);
std::vector<Departure> NotedDepartures();

}  // namespace verbena::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_DEPARTURES_H_
