#include "verbena/rpc/server/admission.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

// The most calls of one class in a row while calls of a lower class wait.
constexpr uint32_t kControlInARow = 3;
constexpr uint32_t kNormalInARow = 7;

size_t IndexOf(CallClass its_class) { return static_cast<size_t>(its_class); }

uint32_t HalfOf(uint32_t all) { return all - all / 2; }
uint32_t ThreeQuartersOf(uint32_t all) { return all - all / 4; }

uint32_t PerClient(const AdmissionOptions& options) {
  return options.max_running_per_client != 0 ? options.max_running_per_client
                                             : HalfOf(options.max_running);
}

uint32_t PerSource(const AdmissionOptions& options) {
  if (options.max_running_per_source != 0) return options.max_running_per_source;
  return std::max(ThreeQuartersOf(options.max_running), PerClient(options));
}

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

AdmissionQueue::AdmissionQueue(Scheduler& scheduler, const AdmissionOptions& options)
    : scheduler_(scheduler),
      max_running_(options.max_running),
      max_running_per_client_(PerClient(options)),
      max_running_per_source_(PerSource(options)),
      max_background_(HalfOf(options.max_running)),
      max_queued_(options.max_queued),
      max_age_(options.max_queue_age) {}

AdmissionQueue::~AdmissionQueue() {
  VERBENA_CHECK(waiting_ == 0 && !timer_running_) << waiting_ << " calls wait";
}

std::optional<RefusalReason> AdmissionQueue::Check(const ClientQueue& client,
                                                   CallClass its_class) const {
  if (its_class != CallClass::kControl) {
    const uint32_t taken = classes_[1].waiting + classes_[2].waiting;
    const uint32_t free = max_queued_ - std::min(taken, max_queued_);
    const bool share_taken = client.waiting_ >= free;
    const bool background_full =
        its_class == CallClass::kBackground && classes_[2].waiting >= HalfOf(max_queued_);
    // A source with many runtime ids has many clients.
    const SourceQueue& source = client.source_;
    const bool source_full = source.bounded_ && source.waiting_ >= ThreeQuartersOf(max_queued_);
    if (free == 0 || share_taken || source_full || background_full) {
      return RefusalReason::kQueueFull;
    }
  }
  // The first call that waits is admitted whatever the pace, so that the pace is measured anew.
  if (pace_.holds() && CallsAhead(client, its_class) > pace_.StartsDuring(max_age_)) {
    return RefusalReason::kQueueTooOld;
  }
  return std::nullopt;
}

uint64_t AdmissionQueue::CallsAhead(const ClientQueue& client, CallClass its_class) const {
  uint64_t ahead = CallsAheadInClass(client, its_class);
  // Each other class has its starts in a row before each of these calls, and before this one.
  const auto add = [this, &ahead](CallClass other, uint64_t in_a_row) {
    ahead += std::min<uint64_t>(classes_[IndexOf(other)].ready, in_a_row * (ahead + 1));
  };
  if (its_class == CallClass::kBackground) add(CallClass::kNormal, kNormalInARow);
  if (its_class != CallClass::kControl) {
    add(CallClass::kControl, kControlInARow);
  }
  return ahead;
}

// `own` calls go before it in its own flow, which takes turns with others: so does no more than one
// of each flow before each of them, and before itself.
uint64_t AdmissionQueue::CallsAheadInClass(const ClientQueue& client, CallClass its_class) const {
  if (IsHeld(its_class)) return 0;
  const auto ahead = [](uint64_t own, uint64_t flows, uint64_t all) {
    return std::min(all, (own + 1) * flows - 1);
  };
  const size_t index = IndexOf(its_class);
  const CallFlow& flow = client.flows_[index];
  const SourceFlow& source = *flow.source_;
  // Its flow, or its source's, may be none of those that are ready.
  const uint64_t unready = flow.size_ - flow.ready_;
  const uint64_t flows = source.flow_count_ + (flow.ready_ > 0 ? 0 : 1);
  const uint64_t of_source = ahead(flow.size_, flows, source.calls_ + unready);
  const ClassQueue& its = classes_[index];
  const uint64_t sources = its.sources + (source.ready_ > 0 ? 0 : 1);
  return ahead(of_source, sources, its.ready + (source.calls_ - source.ready_) + unready);
}

CallFlow& AdmissionQueue::FlowOf(const QueuedCall& call) const {
  return call.client_->flows_[IndexOf(call.class_)];
}

