#include <utility>

#include "examples/replicated_kv/limits.h"
#include "examples/replicated_kv/primary.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/stream.h"

namespace replicated_kv {

using verbena::Task;
using verbena::WithDeadline;

namespace {

// The primary asks how far the backup's disk is. If the primary's memory has the rest, it sends
// that. Otherwise, or if the backup has entries that this log has not, the backup leaves the
// in-sync set and gets a copy of all data. Then entries follow as they come, and once the backup is
// close it joins the set. A backup that says nothing for kPatience is lost, as is one whose disk
// does not go on.
class Follower {
 public:
  // The stream must not have the deadline of its first await.
  Follower(Primary& primary, OtherReplica& peer)
      : primary_(primary),
        log_(primary.parts().log),
        name_(peer.name),
        stream_(v1::Replication::Stub(*peer.channel)
                    .Replicate({.inherit = verbena::Inherit::kNothing})) {}

  Task<absl::Status> Run() {
    VERBENA_CO_RETURN_IF_ERROR(co_await Meet());
    std::vector<Task<absl::Status>> tasks;
    tasks.push_back(SendLog());
    tasks.push_back(TakeAcknowledgements());
    tasks.push_back(JoinOnceClose());
    co_return (co_await verbena::WhenAny(std::move(tasks))).result;
  }

 private:
  Task<absl::Status> Meet() {
    VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(stream_.Write(Message()).AsTask(), kPatience));
    v1::Acknowledgement has;
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                                co_await WithDeadline(stream_.TryRead(has), kPatience));
    // Says why, if it is over.
    if (!read) co_return co_await stream_.Finish();
    const LogPosition position = PositionOf(has.durable());
    if (!has.complete() || !log_.Has(position)) {
      if (has.complete()) replaced_ = position;
      co_return co_await SendCopy();
    }
    if (position < primary_.members().state().committed) {
      // Its disk has lost what it had synced. It gets that again, and must not become primary
      // before.
      VERBENA_CO_RETURN_IF_ERROR(co_await primary_.members().Remove(name_));
      log_.Notify();
    }
    sent_ = position.sequence;
    primary_.NoteDurable(name_, sent_);
    co_return absl::OkStatus();
  }

  Task<absl::Status> SendCopy() {
    // First, since the backup will have nothing, and must not become primary then.
    VERBENA_CO_RETURN_IF_ERROR(co_await primary_.members().Remove(name_));
    primary_.NoteDurable(name_, 0);
    log_.Notify();
    v1::LogMessage message = Message();
    // The store has all up to this, and perhaps more, which the backup will get again.
    const LogPosition from = log_.durable();
    *message.mutable_copy_begins() = MessageOf(from);
    VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(message));
    ReplicaStore::Cursor cursor;
    while (!cursor.at_end) {
      VERBENA_CO_ASSIGN_OR_RETURN(*message.mutable_page(),
                                  co_await primary_.parts().store.ReadPage(cursor));
      VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(message));
    }
    // The pages may show any of these entries: without all of them the copy is not the store of any
    // one moment.
    sent_ = from.sequence;
    VERBENA_CO_RETURN_IF_ERROR(co_await SendUpTo(log_.last().sequence));
    message.set_copy_ends(true);
    co_return co_await stream_.Write(message);
  }

  // Entries up to `sequence` that were not sent yet.
  Task<absl::Status> SendUpTo(uint64_t sequence) {
    v1::LogMessage message = Message();
    while (sent_ < sequence) {
      const std::shared_ptr<const v1::Entry> entry = log_.Find(sent_ + 1);
      if (entry == nullptr) {
        co_return absl::DataLossError(
            fmt::format("{} is too slow: entry {} is not in memory any more", name_, sent_ + 1));
      }
      *message.mutable_entry() = *entry;
      // First: the answer may be quicker than this coroutine.
      ++sent_;
      VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(message));
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> SendLog() {
    for (;;) {
      VERBENA_CO_RETURN_IF_ERROR(co_await SendUpTo(log_.last().sequence));
      if (sent_ == log_.last().sequence) VERBENA_CO_RETURN_IF_ERROR(co_await log_.Changed());
    }
  }

  Task<absl::Status> TakeAcknowledgements() {
    v1::Acknowledgement has;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                                  co_await WithDeadline(stream_.TryRead(has), kPatience));
      if (!read) co_return co_await stream_.Finish();
      if (!has.complete()) {
        if (!IsInSync(primary_.members().state(), name_)) continue;
        co_return absl::DataLossError(name_ + " says that it has lost its data");
      }
      // Said before the copy began: the backup has none of that any more.
      if (PositionOf(has.durable()) == replaced_) continue;
      const uint64_t durable = has.durable().sequence();
      if (durable > sent_) {
        co_return absl::InternalError(
            fmt::format("{} says that it has entry {}, but was sent {}", name_, durable, sent_));
      }
      primary_.NoteDurable(name_, durable);
      if (progress_.IsStuck(sent_, durable, primary_.parts().clock.Now())) {
        co_return absl::UnavailableError(
            fmt::format("the disk of {} is stuck: it has entry {} of {}", name_, durable, sent_));
      }
      const bool is_close =
          primary_.point().HasAll(name_) && durable + kMaxLagToJoin >= log_.last().sequence;
      if (is_close) close_.Set();
    }
  }

  // Beside the acknowledgements: a backup counts while it joins, and etcd may take its time.
  Task<absl::Status> JoinOnceClose() {
    absl::Status added;
    do {
      close_.Reset();
      VERBENA_CO_RETURN_IF_ERROR(co_await close_.Wait());
      added = co_await primary_.members().Add(name_);
    } while (absl::IsFailedPrecondition(added));
    if (absl::IsAborted(added)) primary_.End(std::string(added.message()));
    VERBENA_CO_RETURN_IF_ERROR(added);
    // The stream goes on.
    verbena::Event never;
    co_return co_await never.Wait();
  }

  // A message without content.
  v1::LogMessage Message() const {
    v1::LogMessage message;
    message.set_shard(primary_.parts().shard);
    message.set_epoch(primary_.epoch());
    message.set_primary(primary_.parts().name);
    return message;
  }

  Primary& primary_;
  ReplicaLog& log_;
  const std::string name_;
  verbena::ClientReaderWriter<v1::LogMessage, v1::Acknowledgement> stream_;
  uint64_t sent_ = 0;  // the last entry that was sent, or that the backup had
  // The position of the backup's disk before it got a copy; this log has no such position.
  std::optional<LogPosition> replaced_;
  BackupProgress progress_;
  verbena::Event close_;  // so that it may join
};

}  // namespace

Task<absl::Status> FollowReplica(Primary& primary, OtherReplica& peer) {
  co_return co_await Follower(primary, peer).Run();
}

}  // namespace replicated_kv
