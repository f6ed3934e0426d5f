#include <optional>
#include <string>
#include <utility>
#include <vector>

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
// in-sync set and gets a copy of all data. Entries go between the pages of a copy, so that it ends
// however long it takes, as long as the backup takes more than is written. Then entries follow as
// they come, and once the backup is close it joins the set. A backup that says nothing for
// kPatience is lost, as is one whose disk does not go on.
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
    const absl::Status ended = (co_await verbena::WhenAny(std::move(tasks))).result;
    if (copy_ == Copy::kNone) co_return ended;
    co_return absl::Status(
        ended.code(), fmt::format("its copy of the data failed: {}", std::string(ended.message())));
  }

 private:
  enum class Copy { kNone, kSending, kSent };

  Task<absl::Status> Meet() {
    VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(stream_.Write(Message()).AsTask(), kPatience));
    v1::Acknowledgement has;
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read,
                                co_await WithDeadline(stream_.TryRead(has), kPatience));
    if (!read) co_return co_await WhyItEnded();
    const LogPosition position = PositionOf(has.durable());
    if (!has.complete() || !log_.Has(position)) {
      if (has.complete()) replaced_ = position;
      copy_ = Copy::kSending;
      // First, since the backup will have nothing, and must not become primary then.
      VERBENA_CO_RETURN_IF_ERROR(co_await primary_.members().Remove(name_));
      primary_.NoteDurable(name_, 0);
      log_.Notify();
      co_return absl::OkStatus();
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
    VERBENA_CO_RETURN_IF_ERROR(co_await BeginCopy());
    sent_ = from_.sequence;
    v1::LogMessage message = Message();
    ReplicaStore::Cursor cursor;
    while (!cursor.at_end) {
      // The store has these entries, and no later ones: no page may be older than an entry before
      // it.
      VERBENA_CO_RETURN_IF_ERROR(co_await SendUpTo(log_.durable().sequence));
      VERBENA_CO_ASSIGN_OR_RETURN(*message.mutable_page(),
                                  co_await primary_.parts().store.ReadPage(cursor));
      VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(message));
    }
    // The pages may show any of these entries: without all of them the copy is not the store of any
    // one moment.
    VERBENA_CO_RETURN_IF_ERROR(co_await SendUpTo(log_.last().sequence));
    message.set_copy_ends(true);
    copy_ = Copy::kSent;
    co_return co_await stream_.Write(message);
  }

  // Returns when the backup has erased what it had. If that took longer than the log in memory
  // reaches back, the copy begins anew, with nothing to erase.
  Task<absl::Status> BeginCopy() {
    v1::LogMessage message = Message();
    do {
      // The store has all up to this, and perhaps more, which the backup will get again.
      from_ = log_.durable();
      *message.mutable_copy_begins() = MessageOf(from_);
      erased_.Reset();
      VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Write(message));
      VERBENA_CO_RETURN_IF_ERROR(co_await erased_.Wait());
    } while (!log_.Has(from_));
    co_return absl::OkStatus();
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
    if (copy_ == Copy::kSending) VERBENA_CO_RETURN_IF_ERROR(co_await SendCopy());
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
      if (!read) co_return co_await WhyItEnded();
      if (copy_ == Copy::kSending) {
        if (!has.complete() && PositionOf(has.durable()) == from_) erased_.Set();
        continue;
      }
      if (!has.complete()) {
        if (!IsInSync(primary_.members().state(), name_)) continue;
        co_return absl::DataLossError(name_ + " says that it has lost its data");
      }
      // Said before the copy began: the backup has none of that any more.
      if (PositionOf(has.durable()) == replaced_) continue;
      copy_ = Copy::kNone;
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
      if (durable + kMaxLagToJoin >= log_.last().sequence) close_.Set();
    }
  }

  // Beside the acknowledgements: a backup counts while it joins, and etcd may take its time.
  Task<absl::Status> JoinOnceClose() {
    VERBENA_CO_RETURN_IF_ERROR(co_await close_.Wait());
    const absl::Status added = co_await primary_.members().Add(name_);
    if (absl::IsAborted(added)) primary_.End(std::string(added.message()));
    VERBENA_CO_RETURN_IF_ERROR(added);
    // The stream goes on.
    verbena::Event never;
    co_return co_await never.Wait();
  }

  // The backup has ended the stream. Never OK.
  Task<absl::Status> WhyItEnded() {
    VERBENA_CO_RETURN_IF_ERROR(co_await stream_.Finish());
    co_return absl::UnavailableError(name_ + " has ended the stream");
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
  // The copy that the backup gets; kNone again when the backup says that it is whole.
  Copy copy_ = Copy::kNone;
  LogPosition from_;       // where the copy begins
  verbena::Event erased_;  // the backup is ready for pages from there
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
