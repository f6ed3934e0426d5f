// The handshake of a link: how two sides agree on a version and exchange what their queue pairs
// need, over a MessageStream (proto/handshake.proto).
//
//   client                                     server
//     OfferLink(stream, mine)        ------->    offer = ReceiveOffer(stream)
//                                                makes its queue pair, ready to receive (RTR)
//                                    <-------    AcceptOffer(stream, offer, mine), or RefuseOffer()
//     connects its queue pair (RTS)
//     ConfirmReady(stream)           ------->    AwaitReady(stream), then may send (RTS)
//
// Everything that a peer sends is checked before it is returned; what is wrong is refused, and a
// server logs it, with the peer and the value. Every function can be cancelled at every await, and
// none has a time limit of its own: put WithDeadline around. After an error the stream is of no
// more use, but closing it is left to its owner. The stream must outlive the call, and nobody else
// uses it until the call ends.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters theirs,
//                               co_await WithDeadline(OfferLink(*stream, mine), 10s));

#ifndef VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_
#define VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake_codec.h"
#include "verbena/transport/connect/link_parameters.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class ThrottledLog;

// The log of the links that did not come to be. It is throttled, because peers can cause as many
// failures as they like.
ThrottledLog& HandshakeLog();

// Client. The server's parameters; or its refusal, with its code and message; or INVALID_ARGUMENT
// when it does not keep to the protocol, UNAVAILABLE when it closes, FAILED_PRECONDITION when its
// queue pair cannot be connected to `mine`.
Task<absl::StatusOr<LinkParameters>> OfferLink(MessageStream& stream, LinkParameters mine,
                                               HandshakeOptions options = {});
Task<absl::Status> ConfirmReady(MessageStream& stream);

// Server. The client's parameters. A wrong offer is refused and logged before this returns its
// error.
Task<absl::StatusOr<LinkParameters>> ReceiveOffer(MessageStream& stream,
                                                  HandshakeOptions options = {});
// `offer` is what ReceiveOffer() returned. FAILED_PRECONDITION, and a refusal, when it is for
// another kind of device.
Task<absl::Status> AcceptOffer(MessageStream& stream, LinkParameters offer, LinkParameters mine);
// Logs it too. `why` is an error; the client gets its code and message.
Task<absl::Status> RefuseOffer(MessageStream& stream, absl::Status why);
Task<absl::Status> AwaitReady(MessageStream& stream);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_
