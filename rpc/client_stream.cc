#include "verbena/rpc/client_stream.h"

#include <cstdint>

#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/stream_call.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

using google::protobuf::MessageLite;

Deadline DeadlineOf(const Channel& channel, const CallOptions& options) {
  return options.deadline.is_given() ? options.deadline : channel.options().default_deadline;
}

bool HasPayloads(const CallOptions& options) {
  return options.request_payload.present() || options.response_payload_into ||
         options.max_response_payload != 0;
}

}  // namespace

class ChannelStream final : public StreamCall {
 public:
  ChannelStream(Channel& channel, const MethodDescriptor& method, const MessageLite* request,
                const CallOptions& options)
      : StreamCall(method, DeadlineOf(channel, options), options.info,
                   request != nullptr ? request->SerializeAsString() : std::string()),
        channel_(channel) {
    if (HasPayloads(options)) {
      Refuse(
          absl::InvalidArgumentError(fmt::format("{} is a stream, whose payloads go with its "
                                                 "messages: leave request_payload, "
                                                 "response_payload_into and max_response_payload "
                                                 "of CallOptions unset",
                                                 method.full_name)));
    } else if (options.priority != Priority::kNormal || options.request_id.has_value() ||
               !options.metadata.untouched()) {
      Refuse(absl::InvalidArgumentError(fmt::format(
          "{} is a stream, which carries no context yet: leave metadata, priority and request_id "
          "of CallOptions unset",
          method.full_name)));
    }
  }

  // StreamRefs, and the StreamHandle.
  uint32_t shares = 1;

  // nullptr: the call has ended, since this thread has no connection.
  Connection* connection() {
    Connection* connection = channel_.ConnectionHere();
    if (connection == nullptr) GiveUp(NotOnAnExecutor());
    return connection;
  }

 private:
  Channel& channel_;
};

StreamHandle::StreamHandle(Channel& channel, const MethodDescriptor& method,
                           const MessageLite* request, CallOptions&& options)
    : stream_(new ChannelStream(channel, method, request, options)) {}

void StreamHandle::Deleter::operator()(ChannelStream* stream) const {
  if (!VERBENA_MUTANT(kAbandonedStreamRuns)) stream->Abandon();
  if (--stream->shares == 0) delete stream;
}

StreamRef::StreamRef(ChannelStream& stream) : stream_(&stream) { ++stream.shares; }

StreamRef::~StreamRef() {
  if (stream_ != nullptr && --stream_->shares == 0) delete stream_;
}

StreamReceiver& ReceiverOf(ChannelStream& stream) { return stream.receiver(); }
StreamSender& SenderOf(ChannelStream& stream) { return stream.sender(); }

bool BeginsStream::HasBegun() {
  if (stream_.begun()) [[likely]]
    return true;
  Connection* connection = stream_.connection();
  return connection == nullptr || stream_.Begin(*connection);
}

Task<void> BeginsStream::Begin(StreamRef stream) {
  Connection* connection = stream->connection();
  if (connection != nullptr && !stream->Begin(*connection)) co_await stream->Connect(*connection);
}

Task<bool> ClientRead::ReadLater(StreamRef stream, MessageLite& into) {
  co_await Begin(stream);
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), into);
  co_return read.ok() && *read;
}

Task<absl::Status> ClientWrite::WriteLater(StreamRef stream, const MessageLite& message,
                                           BorrowedPayload payload) {
  co_await Begin(stream);
  co_return co_await StreamWrite(stream->sender(), message, payload);
}

namespace {

struct Beginner : BeginsStream {
  using BeginsStream::Begin;
};

Task<absl::Status> AwaitEnd(StreamRef stream) {
  co_await StreamEndAwaiter(*stream);
  co_return stream->status();
}

}  // namespace

Task<bool> ReadWithPayload(StreamRef stream, MessageLite& into, PayloadSink sink) {
  co_await Beginner::Begin(stream);
  const absl::StatusOr<bool> read = co_await ReadWithPayload(stream->receiver(), into, sink);
  co_return read.ok() && *read;
}

Task<absl::Status> EndWrites(StreamRef stream) {
  co_await Beginner::Begin(stream);
  if (stream->ended()) co_return stream->status();
  if (!stream->begun()) co_return (co_await CurrentContext()).cancel->status();
  stream->EndWrites();
  co_return absl::OkStatus();
}

Task<absl::Status> FinishStream(StreamRef stream) {
  co_await Beginner::Begin(stream);
  if (stream->method().streams == Streams::kBoth) stream->EndWrites();
  stream->receiver().Discard();
  co_return co_await AwaitEnd(stream);
}

Task<absl::Status> FinishWithReply(StreamRef stream, MessageLite& reply) {
  co_await Beginner::Begin(stream);
  stream->EndWrites();
  // A reply that is larger than a frame comes as a message, for whose parts this makes room.
  const absl::StatusOr<bool> read = co_await StreamRead(stream->receiver(), reply);
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitEnd(stream));
  const bool parsed = stream->reply_apart() ? read.ok() && *read : stream->ParseReply(reply);
  if (!parsed) co_return stream->Unparsed(reply);
  co_return absl::OkStatus();
}

}  // namespace verbena::internal
