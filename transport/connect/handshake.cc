#include "verbena/transport/connect/handshake.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/base/throttled_log.h"

namespace verbena::internal {
namespace {

// `status` with the peer in its message.
absl::Status About(const MessageStream& stream, const char* what, const absl::Status& status) {
  return absl::Status(status.code(),
                      fmt::format("{} {}: {}", what, stream.peer(), std::string(status.message())));
}

// Whoever cancels knows why there is no link. Every other reason is logged here, because no
// application waits for the handshake of a server.
void LogNoLink(const MessageStream& stream, const absl::Status& why) {
  if (absl::IsCancelled(why)) return;
  HandshakeLog().Write(LogLevel::kWarning, Clock::Real().Now(),
                       fmt::format("no link with {}: {}", stream.peer(), why.ToString()));
}

}  // namespace

ThrottledLog& HandshakeLog() {
  static auto* const log = new ThrottledLog({.lines = 8});
  return *log;
}

Task<absl::StatusOr<LinkParameters>> OfferLink(MessageStream& stream, LinkParameters mine,
                                               HandshakeOptions options) {
  VERBENA_CO_RETURN_IF_ERROR(co_await stream.Send(EncodeHello(mine, options)));
  VERBENA_CO_ASSIGN_OR_RETURN(std::string reply, co_await stream.Receive());
  absl::StatusOr<LinkParameters> answer = ParseReply(reply, options);
  if (!answer.ok()) co_return About(stream, "no link with", answer.status());
  if (absl::Status same = CheckSameKind(mine.kind, answer->kind); !same.ok()) {
    co_return About(stream, "no link with", same);
  }
  co_return answer;
}

Task<absl::Status> ConfirmReady(MessageStream& stream) {
  co_return co_await stream.Send(EncodeReady());
}

Task<absl::StatusOr<LinkParameters>> ReceiveOffer(MessageStream& stream, HandshakeOptions options) {
  absl::StatusOr<std::string> hello = co_await stream.Receive();
  if (!hello.ok() && !absl::IsInvalidArgument(hello.status())) {
    // The peer is gone, or out of time: there is nobody to refuse.
    LogNoLink(stream, hello.status());
    co_return hello.status();
  }
  absl::StatusOr<LinkParameters> offer =
      hello.ok() ? ParseHello(*hello, options) : absl::StatusOr<LinkParameters>(hello.status());
  if (offer.ok()) co_return offer;
  (void)co_await RefuseOffer(stream, offer.status());
  co_return About(stream, "refused", offer.status());
}

Task<absl::Status> AcceptOffer(MessageStream& stream, LinkParameters offer, LinkParameters mine) {
  if (absl::Status same = CheckSameKind(mine.kind, offer.kind); !same.ok()) {
    (void)co_await RefuseOffer(stream, same);
    co_return About(stream, "refused", same);
  }
  co_return co_await stream.Send(EncodeAcceptance(offer, mine));
}

Task<absl::Status> RefuseOffer(MessageStream& stream, absl::Status why) {
  VERBENA_CHECK(!why.ok()) << "a refusal needs a reason";
  LogNoLink(stream, why);
  co_return co_await stream.Send(EncodeRefusal(why));
}

Task<absl::Status> AwaitReady(MessageStream& stream) {
  absl::StatusOr<std::string> ready = co_await stream.Receive();
  absl::Status status = ready.ok() ? ParseReady(*ready) : ready.status();
  if (!status.ok()) LogNoLink(stream, status);
  co_return status;
}

}  // namespace verbena::internal
