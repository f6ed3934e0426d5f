#include "verbena/rpc/server/admission.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

constexpr uint32_t kMostQueued = 65536;

int IndexOf(const MethodTable& methods, std::string_view name) {
  for (size_t i = 0; i < methods.size(); ++i) {
    if (methods.entry(static_cast<int>(i)).method->descriptor->full_name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// One larger request is taken if no other counts.
bool Exceeds(uint64_t most, uint64_t taken, uint64_t added) {
  return most != 0 && added > 0 && taken > 0 && taken + added > most;
}

// Without a queue these have no effect.
absl::Status CheckQueueOptions(const AdmissionOptions& options) {
  const AdmissionOptions defaults;
  const std::pair<const char*, bool> set[] = {
      {"max_running_per_client", options.max_running_per_client != 0},
      {"max_running_per_source", options.max_running_per_source != 0},
      {"max_queued", options.max_queued != defaults.max_queued},
      {"max_queue_age", options.max_queue_age != defaults.max_queue_age}};
  for (const auto& [name, is_set] : set) {
    if (!is_set || options.max_running > 0) continue;
    return absl::InvalidArgumentError(
        fmt::format("AdmissionOptions::{} is set, but max_running is 0, so that there is no queue: "
                    "set max_running, too",
                    name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAdmission(const AdmissionOptions& options, const MethodTable& methods) {
  if (options.max_queued < 1 || options.max_queued > kMostQueued) {
    return absl::InvalidArgumentError(
        fmt::format("AdmissionOptions::max_queued is {}: its range is 1 to {}", options.max_queued,
                    kMostQueued));
  }
  if (options.max_queue_age < std::chrono::microseconds(1)) {
    return absl::InvalidArgumentError(
        fmt::format("AdmissionOptions::max_queue_age is {} ns: it is at least 1 us",
                    options.max_queue_age.count()));
  }
  if (options.retry_after < Duration::zero()) {
    return absl::InvalidArgumentError(
        fmt::format("AdmissionOptions::retry_after is {} ns: it is never less than 0",
                    options.retry_after.count()));
  }
  VERBENA_RETURN_IF_ERROR(CheckQueueOptions(options));
  for (const auto& [name, limits] : options.methods) {
    if (IndexOf(methods, name) >= 0) continue;
    return absl::NotFoundError(
        fmt::format("AdmissionOptions::methods names \"{}\", which this server does not serve: "
                    "write \"package.Service/Method\"",
                    name));
  }
  return absl::OkStatus();
}

Admission::Admission(Executor& executor, const MethodTable& methods,
                     const AdmissionOptions& options)
    : executor_(executor), options_(options) {
  if (!options.methods.empty()) methods_.resize(methods.size());
  for (const auto& [name, limits] : options.methods) {
    const int index = IndexOf(methods, name);
    VERBENA_CHECK(index >= 0) << name;
    methods_[index].limits = limits;
  }
  if (options.max_running > 0) queue_ = std::make_unique<AdmissionQueue>(executor, options_);
}

CallClass Admission::ClassOf(Priority priority, const ClientQueue& client) const {
  if (priority == Priority::kBackground) return CallClass::kBackground;
  if (priority != Priority::kControl) return CallClass::kNormal;
  const uint32_t places = options_.control_places;
  const uint32_t free = places - control_;
  const SourceQueue& source = client.source_;
  const bool source_full = source.bounded_ && source.control_ >= places - places / 4;
  const bool has_place = client.control_ < free && !source_full;
  return has_place ? CallClass::kControl : CallClass::kNormal;
}

std::optional<RefusalReason> Admission::Check(int method, CallClass its_class,
                                              uint64_t pinned_bytes,
                                              const ClientQueue& client) const {
  if (!methods_.empty()) {
    const MethodCount& its = methods_[method];
    if (its.limits.max_calls != 0 && its.calls >= its.limits.max_calls) {
      return RefusalReason::kTooManyOfAMethod;
    }
    if (Exceeds(its.limits.max_pinned_bytes, its.pinned_bytes, pinned_bytes)) {
      return RefusalReason::kTooManyBytesOfAMethod;
    }
  }
  if (Exceeds(options_.max_pinned_bytes_per_client, client.pinned_bytes_, pinned_bytes)) {
    return RefusalReason::kTooManyBytesOfAClient;
  }
  if (Exceeds(options_.max_pinned_bytes, pinned_bytes_, pinned_bytes)) {
    return RefusalReason::kTooManyBytes;
  }
  return queue_ == nullptr ? std::nullopt : queue_->Check(client, its_class);
}

void Admission::Count(QueuedCall& call, int method, CallClass its_class, uint64_t pinned_bytes,
                      ClientQueue& client) {
  call.SetAdmitted(client, its_class, pinned_bytes);
  client.pinned_bytes_ += pinned_bytes;
  pinned_bytes_ += pinned_bytes;
  if (its_class == CallClass::kControl) {
    ++control_;
    ++client.control_;
    ++client.source_.control_;
  }
  if (methods_.empty()) return;
  ++methods_[method].calls;
  methods_[method].pinned_bytes += pinned_bytes;
}

bool Admission::Release(QueuedCall& call, int method) {
  EndRun(call);
  ClientQueue& client = *call.client_;
  const bool is_control = call.class_ == CallClass::kControl;
  client.pinned_bytes_ -= call.pinned_bytes_;
  pinned_bytes_ -= call.pinned_bytes_;
  if (is_control) {
    --control_;
    --client.control_;
    --client.source_.control_;
  }
  if (!methods_.empty()) {
    --methods_[method].calls;
    methods_[method].pinned_bytes -= call.pinned_bytes_;
  }
  return is_control;
}

void Admission::Enqueue(QueuedCall& call) {
  queue_->Push(call);
  Wake();
}

void Admission::EndRun(QueuedCall& call) {
  if (queue_ == nullptr) return;
  queue_->EndRun(call);
  Wake();
}

void Admission::Wake() {
  if (queue_->waiting() > 0 && queue_->can_run()) {
    executor_.FlushLater(*this, FlushPriority::kSends);
  }
}

// A hook that queues itself is called again in the same turn. The executor polls between two turns.
void Admission::Flush() {
  const uint64_t turn = executor_.stats().turns;
  if (turn != last_turn_) {
    last_turn_ = turn;
    queue_->RunTurn();
  }
  Wake();
}

void Admission::RefuseAll(RefusalReason reason) {
  if (queue_ != nullptr) queue_->RefuseAll(reason);
}

void Admission::Stop() {
  if (queue_ == nullptr) return;
  queue_->Stop();
  FlushHook::Unlink();
}

}  // namespace verbena::internal
