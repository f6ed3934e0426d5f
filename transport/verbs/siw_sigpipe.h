// IgnoreSiwSigpipe: keeps Soft-iWARP from ending the process by SIGPIPE.
//
// siw sends from within ibv_post_send, on a TCP socket of its own and without MSG_NOSIGNAL. If the
// peer has closed the connection a moment before, the thread that posts gets SIGPIPE. Its default
// action ends the process.

#ifndef VERBENA_TRANSPORT_VERBS_SIW_SIGPIPE_H_
#define VERBENA_TRANSPORT_VERBS_SIW_SIGPIPE_H_

#include "verbena/transport/device/device.h"

namespace verbena::internal {

// If `device` is siw's and SIGPIPE has its default action, the process ignores it from now on,
// which is logged. An action that the application has chosen stays.
void IgnoreSiwSigpipe(const Device& device);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_SIW_SIGPIPE_H_
