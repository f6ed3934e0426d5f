#include "examples/rolling/load.h"

#include <utility>

#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/dedupe.h"

namespace rolling {

namespace v1 = replicated_kv::v1;
using verbena::Task;
using verbena::TimePoint;

namespace {

constexpr std::chrono::milliseconds kRetryPause(10);

TimePoint Now() { return verbena::Clock::Real().Now(); }
int64_t Nanoseconds(TimePoint time) { return time.time_since_epoch().count(); }

// Without a deadline at the server, whose handler would end by it though the call is repeated.
Task<absl::Status> WriteOnce(verbena::Channel& channel, bool appends,
                             const v1::WriteRequest& request, v1::WriteReply& reply,
                             verbena::DedupeToken& token, absl::Status& status) {
  const v1::ReplicatedKv::Stub stub(channel);
  verbena::CallOptions options = {
      .deadline = Load::kCallPatience, .wait_for_ready = true, .dedupe = &token};
  if (appends) {
    status = co_await stub.Append(request, reply, std::move(options));
  } else {
    status = co_await stub.Put(request, reply, std::move(options));
  }
  co_return status;
}

Task<absl::Status> SleepFor(verbena::Duration delay) { co_return co_await verbena::Sleep(delay); }

}  // namespace

Load::Load(const std::vector<std::unique_ptr<verbena::Channel>>& channels)
    : channels_(channels), serving_(channels.size()) {
  for (size_t shard = 0; shard < channels.size(); ++shard) {
    for (int i = 0; i < kSlots; ++i) {
      slots_.push_back({.shard = shard, .appends = i % 2 == 0, .key = {}, .calls = kCallsPerKey});
    }
  }
}

Task<void> Load::Run() {
  std::vector<Task<void>> workers;
  workers.reserve(kWorkers);
  for (int i = 0; i < kWorkers; ++i) workers.push_back(Work(i));
  co_await verbena::WhenAll(std::move(workers));
}

Task<void> Load::Stop() {
  stops_ = true;
  co_return;
}

Task<Load::Serving> Load::ServingOf(size_t shard) { co_return serving_[shard]; }

Load::Slot& Load::TakeSlot() {
  Slot& slot = slots_[random_() % slots_.size()];
  if (++slot.calls > kCallsPerKey) {
    slot.key = fmt::format("{}-{}", slot.appends ? "appended" : "put", ++keys_);
    slot.calls = 1;
    shard_of_[slot.key] = slot.shard;
  }
  return slot;
}

Task<void> Load::Work(size_t worker) {
  while (!stops_) {
    const Slot& slot = TakeSlot();
    const std::string key = slot.key;
    const size_t shard = slot.shard;
    if ((random_() + worker) % 2 == 0) {
      (void)co_await Write(shard, key, slot.appends);
    } else {
      (void)co_await Read(shard, key);
    }
  }
}

Task<bool> Load::Write(size_t shard, std::string key, bool appends) {
  const TimePoint start = Now();
  const size_t place = history_[key].size();
  v1::WriteRequest request;
  request.set_shard(static_cast<uint32_t>(shard));
  request.set_key(key);
  request.set_value(fmt::format("{}.", ++values_));
  history_[key].push_back({.kind = appends ? Operation::Kind::kAppend : Operation::Kind::kPut,
                           .value = request.value(),
                           .start = Nanoseconds(start)});
  ++counts_.calls;
  verbena::DedupeToken token;
  for (;;) {
    v1::WriteReply reply;
    absl::Status status = absl::CancelledError("no attempt was made");
    // Cancelled rather than bounded by a deadline: the handler goes on, and a repetition finds it.
    (void)co_await verbena::WhenAny(
        WriteOnce(*channels_[shard], appends, request, reply, token, status),
        SleepFor(kAttemptPatience));
    if (status.ok()) {
      history_[key][place].end = Nanoseconds(Now());
      if (reply.epoch() > serving_[shard].epoch) serving_[shard] = {reply.epoch(), Now()};
      co_return true;
    }
    if (!co_await MayRetry(status, start + kCallPatience)) co_return false;
  }
}

Task<absl::StatusOr<std::optional<std::string>>> Load::Read(size_t shard, std::string key) {
  const TimePoint start = Now();
  v1::GetRequest request;
  request.set_shard(static_cast<uint32_t>(shard));
  request.set_key(key);
  const v1::ReplicatedKv::Stub stub(*channels_[shard]);
  ++counts_.calls;
  for (;;) {
    absl::StatusOr<v1::GetReply> reply =
        co_await stub.Get(request, {.deadline = kAttemptPatience, .wait_for_ready = true});
    if (reply.ok()) {
      std::optional<std::string> value;
      if (reply->has_value()) value = reply->value();
      history_[key].push_back({.kind = Operation::Kind::kGet,
                               .value = value,
                               .start = Nanoseconds(start),
                               .end = Nanoseconds(Now())});
      co_return value;
    }
    if (!co_await MayRetry(reply.status(), start + kCallPatience)) co_return reply.status();
  }
}

Task<bool> Load::MayRetry(const absl::Status& failed, TimePoint give_up) {
  ++counts_.failures[static_cast<size_t>(verbena::OutcomeOf(failed))];
  const bool is_hopeless = absl::IsInvalidArgument(failed) || Now() > give_up;
  if (is_hopeless || !(co_await verbena::Sleep(kRetryPause)).ok()) {
    ++counts_.unanswered;
    fmt::print(stderr, "a call is given up: {}\n", failed.ToString());
    co_return false;
  }
  ++counts_.retries;
  co_return true;
}

Task<absl::Status> Load::ReadAll() {
  for (const auto& [key, shard] : shard_of_) {
    VERBENA_CO_ASSIGN_OR_RETURN(last_values_[key], co_await Read(shard, key));
  }
  co_return absl::OkStatus();
}

}  // namespace rolling
