#include "examples/replicated_kv/replica.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "examples/replicated_kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/log.h"

namespace replicated_kv {

using verbena::Task;
using verbena::TimePoint;

namespace {

constexpr std::chrono::seconds kHandOverPatience(1);

absl::Status NotOpen() { return absl::UnavailableError("this replica has not opened its log yet"); }

Task<void> RunPrimary(std::shared_ptr<Primary> primary) { co_await primary->Run(); }

}  // namespace

Replica::Replica(ReplicaOptions options, ReplicaStore& store, verbena::EtcdClient& etcd,
                 std::vector<OtherReplica> peers)
    : options_(std::move(options)),
      store_(store),
      etcd_(etcd),
      directory_(etcd, options_.prefix),
      peers_(std::move(peers)) {}

Task<absl::Status> Replica::Run(std::string address) {
  address_ = std::move(address);
  tasks_.emplace(co_await verbena::CurrentContext());
  absl::Status status = co_await Open();
  if (status.ok()) status = co_await RenewLease();
  if (status.ok()) tasks_->Spawn(KeepLease());
  while (status.ok()) {
    absl::StatusOr<SeenState> seen = co_await directory_.Read();
    if (seen.ok()) co_await Act(*std::move(seen));
    // Without etcd the replica goes on as it is, as long as its lease lasts.
    const absl::Status changed = co_await directory_.Changed();
    if (!changed.ok()) status = co_await verbena::Sleep(kPause);
    if (status.ok()) status = log_->failure();
  }
  // Handlers that still run must write nothing any more.
  stopping_ = true;
  gate_.Close();
  StepDown("it stops");
  if (log_ != nullptr) log_->Notify();
  tasks_->RequestCancel();
  co_await tasks_->Join();
  tasks_.reset();
  co_return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

Task<absl::Status> Replica::Open() {
  VERBENA_CO_RETURN_IF_ERROR(co_await store_.Load());
  absl::StatusOr<SeenState> seen = co_await directory_.Read();
  // Only a shard that never was has nothing in etcd. If etcd had lost it, replicas with different
  // data would all pass for in sync.
  if (absl::IsNotFound(seen.status()) && !store_.position().has_value()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await directory_.Create(FirstState(options_.replicas)));
    seen = co_await directory_.Read();
  }
  VERBENA_CO_RETURN_IF_ERROR(seen.status());
  gate_.Learn(seen->state.epoch);
  // In the first epoch nobody has written anything, so what is missing is all that there is. Later
  // a replica without a position has lost its data, and is not in sync, whatever etcd says.
  if (seen->state.epoch == 1 && !store_.position().has_value()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await store_.WritePosition({}));
  }
  log_ = std::make_unique<ReplicaLog>(store_, *tasks_);
  opened_at_ = log_->last();
  was_out_ = !IsInSync(seen->state, options_.name);
  Say(fmt::format("opened at entry {} of epoch {}{}", log_->last().sequence, log_->last().epoch,
                  log_->complete() ? "" : ", without its data"));
  co_return absl::OkStatus();
}

Task<void> Replica::KeepLease() {
  while (!stopping_) {
    const absl::Status kept = co_await RenewLease();
    if (absl::IsNotFound(kept)) {
      term_.End();
      lease_ = 0;
      StepDown("its lease has ended");
      continue;
    }
    const verbena::Duration pause = kept.ok() ? options_.ttl / 4 : kPause;
    if (!(co_await verbena::Sleep(pause)).ok()) co_return;
  }
}

Task<absl::Status> Replica::RenewLease() {
  const TimePoint sent = options_.clock->Now();
  VERBENA_CO_ASSIGN_OR_RETURN(
      const verbena::EtcdLease lease,
      lease_ == 0 ? co_await etcd_.GrantLease(options_.ttl) : co_await etcd_.KeepAlive(lease_));
  if (lease_ == 0) lease_ = lease.id;
  // An answer does not make the term longer than was asked for.
  term_.Renew(sent, std::min(lease.ttl, options_.ttl));
  co_return absl::OkStatus();
}

Task<void> Replica::Act(SeenState seen) {
  gate_.Learn(seen.state.epoch);
  was_out_ = was_out_ || !IsInSync(seen.state, options_.name);
  const int64_t lease = lease_;
  const bool may_serve =
      !stopping_ && lease != 0 && term_.Holds(options_.clock->Now()) && log_->complete();
  if (seen.holder_lease != 0 && seen.holder_lease == lease) {
    if (primary_ == nullptr && may_serve) Lead(std::move(seen));
    co_return;
  }
  if (primary_ != nullptr) StepDown("etcd does not name it any more");
  if (seen.holder_lease != 0 || !may_serve || !IsInSync(seen.state, options_.name)) co_return;
  if (!MayLead(seen.state, options_.name, log_->last())) {
    if (std::exchange(lacked_at_, seen.revision) != seen.revision) {
      Say(fmt::format(
          "does not become primary: its log ends with entry {} of epoch {}, and entry {} "
          "of epoch {} was committed. Its disk has lost what it had synced",
          log_->last().sequence, log_->last().epoch, seen.state.committed.sequence,
          seen.state.committed.epoch));
    }
    co_return;
  }
  const Rivals rivals = co_await AskRivals(seen.state);
  if (!succession_.MayGo(seen.revision, rivals, is_tested() || seen.state.epoch == 1,
                         options_.clock->Now())) {
    (void)co_await verbena::Sleep(kDeference);
    co_return;
  }
  ShardState next = TakenOver(seen.state, options_.name);
  // If the lease has ended meanwhile, etcd refuses.
  const absl::Status asked =
      co_await directory_.TakeOver(std::move(seen), std::move(next), lease, address_);
  if (!asked.ok()) Say(std::string(asked.message()));
}

