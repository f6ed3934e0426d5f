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
// Everything that a peer sends is checked before it is returned. A wrong value is refused, and a
// server logs it with the peer. Every function can be cancelled at every await, and none has a time
// limit of its own: put WithDeadline around. After an error the stream is of no more use, but
// closing it is left to its owner. The stream must outlive the call, and nobody else uses it until
// the call ends.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(LinkParameters theirs,
//                               co_await WithDeadline(OfferLink(*stream, mine), 10s));

#ifndef VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_
#define VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// The handshake's messages, between bytes and LinkParameters: pure functions
// (proto/handshake.proto).
//
// The Parse functions are the only readers of what a peer sends here. They take any bytes, allocate
// no more than a small multiple of them, and name the first value that is wrong. Peers' texts come
// out escaped, so that they can be logged.

// The versions of the protocol that this build speaks. A version names one exact wire: any change
// of what two sides send each other, in the handshake or on the link, takes the next number, and
// tests/repository/wire_test.py notices.
inline constexpr uint32_t kMinProtocolVersion = 3;
inline constexpr uint32_t kMaxProtocolVersion = 3;
// Feature bits. The queue pairs are connected through rdma_cm. A side that has no connection
// manager leaves this bit out.
inline constexpr uint64_t kFeatureRdmaCm = 1u << 0;
// This side leases memory through memory windows, and its device reports which window a
// SEND_WITH_INV invalidated. A side that lacks either leaves the bit out, and gets no such SEND.
inline constexpr uint64_t kFeatureInvalidation = 1u << 1;
// Payloads carry a CRC32C.
inline constexpr uint64_t kFeatureChecksum = 1u << 2;
// The server grants landings for the payloads of requests to come.
inline constexpr uint64_t kFeatureGrants = 1u << 3;
// A request may name earlier attempts of its call, which the server ends first.
inline constexpr uint64_t kFeatureEarlierAttempts = 1u << 4;
// PING and PONG may have a body, which only fills the packet.
inline constexpr uint64_t kFeaturePaddedPing = 1u << 5;
// The name of a deduplicated call may tell the highest number that its client has given.
inline constexpr uint64_t kFeatureHighestNumber = 1u << 6;
// The features that this build knows.
inline constexpr uint64_t kSupportedFeatures =
    kFeatureRdmaCm | kFeatureInvalidation | kFeatureChecksum | kFeatureGrants |
    kFeatureEarlierAttempts | kFeaturePaddedPing | kFeatureHighestNumber;

// The versions and features that this side offers in a handshake.
struct HandshakeOptions {
  uint32_t min_version = kMinProtocolVersion;
  uint32_t max_version = kMaxProtocolVersion;
  uint64_t features = kSupportedFeatures;
  // A server refuses an offer whose executor_index is not less than this. A server that takes the
  // index modulo its executors sets kMaxExecutors.
  uint32_t executor_count = 1;
};

// The longest wait that a refusal asks for.
inline constexpr Duration kLongestComeAgain = std::chrono::seconds(10);

std::string EncodeHello(const LinkParameters& mine, const HandshakeOptions& options);
// The client's parameters, with the version and features that both sides speak. INVALID_ARGUMENT,
// or FAILED_PRECONDITION when no version is common.
absl::StatusOr<LinkParameters> ParseHello(const std::string& bytes,
                                          const HandshakeOptions& options);

// `offer` is what ParseHello() returned. The acceptance keeps kFeatureRdmaCm of the offer only if
// `mine.rdma_cm` has a port.
std::string EncodeAcceptance(const LinkParameters& offer, const LinkParameters& mine);
// `why` is an error. If it asks for a wait (transport/base/retry_after.h), so does the refusal:
// from 1 ms to kLongestComeAgain.
std::string EncodeRefusal(const absl::Status& why);
// The server's parameters, or the Status that it refused with, which asks for the refusal's wait.
absl::StatusOr<LinkParameters> ParseReply(const std::string& bytes,
                                          const HandshakeOptions& options);

std::string EncodeReady();
absl::Status ParseReady(const std::string& bytes);

// FAILED_PRECONDITION when queue pairs of `kind` cannot be connected with these features: iWARP
// without kFeatureRdmaCm.
absl::Status CheckConnectable(LinkKind kind, uint64_t features);

// FAILED_PRECONDITION unless the two ends are of one kind and, where a device of software has a
// wire of its own, of one revision.
absl::Status CheckSameWire(const LinkParameters& mine, const LinkParameters& theirs);

class ThrottledLog;

// The log of the links that did not come to be. It is throttled, because peers can cause as many
// failures as they like.
ThrottledLog& HandshakeLog();

// Client. Returns the server's parameters, or the error of its refusal. INVALID_ARGUMENT: the
// server breaks the protocol. UNAVAILABLE: the server closes the stream. FAILED_PRECONDITION: the
// server's queue pair cannot be connected to `mine`.
Task<absl::StatusOr<LinkParameters>> OfferLink(MessageStream& stream, LinkParameters mine,
                                               HandshakeOptions options = {});
Task<absl::Status> ConfirmReady(MessageStream& stream);

// Server. Returns the client's parameters. A wrong offer is refused and logged before this returns
// the error, and so is one for which the stream's Receive() returns an error with a wait
// (transport/base/retry_after.h).
Task<absl::StatusOr<LinkParameters>> ReceiveOffer(MessageStream& stream,
                                                  HandshakeOptions options = {});
// `offer` is what ReceiveOffer() returned. FAILED_PRECONDITION, and a refusal, if the offer is for
// another kind of device.
Task<absl::Status> AcceptOffer(MessageStream& stream, LinkParameters offer, LinkParameters mine);
// Refuses the offer, and logs that. `why` is an error; the client gets its code and message.
Task<absl::Status> RefuseOffer(MessageStream& stream, absl::Status why);
Task<absl::Status> AwaitReady(MessageStream& stream);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_HANDSHAKE_H_
