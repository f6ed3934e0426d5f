#include "tests/conformance/departures.h"

#include <algorithm>
#include <mutex>
#include <set>

namespace verbena::conformance {
namespace {

// Soft-RoCE's, in ibv_device_attr.
constexpr uint32_t kRxeVendor = 0xffffff;

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
              "taken when posted; the QP fails later"};
    case Departure::kBadWrUnset:
      return {"a WR posted before RTS", "refused, `bad_wr` names it",
              "refused, `bad_wr` is left as it was"};
    case Departure::kReceiveOnSrqQpBadWrUnset:
      return {"a receive posted to a QP that has an SRQ", "refused, `bad_wr` names it",
              "refused, `bad_wr` is left as it was"};
    case Departure::kReceiveQueueDeeper:
      return {"receives beyond the `max_recv_wr` that was granted", "refused with ENOMEM",
              "taken: the queue is deeper than it says"};
    case Departure::kLocalKeyStatus:
      return {"a SEND or WRITE from memory whose lkey is bad", "LOC_PROT_ERR", "LOC_QP_OP_ERR"};
    case Departure::kReceiveKeyStatus:
      return {"a receive whose lkey is bad", "LOC_PROT_ERR", "LOC_QP_OP_ERR"};
    case Departure::kShortReceiveStatus:
      return {"a receive that is too short for its SEND", "LOC_LEN_ERR", "LOC_QP_OP_ERR"};
    case Departure::kShortReceivePeerStatus:
      return {"a SEND that meets a receive that is too short", "REM_INV_REQ_ERR", "REM_OP_ERR"};
    case Departure::kReceiveInErrorKept:
      return {"a receive posted in ERR", "flushed", "never completes"};
    case Departure::kOversizedMessageSent:
      return {"a message over `max_msg_sz`", "LOC_LEN_ERR",
              "sent all the same: it fails at the target's bounds"};
    case Departure::kPkeyIndexUnchecked:
      return {"a P_Key index beyond the table, to INIT", "refused", "accepted"};
    case Departure::kResponderDepthUnchecked:
      return {"a `max_dest_rd_atomic` over the device's, to RTR", "refused", "accepted"};
    case Departure::kGrhFlagOnReceive:
      return {"a receive's completion on an RC QP", "without IBV_WC_GRH", "with IBV_WC_GRH"};
    case Departure::kWindowRangeUnchecked:
      return {"an access outside a memory window, inside its region", "REM_ACCESS_ERR",
              "executed: the window's range is not checked"};
    case Departure::kForeignWindowInvalidated:
      return {"SEND_WITH_INV of a window that is bound to another QP", "refused, the window stands",
              "executed: the other QP's window is free"};
    case Departure::kFreeWindowInvalidated:
      return {"a window that is free is invalidated, for a second time or the first",
              "the WR fails", "the kernel crashes"};
    case Departure::kInvalidationFlag:
      return {"the receive of a SEND_WITH_INV", "with IBV_WC_WITH_INV",
              "with IBV_WC_IP_CSUM_OK in its place; `invalidated_rkey` is right"};
    case Departure::kBindingAcrossPds:
      return {"a window is bound to a region of another PD", "MW_BIND_ERR", "bound"};
    case Departure::kBindingWrapsAround:
      return {"a window is bound to a range that wraps around the address space", "MW_BIND_ERR",
              "bound"};
    case Departure::kBindingBehindRetry:
      return {"a BIND_MW behind a SEND that is retried after an RNR NAK",
              "both complete once a receive is there", "neither ever completes"};
  }
  return {};
}

// All that we know are Soft-RoCE's, of Linux 6.1 with rdma-core 44.
bool IsKnown(Departure, const HostInfo& device) {
  return device.kind == DeviceKind::kRdma && device.attributes.vendor_id == kRxeVendor;
}

void Note(Departure departure) {
  std::lock_guard lock(notes().mutex);
  notes().seen.insert(departure);
}

std::vector<Departure> NotedDepartures() {
  std::lock_guard lock(notes().mutex);
  return {notes().seen.begin(), notes().seen.end()};
}

}  // namespace verbena::conformance