TimePoint AdmissionQueue::Due(const QueuedCall& call) const {
  return SaturatingAdd(call.arrived_, max_age_);
}

void AdmissionQueue::Push(QueuedCall& call) {
  const size_t index = IndexOf(call.class_);
  CallFlow& flow = FlowOf(call);
  call.waits_ = true;
  call.arrived_ = scheduler_.now();
  by_age_.PushBack(call);
  flow.calls_.PushBack(call);
  ++flow.size_;
  ++classes_[index].waiting;
  ++waiting_;
  if (call.class_ != CallClass::kControl) {
    ++call.client_->waiting_;
    ++call.client_->source_.waiting_;
  }
  Settle(*call.client_, index);
  if (!timer_running_) StartTimer(Due(call));
}

void AdmissionQueue::Unlink(QueuedCall& call) {
  VERBENA_CHECK(call.waits_ && waiting_ > 0) << waiting_ << " calls wait";
  const size_t index = IndexOf(call.class_);
  call.waits_ = false;
  call.AgingCall::Unlink();
  call.IntrusiveNode<QueuedCall>::Unlink();
  --FlowOf(call).size_;
  --classes_[index].waiting;
  --waiting_;
  if (call.class_ != CallClass::kControl) {
    --call.client_->waiting_;
    --call.client_->source_.waiting_;
  }
  Settle(*call.client_, index);
}

void AdmissionQueue::Remove(QueuedCall& call) { Unlink(call); }

void AdmissionQueue::Settle(ClientQueue& client, size_t index) {
  const bool is_control = index == IndexOf(CallClass::kControl);
  CallFlow& flow = client.flows_[index];
  SourceFlow& source = *flow.source_;
  const bool may_run = is_control || client.running_ < max_running_per_client_;
  const uint32_t calls = may_run ? flow.size_ : 0;
  source.calls_ += calls - flow.ready_;
  source.flow_count_ += (calls > 0 ? 1 : 0) - (flow.ready_ > 0 ? 1 : 0);
  flow.ready_ = calls;
  if (calls == 0) {
    flow.Unlink();
  } else if (!flow.linked()) {
    source.flows_.PushBack(flow);
  }

  ClassQueue& its = classes_[index];
  const bool source_may_run = is_control || !IsFull(client.source_);
  const uint32_t ready = source_may_run ? source.calls_ : 0;
  its.ready += ready - source.ready_;
  its.sources += (ready > 0 ? 1 : 0) - (source.ready_ > 0 ? 1 : 0);
  source.ready_ = ready;
  if (ready == 0) {
    source.Unlink();
  } else if (!source.linked()) {
    its.turns.PushBack(source);
  }
  if (!AnyReady()) pace_.Interrupt();
}

bool AdmissionQueue::IsHeld(CallClass its_class) const {
  return its_class == CallClass::kBackground && running_background_ >= max_background_;
}

bool AdmissionQueue::AnyReady() const {
  for (size_t i = 0; i < kCallClasses; ++i) {
    if (classes_[i].ready > 0 && !IsHeld(static_cast<CallClass>(i))) return true;
  }
  return false;
}

bool AdmissionQueue::MayRun(CallClass its_class) const {
  if (classes_[IndexOf(its_class)].ready == 0 || IsHeld(its_class)) return false;
  return its_class == CallClass::kControl || running_ < max_running_;
}

bool AdmissionQueue::can_run() const { return NextClass().has_value(); }

std::optional<CallClass> AdmissionQueue::NextClass() const {
  const bool control = MayRun(CallClass::kControl);
  const bool normal = MayRun(CallClass::kNormal);
  const bool background = MayRun(CallClass::kBackground);
  if (control && ((!normal && !background) || in_a_row_.control < kControlInARow)) {
    return CallClass::kControl;
  }
  const bool starving = in_a_row_.normal >= kNormalInARow;
  if (normal && (!background || !starving)) return CallClass::kNormal;
  if (background) return CallClass::kBackground;
  return std::nullopt;
}

void AdmissionQueue::NoteClass(CallClass its_class) {
  in_a_row_.control = its_class == CallClass::kControl ? in_a_row_.control + 1 : 0;
  if (its_class == CallClass::kNormal) ++in_a_row_.normal;
  if (its_class == CallClass::kBackground) in_a_row_.normal = 0;
}

QueuedCall* AdmissionQueue::Pick() {
  const std::optional<CallClass> next = NextClass();
  if (!next.has_value()) return nullptr;
  NoteClass(*next);
  return &PickFrom(*next);
}

