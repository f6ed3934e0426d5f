#include "examples/replicated_kv/log_receiver.h"

#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/time.h"

namespace replicated_kv {

using verbena::Task;

v1::Acknowledgement AcknowledgementOf(const ReplicaLog& log) {
  v1::Acknowledgement has;
  has.mutable_durable()->set_sequence(log.durable().sequence);
  has.mutable_durable()->set_epoch(log.durable().epoch);
  has.set_complete(log.complete());
  return has;
}

Task<absl::Status> LogReceiver::Run(const v1::LogMessage& hello) {
  VERBENA_CO_ASSIGN_OR_RETURN(pass_, gate_.Admit(hello.epoch()));
  log_.Notify();  // the stream before, which ends
  // It may be in the midst of a copy.
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await turn_.Lock());
  // What came by former streams counts, too. The primary goes on behind it.
  VERBENA_CO_RETURN_IF_ERROR(co_await log_.Drain());
  VERBENA_CO_RETURN_IF_ERROR(gate_.Check(pass_, hello.epoch()));
  auto first = co_await verbena::WhenAny(TakeMessages(), SayWhatIsDurable());
  co_return first.index() == 0 ? std::get<0>(first) : std::get<1>(first);
}

Task<absl::Status> LogReceiver::TakeMessages() {
  v1::LogMessage message;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream_.Read(message));
    if (!read) co_return absl::OkStatus();
    VERBENA_CO_RETURN_IF_ERROR(gate_.Check(pass_, message.epoch()));
    VERBENA_CO_RETURN_IF_ERROR(co_await Take(message));
  }
}

Task<absl::Status> LogReceiver::Take(const v1::LogMessage& message) {
  switch (message.content_case()) {
    case v1::LogMessage::kEntry:
      co_return co_await TakeEntry(message.entry());
    case v1::LogMessage::kCopyBegins: {
      VERBENA_CO_RETURN_IF_ERROR(co_await log_.Drain());
      log_.BeginCopy(
          {.epoch = message.copy_begins().epoch(), .sequence = message.copy_begins().sequence()});
      co_return co_await store_.Clear();
    }
    case v1::LogMessage::kPage:
      if (log_.complete()) co_return absl::InvalidArgumentError("a page outside of a copy");
      co_return co_await store_.AddPage(message.page());
    case v1::LogMessage::kCopyEnds:
      co_return co_await log_.Complete();
    case v1::LogMessage::CONTENT_NOT_SET:
      co_return absl::OkStatus();
  }
  co_return absl::InvalidArgumentError("a message of an unknown kind");
}

Task<absl::Status> LogReceiver::TakeEntry(const v1::Entry& entry) {
  while (!log_.has_room()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await log_.Changed());
  }
  // Another stream may have taken over during the wait.
  VERBENA_CO_RETURN_IF_ERROR(gate_.Check(pass_, gate_.epoch()));
  if (entry.sequence() != log_.last().sequence + 1 || entry.key().size() > kMaxKeyBytes ||
      entry.value().size() > kMaxValueBytes) {
    co_return absl::InvalidArgumentError(fmt::format("entry {} with a key of {} bytes after {}",
                                                     entry.sequence(), entry.key().size(),
                                                     log_.last().sequence));
  }
  log_.Append(std::make_shared<v1::Entry>(entry));
  co_return absl::OkStatus();
}

Task<absl::Status> LogReceiver::SayWhatIsDurable() {
  while (gate_.IsOpen(pass_)) {
    const LogPosition said = log_.durable();
    const bool was_complete = log_.complete();
    VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(AcknowledgementOf(log_)));
    VERBENA_CO_RETURN_IF_ERROR(log_.failure());
    while (gate_.IsOpen(pass_) && said == log_.durable() && was_complete == log_.complete()) {
      const absl::Status changed = co_await verbena::WithDeadline(log_.Changed(), kSayEvery);
      if (absl::IsDeadlineExceeded(changed)) break;
      VERBENA_CO_RETURN_IF_ERROR(changed);
    }
  }
  co_return absl::FailedPreconditionError("the stream of another primary took its place");
}

}  // namespace replicated_kv
