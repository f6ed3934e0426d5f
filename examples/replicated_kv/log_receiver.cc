#include "examples/replicated_kv/log_receiver.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/shard_state.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

using verbena::Task;

v1::Acknowledgement AcknowledgementOf(const ReplicaLog& log) {
  v1::Acknowledgement has;
  *has.mutable_durable() = MessageOf(log.durable());
  has.set_complete(log.complete());
  return has;
}

namespace {

class LogReceiver {
 public:
  LogReceiver(ReceiverParts parts, LogStream& stream, uint64_t pass)
      : parts_(parts), log_(parts.log), stream_(stream), pass_(pass) {}

  Task<absl::Status> Run() {
    std::vector<Task<absl::Status>> tasks;
    tasks.push_back(TakeMessages());
    tasks.push_back(SayWhatIsDurable());
    tasks.push_back(AwaitReplacement());
    co_return (co_await verbena::WhenAny(std::move(tasks))).result;
  }

 private:
  Task<absl::Status> TakeMessages() {
    v1::LogMessage message;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream_.Read(message));
      if (!read) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(parts_.gate.Check(pass_, message.epoch()));
      VERBENA_CO_RETURN_IF_ERROR(co_await Take(message));
    }
  }

  Task<absl::Status> Take(const v1::LogMessage& message) {
    switch (message.content_case()) {
      case v1::LogMessage::kEntry:
        co_return co_await TakeEntry(message.entry(), message.epoch());
      case v1::LogMessage::kCopyBegins: {
        const LogPosition from = PositionOf(message.copy_begins());
        VERBENA_CO_RETURN_IF_ERROR(log_.CheckNext(from, message.epoch(), /*copy_begins=*/true));
        VERBENA_CO_RETURN_IF_ERROR(co_await log_.Drain());
        // The wait may have been long.
        VERBENA_CO_RETURN_IF_ERROR(parts_.gate.Check(pass_, message.epoch()));
        co_return co_await log_.BeginCopy(from);
      }
      case v1::LogMessage::kPage:
        if (log_.complete()) co_return absl::InvalidArgumentError("a page outside of a copy");
        // The names of a page are newer than those of the entries before it, and must not be
        // written before them.
        if (!message.page().names().empty()) {
          VERBENA_CO_RETURN_IF_ERROR(co_await log_.Drain());
          VERBENA_CO_RETURN_IF_ERROR(parts_.gate.Check(pass_, message.epoch()));
        }
        co_return co_await parts_.store.AddPage(message.page());
      case v1::LogMessage::kCopyEnds:
        co_return co_await log_.Complete();
      case v1::LogMessage::CONTENT_NOT_SET:
        co_return absl::OkStatus();
    }
    co_return absl::InvalidArgumentError("a message of an unknown kind");
  }

  Task<absl::Status> TakeEntry(const v1::Entry& entry, uint64_t epoch) {
    while (!log_.has_room()) VERBENA_CO_RETURN_IF_ERROR(co_await log_.Changed());
    // The wait may have been long.
    VERBENA_CO_RETURN_IF_ERROR(parts_.gate.Check(pass_, parts_.gate.epoch()));
    // What the disk refused would end this replica.
    VERBENA_CO_RETURN_IF_ERROR(CheckLengths(entry.key(), entry.value()));
    VERBENA_CO_RETURN_IF_ERROR(CheckLengths(entry.client(), ""));
    VERBENA_CO_RETURN_IF_ERROR(log_.CheckNext(PositionOf(entry), epoch));
    log_.Append(std::make_shared<v1::Entry>(entry));
    co_return absl::OkStatus();
  }

  Task<absl::Status> SayWhatIsDurable() {
    for (;;) {
      const LogPosition said = log_.durable();
      const bool was_complete = log_.complete();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(AcknowledgementOf(log_)));
      VERBENA_CO_RETURN_IF_ERROR(log_.failure());
      while (said == log_.durable() && was_complete == log_.complete()) {
        const absl::Status changed = co_await verbena::WithDeadline(log_.Changed(), kSayEvery);
        if (absl::IsDeadlineExceeded(changed)) break;
        VERBENA_CO_RETURN_IF_ERROR(changed);
      }
    }
  }

  // The others may wait for a primary that is frozen.
  Task<absl::Status> AwaitReplacement() {
    for (;;) {
      VERBENA_CO_RETURN_IF_ERROR(parts_.gate.Check(pass_, parts_.gate.epoch()));
      VERBENA_CO_RETURN_IF_ERROR(co_await log_.Changed());
    }
  }

  const ReceiverParts parts_;
  ReplicaLog& log_;
  LogStream& stream_;
  const uint64_t pass_;
};

}  // namespace

Task<absl::Status> ReceiveLog(ReceiverParts parts, LogStream& stream, const v1::LogMessage& hello) {
  VERBENA_CO_ASSIGN_OR_RETURN(const uint64_t pass, parts.gate.Admit(hello.epoch()));
  parts.log.Notify();  // the stream before, which ends
  // The former stream may be in the midst of a copy.
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await parts.turn.Lock());
  // Entries of former streams count, too. The primary goes on behind them.
  VERBENA_CO_RETURN_IF_ERROR(co_await parts.log.Drain());
  VERBENA_CO_RETURN_IF_ERROR(parts.gate.Check(pass, hello.epoch()));
  co_return co_await LogReceiver(parts, stream, pass).Run();
}

}  // namespace replicated_kv