QueuedCall& AdmissionQueue::PickFrom(CallClass its_class) {
  SourceFlow& source = *classes_[IndexOf(its_class)].turns.Front();
  CallFlow& flow = *source.flows_.Front();
  // Unlink() puts both behind the others, if they have more calls.
  source.Unlink();
  flow.Unlink();
  QueuedCall& call = *flow.calls_.Front();
  Unlink(call);
  Count(call);
  return call;
}

void AdmissionQueue::Count(QueuedCall& call) {
  if (call.class_ == CallClass::kControl) return;
  call.counted_ = true;
  ++running_;
  if (call.class_ == CallClass::kBackground) ++running_background_;
  ++call.client_->running_;
  ++call.client_->source_.running_;
  SettleBoth(*call.client_);
}

void AdmissionQueue::EndRun(QueuedCall& call) {
  if (!std::exchange(call.counted_, false)) return;
  VERBENA_CHECK(running_ > 0 && call.client_->running_ > 0 && call.client_->source_.running_ > 0)
      << running_ << " calls run, of the client " << call.client_->running_;
  --running_;
  if (call.class_ == CallClass::kBackground) --running_background_;
  --call.client_->running_;
  --call.client_->source_.running_;
  SettleBoth(*call.client_);
}

void AdmissionQueue::SettleBoth(ClientQueue& client) {
  Settle(client, IndexOf(CallClass::kNormal));
  Settle(client, IndexOf(CallClass::kBackground));
}

bool AdmissionQueue::IsFull(const SourceQueue& source) const {
  return source.bounded_ && source.running_ >= max_running_per_source_;
}

void AdmissionQueue::RunTurn() {
  RefuseOld();
  const uint32_t budget = pace_.StartsIn(kTurnSlice, kMaxStartsPerTurn);
  const bool measuring = pace_.measuring();
  uint32_t started = 0;
  while (started < budget) {
    QueuedCall* call = Pick();
    if (call == nullptr) break;
    ++started;
    call->RunQueued();
  }
  if (started == 0) return;
  pace_.EndTurn(scheduler_.now(), started, measuring, AnyReady());
}

void AdmissionQueue::RefuseOld() {
  if (by_age_.empty()) return;
  const TimePoint now = scheduler_.now();
  while (AgingCall* oldest = by_age_.Front()) {
    auto& call = static_cast<QueuedCall&>(*oldest);
    if (now < Due(call)) return;
    Remove(call);
    call.RefuseQueued(RefusalReason::kQueueTooOld);
  }
}

void AdmissionQueue::RefuseAll(RefusalReason reason) {
  while (AgingCall* oldest = by_age_.Front()) {
    auto& call = static_cast<QueuedCall&>(*oldest);
    Remove(call);
    call.RefuseQueued(reason);
  }
}

void AdmissionQueue::StartTimer(TimePoint when) {
  scheduler_.StartTimer(*this, when);
  timer_running_ = true;
}

void AdmissionQueue::OnTimer() {
  timer_running_ = false;
  RefuseOld();
  if (by_age_.empty()) return;
  const auto& oldest = static_cast<const QueuedCall&>(*by_age_.Front());
  StartTimer(Due(oldest));
}

void AdmissionQueue::Stop() {
  VERBENA_CHECK(waiting_ == 0) << waiting_ << " calls wait";
  if (std::exchange(timer_running_, false)) scheduler_.StopTimer(*this);
}

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
  VERBENA_CHECK(client.pinned_bytes_ >= call.pinned_bytes_ && pinned_bytes_ >= call.pinned_bytes_)
      << call.pinned_bytes_ << " bytes, of the client " << client.pinned_bytes_;
  client.pinned_bytes_ -= call.pinned_bytes_;
  pinned_bytes_ -= call.pinned_bytes_;
  if (is_control) {
    VERBENA_CHECK(control_ > 0 && client.control_ > 0 && client.source_.control_ > 0)
        << control_ << " control places are taken, by the client " << client.control_;
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

void Admission::Watch() {
  if (!LagListener::linked()) executor_.WatchLag(*this);
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
    if (std::exchange(lags_, false) && !executor_.PollOn()) lags_ = true;
    queue_->RunTurn();
  }
  Wake();
}

void Admission::RefuseAll(RefusalReason reason) {
  if (queue_ != nullptr) queue_->RefuseAll(reason);
}

void Admission::Stop() {
  LagListener::Unlink();
  if (queue_ == nullptr) return;
  queue_->Stop();
  FlushHook::Unlink();
}

}  // namespace verbena::internal
