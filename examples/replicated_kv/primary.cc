#include "examples/replicated_kv/primary.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/log.h"

namespace replicated_kv {

using verbena::Task;

namespace {

std::string ClientOf(const verbena::RequestId& id) { return {id.client.begin(), id.client.end()}; }

}  // namespace

Primary::Primary(PrimaryParts parts, SeenState seen)
    : parts_(std::move(parts)),
      inherited_(parts_.log.last().sequence),
      point_(parts_.log.last(), seen.state.epoch),
      members_(parts_.directory, point_, std::move(seen), parts_.lease) {}

Task<void> Primary::Run() {
  if (ended_) co_return;
  verbena::TaskScope scope(co_await verbena::CurrentContext());
  running_ = &scope.cancel_scope();
  scope.Spawn(WatchOwnDisk());
  scope.Spawn(TellCommitted());
  std::vector<std::string> strangers = members_.state().in_sync;
  std::erase(strangers, parts_.name);
  for (OtherReplica& peer : parts_.peers) {
    std::erase(strangers, peer.name);
    scope.Spawn(Follow(peer));
  }
  // Nobody would follow these, and each write would wait for them.
  for (const std::string& name : strangers) scope.Spawn(Remove(name));
  co_await scope.Join();
  running_ = nullptr;
  End("it stops");
}

void Primary::End(std::string why) {
  if (ended_) return;
  ended_ = true;
  why_ended_ = std::move(why);
  if (running_ != nullptr) running_->Request();
  WakeCommitted();
  parts_.log.Notify();
}

absl::Status Primary::Serving() const {
  if (!ended_ && parts_.term.Holds(parts_.clock.Now())) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("{} is not the primary of shard {} any more: {}",
                                            parts_.name, parts_.shard,
                                            ended_ ? why_ended_ : "its lease is over"));
}

Task<absl::StatusOr<LogPosition>> Primary::Begin(WriteKind kind, const v1::WriteRequest& request,
                                                 WriteName name) {
  // From here on the store has all that this epoch found.
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitCommitted(0));
  // Across the read of the old value: a write behind this one must find this one.
  VERBENA_CO_ASSIGN_OR_RETURN(const verbena::MutexLock lock, co_await ordering_.Lock());
  const std::string client = ClientOf(name.id);
  VERBENA_CO_ASSIGN_OR_RETURN(const std::optional<uint64_t> before,
                              parts_.store.names().Find(client, name.id.number));
  if (before.has_value()) co_return LogPosition{.sequence = *before};
  std::string value;
  if (kind == WriteKind::kAppend) {
    VERBENA_CO_ASSIGN_OR_RETURN(value, co_await NewestValue(request.key()));
  }
  value += request.value();
  VERBENA_CO_RETURN_IF_ERROR(CheckLengths(request.key(), value));
  // No await from here on.
  VERBENA_CO_RETURN_IF_ERROR(Serving());
  if (!taking_) co_return absl::UnavailableError(parts_.name + " hands its shard over");
  const uint64_t sequence = parts_.log.last().sequence + 1;
  const uint64_t old = age_.Old(parts_.log.last().sequence, parts_.clock.Now());
  if (uncommitted_.size() >= kMaxUncommitted || !parts_.log.has_room() ||
      !parts_.store.names().HasRoomFor(client, sequence, old)) {
    co_return absl::ResourceExhaustedError("too many writes, or clients, are under way");
  }
  auto entry = std::make_shared<v1::Entry>();
  entry->set_sequence(sequence);
  entry->set_epoch(epoch());
  entry->set_key(request.key());
  entry->set_value(std::move(value));
  entry->set_client(client);
  entry->set_number(name.id.number);
  entry->set_acknowledged_below(name.acknowledged_below);
  if (IsHighestExact(client, old)) entry->set_highest(name.highest);
  uncommitted_.push_back(entry);
  newest_[request.key()] = entry;
  parts_.log.Append(std::move(entry));
  co_return parts_.log.last();
}

Task<absl::StatusOr<std::string>> Primary::NewestValue(const std::string& key) {
  const auto newest = newest_.find(key);
  if (newest != newest_.end()) co_return newest->second->value();
  VERBENA_CO_ASSIGN_OR_RETURN(std::optional<std::string> value, co_await parts_.store.Get(key));
  co_return std::move(value).value_or("");
}

