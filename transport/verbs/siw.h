// Devices of Soft-iWARP: how they are told from others, and remedies for the faults of its kernel
// module and its provider.

#ifndef VERBENA_TRANSPORT_VERBS_SIW_H_
#define VERBENA_TRANSPORT_VERBS_SIW_H_

#include "verbena/transport/device/device.h"

namespace verbena::internal {

// By its vendor, in the kernel's include/uapi/rdma/siw-abi.h: SIW_VENDOR_ID.
inline bool IsSiw(const Device& device) { return device.attributes().vendor_id == 0x626d74; }

// CoverSiwQueueKey: keeps Soft-iWARP's queues off the one place where its provider refuses them.
//
// siw maps the queues of QPs, CQs and SRQs into the process from the device's file, each at the
// first pages that are free there. rdma-core's provider takes page 144 for "no queue", so the
// object whose queue would begin there is refused with EINVAL, and so is every later one: a process
// with one-page queues gets 71 QPs. A CQ that lies over that page is never refused, and nothing
// else can begin there while it lives.
//
// Call before any other object of `device` is made, and keep the CQ. Empty for devices other than
// siw. Also empty if the CQ cannot be made: then siw may refuse queues as described above.
CqHandle CoverSiwQueueKey(Device& device);

// A SEND or WRITE of a page or more that is not signalled goes out of its memory without a copy
// (drivers/infiniband/sw/siw/siw_qp_tx.c: SENDPAGE_THRESH, MSG_SPLICE_PAGES), by TCP and perhaps
// after the completion of a later WR. Linux 6.1 asks for it, too, but its TCP copies. A signalled
// one is copied, so each longer one must be signalled. x86 has pages of 4,096 bytes, and no
// architecture has smaller ones.
inline constexpr uint32_t kMaxUnsignalledBytesOnSiw = 4095;

// IgnoreSiwSigpipe: keeps Soft-iWARP from ending the process by SIGPIPE.
//
// siw sends from within ibv_post_send, on a TCP socket of its own and without MSG_NOSIGNAL. If the
// peer has closed the connection a moment before, the thread that posts gets SIGPIPE. Its default
// action ends the process.
//
// If `device` is siw's and SIGPIPE has its default action, the process ignores it from now on,
// which is logged. An action that the application has chosen stays.
void IgnoreSiwSigpipe(const Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_SIW_H_
