#include "tests/conformance/departures.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>

namespace verbena::internal::conformance {
namespace {

// Devices of Linux 6.1 and 6.12, with rdma-core 44.
constexpr unsigned kRxe61 = 1;  // Soft-RoCE
constexpr unsigned kRxe612 = 2;
constexpr unsigned kSiw61 = 4;  // Soft-iWARP
constexpr unsigned kSiw612 = 8;
constexpr unsigned kRxe = kRxe61 | kRxe612;
constexpr unsigned kSiw = kSiw61 | kSiw612;

// Whether the kernel is 6.12 or newer. Older ones are taken for 6.1.
bool IsLinux612() {
  utsname system{};
  int major = 0;
  int minor = 0;
  if (uname(&system) != 0 || std::sscanf(system.release, "%d.%d", &major, &minor) != 2) {
    return false;
  }
  return major > 6 || (major == 6 && minor >= 12);
}

// One of these, or 0.
unsigned KnownDevice(const HostInfo& device) {
  if (device.kind != DeviceKind::kRdma) return 0;
  static const bool kNew = IsLinux612();
  switch (device.attributes.vendor_id) {
    case 0xffffff:
      return kNew ? kRxe612 : kRxe61;
    case 0x626d74:
      return kNew ? kSiw612 : kSiw61;
    default:
      return 0;
  }
}

struct Notes {
  std::mutex mutex;
  std::set<Departure> seen;
};

Notes& notes() {
  static Notes* const kNotes = new Notes();
  return *kNotes;
}

}  // namespace

DepartureText TextOf(Departure departure) {
  switch (departure) {
    case Departure::kUnknownOpcodeTaken:
      return {"an opcode that does not exist", "refused when posted",
              "taken when posted; the QP fails later", kRxe};
    case Departure::kBadWrUnset:
      return {"a WR posted before RTS", "refused, `bad_wr` names it",
              "refused, `bad_wr` is left as it was", kRxe | kSiw};
    case Departure::kReceiveOnSrqQpBadWrUnset:
      return {"a receive posted to a QP that has an SRQ", "refused, `bad_wr` names it",
              "refused, `bad_wr` is left as it was", kRxe};
    case Departure::kReceiveQueueDeeper:
      return {"receives beyond the `max_recv_wr` that was granted", "refused with ENOMEM",
              "taken: the queue is deeper than it says", kRxe61};
    case Departure::kLocalKeyStatus:
      return {"a SEND or WRITE from memory whose lkey is bad", "LOC_PROT_ERR", "LOC_QP_OP_ERR",
              kRxe61 | kSiw};
    case Departure::kLocalErrorFlushed:
      return {"a SEND or WRITE from memory whose lkey is bad, or a binding that is not allowed",
              "LOC_PROT_ERR or MW_BIND_ERR", "WR_FLUSH_ERR", kRxe612};
    case Departure::kExecutedFlushed:
      return {"WRs that were executed ahead of one that their own device refuses",
              "complete with success", "WR_FLUSH_ERR", kRxe612};
    case Departure::kReceiveKeyStatus:
      return {"a receive whose lkey is bad", "LOC_PROT_ERR", "LOC_QP_OP_ERR", kRxe};
    case Departure::kShortReceiveStatus:
      return {"a receive that is too short for its SEND", "LOC_LEN_ERR", "LOC_QP_OP_ERR", kRxe};
    case Departure::kShortReceivePeerStatus:
      return {"a SEND that meets a receive that is too short", "REM_INV_REQ_ERR", "REM_OP_ERR",
              kRxe};
    case Departure::kReceiveInErrorKept:
      return {"a receive posted in ERR", "flushed", "never completes", kRxe | kSiw};
    case Departure::kOversizedMessageSent:
      return {"a message over `max_msg_sz`", "LOC_LEN_ERR",
              "sent all the same: it fails at the target's bounds", kRxe61};
    case Departure::kPkeyIndexUnchecked:
      return {"a P_Key index beyond the table, to INIT", "refused", "accepted", kRxe};
    case Departure::kResponderDepthUnchecked:
      return {"a `max_dest_rd_atomic` over the device's, to RTR", "refused", "accepted", kRxe};
    case Departure::kGrhFlagOnReceive:
      return {"a receive's completion on an RC QP", "without IBV_WC_GRH", "with IBV_WC_GRH", kRxe};
    case Departure::kWindowRangeUnchecked:
      return {"an access outside a memory window, inside its region", "REM_ACCESS_ERR",
              "executed: the window's range is not checked", kRxe};
    case Departure::kForeignWindowInvalidated:
      return {"SEND_WITH_INV of a window that is bound to another QP", "refused, the window stands",
              "executed: the other QP's window is free", kRxe};
    case Departure::kFreeWindowInvalidated:
      return {"a window that is free is invalidated, for a second time or the first",
              "the WR fails", "the kernel crashes", kRxe};
    case Departure::kInvalidationFlag:
      return {"the receive of a SEND_WITH_INV", "with IBV_WC_WITH_INV",
              "with IBV_WC_IP_CSUM_OK in its place; `invalidated_rkey` is right", kRxe};
    case Departure::kBindingAcrossPds:
      return {"a window is bound to a region of another PD", "MW_BIND_ERR", "bound", kRxe61};
    case Departure::kBindingWrapsAround:
      return {"a window is bound to a range that wraps around the address space", "MW_BIND_ERR",
              "bound", kRxe};
    case Departure::kBindingBehindRetry:
      return {"a BIND_MW behind a SEND that is retried after an RNR NAK",
              "both complete once a receive is there", "neither ever completes", kRxe61};
    case Departure::kBindingRepeated:
      return {"a BIND_MW behind a SEND that is retried after an RNR NAK",
              "both complete once a receive is there",
              "it is executed again, which fails: all are flushed", kRxe612};
    case Departure::kStateUntold:
      return {"the state that `ibv_query_qp` tells", "the QP's", "RESET, whatever it is in",
              kSiw61};
    case Departure::kEndUntold:
      return {"the state that `ibv_query_qp` tells once an error has ended the connection", "ERR",
              "RTS", kSiw612};
    case Departure::kNegativeErrno:
      return {"a post that is refused", "returns the errno", "returns -errno, or -1", kSiw};
    case Departure::kRefusalInChainLost:
      return {"a WR is refused behind the first of its chain", "the post fails",
              "the post returns 0, and the WR and all behind it are gone", kSiw};
    case Departure::kInlineBeyondGrant:
      return {"more inline bytes than were granted", "refused", "sent", kSiw};
    case Departure::kEmptyReceiveRefused:
      return {"a receive without a buffer", "taken", "refused", kSiw};
    case Departure::kReadPiecesDropped:
      return {"a READ into more pieces than `max_sge_rd`", "refused when posted",
              "completes with success, and only the first piece is filled", kSiw};
    case Departure::kReadOvertaken:
      return {"SENDs and WRITEs posted behind a READ", "complete behind it", "complete before it",
              kSiw};
    case Departure::kSendInErrorKept:
      return {"a SEND posted in ERR", "flushed", "never completes", kSiw};
    case Departure::kReceiveKeyGeneral:
      return {"a receive whose lkey is bad", "LOC_PROT_ERR", "GENERAL_ERR", kSiw};
    case Departure::kSolicitedUnheard:
      return {"a solicited SEND, to a CQ that is armed for these alone", "raises an event",
              "raises none", kSiw};
    case Departure::kFailureUnheard:
      return {"a failure, in a CQ that is armed for solicited completions alone", "raises an event",
              "raises none", kSiw | kRxe612};
    case Departure::kSrqUnknown:
      return {"`ibv_query_srq`", "tells depth and limit", "fails with EOPNOTSUPP", kSiw};
    case Departure::kReceiveOnSrqQpCrashes:
      return {"a receive posted to a QP that has an SRQ", "refused",
              "the process crashes: the provider divides by zero", kSiw};
    case Departure::kRefusedCqUnmapped:
      return {"a CQ whose destruction is refused while QPs use it", "goes on working",
              "its memory is unmapped already: the process crashes", kSiw};
    case Departure::kWrappingRegionTaken:
      return {"memory is registered that wraps around the address space", "refused", "registered",
              kSiw};
    case Departure::kUnreadableRead:
      return {"a READ of memory that is registered without remote read", "refused", "executed",
              kSiw};
    case Departure::kQpAccessIgnored:
      return {"an access that the region grants and the QP does not", "refused", "executed", kSiw};
    case Departure::kUnderWayStatus:
      return {"a WR that is under way when its connection ends", "flushed", "LOC_QP_OP_ERR", kSiw};
    case Departure::kWriteAfterDeregistration:
      return {"a WRITE is under way when its target's registration ends",
              "nothing lands once `ibv_dereg_mr` has returned", "more of it lands", kSiw};
  }
  return {};
}

bool IsKnown(Departure departure, const HostInfo& device) {
  return (TextOf(departure).devices & KnownDevice(device)) != 0;
}

void Note(Departure departure) {
  std::lock_guard lock(notes().mutex);
  notes().seen.insert(departure);
}

std::vector<Departure> NotedDepartures() {
  std::lock_guard lock(notes().mutex);
  return {notes().seen.begin(), notes().seen.end()};
}

}  // namespace verbena::internal::conformance