Task<absl::Status> Primary::AwaitCommitted(uint64_t sequence) {
  const uint64_t wanted = std::max(sequence, inherited_);
  if (!ended_ && point_.sequence() < wanted) {
    verbena::Event committed;
    const auto place = waiting_.emplace(wanted, &committed);
    const absl::Cleanup leave = [&] {
      if (!committed.is_set()) waiting_.erase(place);
    };
    VERBENA_CO_RETURN_IF_ERROR(co_await committed.Wait());
  }
  // The write stays committed, but another primary may know more by now.
  co_return Serving();
}

void Primary::NoteDurable(std::string_view name, uint64_t sequence) {
  point_.NoteDurable(name, sequence);
  while (!uncommitted_.empty() && uncommitted_.front()->sequence() <= point_.sequence()) {
    const auto newest = newest_.find(uncommitted_.front()->key());
    if (newest->second == uncommitted_.front()) newest_.erase(newest);
    uncommitted_.pop_front();
  }
  WakeCommitted();
}

void Primary::WakeCommitted() {
  while (!waiting_.empty() && (ended_ || waiting_.begin()->first <= point_.sequence())) {
    waiting_.begin()->second->Set();
    waiting_.erase(waiting_.begin());
  }
}

Task<void> Primary::WatchOwnDisk() {
  do {
    NoteDurable(parts_.name, parts_.log.durable().sequence);
  } while ((co_await parts_.log.Changed()).ok());
}

Task<void> Primary::TellCommitted() {
  while ((co_await verbena::Sleep(kTellCommittedEvery)).ok()) {
    NoteChange(co_await members_.TellCommitted());
  }
}

Task<absl::StatusOr<std::optional<std::string>>> Primary::Get(std::string key) {
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitCommitted(0));
  for (;;) {
    const auto newest = newest_.find(key);
    if (newest != newest_.end()) {
      const std::shared_ptr<const v1::Entry> entry = newest->second;
      VERBENA_CO_RETURN_IF_ERROR(co_await AwaitCommitted(entry->sequence()));
      co_return entry->value();
    }
    VERBENA_CO_ASSIGN_OR_RETURN(std::optional<std::string> value, co_await parts_.store.Get(key));
    // The store may have shown a write that came meanwhile.
    if (newest_.contains(key)) continue;
    VERBENA_CO_RETURN_IF_ERROR(Serving());
    co_return value;
  }
}

Task<absl::StatusOr<std::optional<uint64_t>>> Primary::Lookup(verbena::RequestId id) {
  VERBENA_CO_RETURN_IF_ERROR(co_await AwaitCommitted(0));
  VERBENA_CO_ASSIGN_OR_RETURN(const std::optional<uint64_t> sequence,
                              parts_.store.names().FindRepeated(ClientOf(id), id.number));
  if (sequence.has_value()) VERBENA_CO_RETURN_IF_ERROR(co_await AwaitCommitted(*sequence));
  co_return sequence;
}

Task<void> Primary::Follow(OtherReplica& peer) {
  LoggedReasons logged;
  while (!ended_) {
    const absl::Status lost = co_await FollowReplica(*this, peer);
    if (ended_) co_return;
    const bool leaves = IsInSync(members_.state(), peer.name);
    if (leaves) logged.Clear();
    if (logged.IsNew(lost)) {
      verbena::Log(verbena::LogLevel::kWarning,
                   fmt::format("shard {}: {} {} the in-sync set: {}", parts_.shard, peer.name,
                               leaves ? "leaves" : "stays out of", std::string(lost.message())));
    }
    co_await Remove(peer.name);
    if (!(co_await verbena::Sleep(kPause)).ok()) co_return;
  }
}

Task<void> Primary::Remove(std::string name) {
  const absl::Status removed = co_await members_.Remove(std::move(name));
  parts_.log.Notify();
  NoteChange(removed);
}

void Primary::NoteChange(const absl::Status& changed) {
  if (absl::IsAborted(changed)) End(std::string(changed.message()));
}

}  // namespace replicated_kv