// The replicas that are in sync all have what was acknowledged. One may have more of what was not:
// as a primary, it need not be given a copy.
Task<Rivals> Replica::AskRivals(const ShardState& state) {
  const LogPosition mine = log_->last();
  Rivals rivals;
  for (const OtherReplica& peer : peers_) {
    if (!IsInSync(state, peer.name)) continue;
    // The former primary is most likely gone, and has no more than was sent to this replica.
    if (peer.name == state.primary && is_tested()) continue;
    v1::PositionRequest request;
    request.set_shard(options_.shard);
    const absl::StatusOr<v1::Acknowledgement> has =
        co_await v1::Replication::Stub(*peer.channel)
            .Where(request, {.deadline = kDeference, .wait_for_ready = true});
    rivals.silent = rivals.silent || !has.ok();
    if (!has.ok() || !has->complete()) continue;
    const LogPosition theirs = PositionOf(has->durable());
    rivals.longer = rivals.longer || theirs > mine;
    rivals.first = rivals.first || theirs > mine || (theirs == mine && peer.name < options_.name);
  }
  co_return rivals;
}

void Replica::Lead(SeenState seen) {
  // Streams of former primaries end.
  gate_.Close();
  Say(fmt::format("becomes primary of epoch {} at entry {}", seen.state.epoch,
                  log_->last().sequence));
  primary_ = std::make_shared<Primary>(PrimaryParts{.shard = options_.shard,
                                                    .name = options_.name,
                                                    .store = store_,
                                                    .log = *log_,
                                                    .directory = directory_,
                                                    .peers = peers_,
                                                    .term = term_,
                                                    .lease = lease_,
                                                    .clock = *options_.clock},
                                       std::move(seen));
  tasks_->Spawn(RunPrimary(primary_));
  log_->Notify();
}

void Replica::StepDown(std::string why) {
  if (primary_ == nullptr) return;
  Say(fmt::format("is no primary any more: {}", why));
  primary_->End(std::move(why));
  primary_.reset();
}

Task<void> Replica::HandOver() {
  stopping_ = true;
  if (const std::shared_ptr<Primary> primary = primary_; primary != nullptr) {
    primary->StopTaking();
    (void)co_await verbena::WithDeadline(primary->AwaitCommitted(log_->last().sequence),
                                         kHandOverPatience);
    (void)co_await verbena::WithDeadline(primary->members().TellCommitted(), kHandOverPatience);
    StepDown("it hands over");
  }
  gate_.Close();
  if (log_ != nullptr) log_->Notify();
  term_.End();
  // Now another replica may become primary, at once.
  if (lease_ != 0) (void)co_await etcd_.Revoke(std::exchange(lease_, 0));
}

absl::Status Replica::CheckShard(uint32_t shard) const {
  if (shard == options_.shard) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a call for shard {} at a replica of shard {}", shard, options_.shard));
}

absl::StatusOr<std::shared_ptr<Primary>> Replica::Serving(uint32_t shard) const {
  VERBENA_RETURN_IF_ERROR(CheckShard(shard));
  if (primary_ == nullptr) {
    return absl::UnavailableError(
        fmt::format("{} is not the primary of shard {}", options_.name, shard));
  }
  VERBENA_RETURN_IF_ERROR(primary_->Serving());
  return primary_;
}

Task<absl::Status> Replica::Replicate(verbena::ServerContext&, LogStream& stream) {
  if (log_ == nullptr || stopping_) co_return NotOpen();
  v1::LogMessage hello;
  VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(hello));
  if (!read) co_return absl::OkStatus();
  // The message may have been long in coming.
  if (stopping_) co_return NotOpen();
  VERBENA_CO_RETURN_IF_ERROR(CheckShard(hello.shard()));
  if (hello.epoch() > gate_.epoch()) {
    VERBENA_CO_ASSIGN_OR_RETURN(const SeenState seen, co_await directory_.Look());
    if (stopping_) co_return NotOpen();
    gate_.Learn(seen.state.epoch);
    if (hello.epoch() > gate_.epoch()) co_return gate_.Admit(hello.epoch()).status();
  }
  if (primary_ != nullptr) {
    if (hello.epoch() <= primary_->epoch()) {
      co_return absl::FailedPreconditionError(
          fmt::format("{} is the primary, of epoch {}", options_.name, primary_->epoch()));
    }
    StepDown(fmt::format("{} is, in epoch {}", hello.primary(), hello.epoch()));
  }
  co_return co_await ReceiveLog({gate_, receiving_, store_, *log_}, stream, hello);
}

Task<absl::Status> Replica::Where(verbena::ServerContext& context,
                                  const v1::PositionRequest& request, v1::Acknowledgement& reply) {
  const absl::Status here = log_ == nullptr ? NotOpen() : CheckShard(request.shard());
  if (!here.ok()) co_return context.NotExecuted(here);
  reply = AcknowledgementOf(*log_);
  co_return absl::OkStatus();
}

void Replica::Say(std::string_view what) const {
  verbena::Log(verbena::LogLevel::kInfo,
               fmt::format("shard {}: {} {}", options_.shard, options_.name, what));
}

}  // namespace replicated_kv
