#include "verbena/rpc/server/admission_queue.h"

#include <algorithm>
#include <utility>

#include "verbena/transport/coro/clock.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

// The most calls of one class in a row while calls of a lower class wait.
constexpr uint32_t kControlInARow = 3;
constexpr uint32_t kNormalInARow = 7;
// The weight of the last turn in the average pace.
constexpr int kPaceShift = 3;

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
    const uint32_t taken = queued_[1] + queued_[2];
    const uint32_t free = max_queued_ - std::min(taken, max_queued_);
    const bool share_taken = client.waiting_ >= free && !VERBENA_MUTANT(kOneClientFillsTheQueue);
    const bool background_full =
        its_class == CallClass::kBackground && queued_[2] >= HalfOf(max_queued_);
    // A source with many runtime ids has many clients.
    const SourceQueue& source = client.source_;
    const bool source_full = source.bounded_ && source.waiting_ >= ThreeQuartersOf(max_queued_) &&
                             !VERBENA_MUTANT(kOneSourceFillsTheQueue);
    if (free == 0 || share_taken || source_full || background_full) {
      return RefusalReason::kQueueFull;
    }
  }
  // The first call that waits is admitted whatever the pace, so that the pace is measured anew.
  if (pace_holds_ && pace_ > Duration::zero()) {
    const auto most = static_cast<uint64_t>(max_age_ / pace_);
    if (CallsAhead(client, its_class) > most) return RefusalReason::kQueueTooOld;
  }
  return std::nullopt;
}

// Clients take turns, so of the own class no more than the client's own calls, times the clients.
uint64_t AdmissionQueue::CallsAhead(const ClientQueue& client, CallClass its_class) const {
  const size_t index = IndexOf(its_class);
  uint64_t ahead = 0;
  for (size_t i = 0; i < index; ++i) ahead += queued_[i];
  const uint64_t own = client.flows_[index].size_;
  const uint64_t flows = flows_[index] + (own == 0 ? 1 : 0);
  return ahead + std::min<uint64_t>(queued_[index], (own + 1) * flows - 1);
}

CallFlow& AdmissionQueue::FlowOf(const QueuedCall& call) const {
  return call.client_->flows_[IndexOf(call.class_)];
}

TimePoint AdmissionQueue::Due(const QueuedCall& call) const {
  return VERBENA_MUTANT(kQueuedCallsNeverAge) ? kNever : SaturatingAdd(call.arrived_, max_age_);
}

void AdmissionQueue::Push(QueuedCall& call) {
  const size_t index = IndexOf(call.class_);
  CallFlow& flow = FlowOf(call);
  call.waits_ = true;
  call.arrived_ = scheduler_.now();
  by_age_.PushBack(call);
  flow.calls_.PushBack(call);
  if (++flow.size_ == 1) ++flows_[index];
  ++queued_[index];
  ++waiting_;
  if (call.class_ != CallClass::kControl) {
    ++call.client_->waiting_;
    ++call.client_->source_.waiting_;
  }
  Place(flow);
  if (!timer_running_) StartTimer(Due(call));
}

void AdmissionQueue::Unlink(QueuedCall& call) {
  const size_t index = IndexOf(call.class_);
  CallFlow& flow = FlowOf(call);
  call.waits_ = false;
  call.AgingCall::Unlink();
  call.IntrusiveNode<QueuedCall>::Unlink();
  --queued_[index];
  --waiting_;
  if (waiting_ == 0) measuring_ = pace_holds_ = false;
  if (call.class_ != CallClass::kControl) {
    --call.client_->waiting_;
    --call.client_->source_.waiting_;
  }
  if (--flow.size_ > 0) return;
  --flows_[index];
  flow.Unlink();
}

void AdmissionQueue::Remove(QueuedCall& call) {
  VERBENA_CHECK(call.waits_);
  Unlink(call);
  if (!VERBENA_MUTANT(kSourcesPlaceIsLost)) Unpark(call.client_->source_);
}

void AdmissionQueue::Place(CallFlow& flow) {
  if (flow.size_ == 0 || flow.linked()) return;
  const size_t index = static_cast<size_t>(&flow - flow.client_->flows_.data());
  const bool is_control = index == IndexOf(CallClass::kControl);
  if (!is_control && flow.client_->running_ >= max_running_per_client_) return;
  turns_[index].PushBack(flow);
}

bool AdmissionQueue::MayRun(CallClass its_class) const {
  if (turns_[IndexOf(its_class)].empty()) return false;
  if (its_class == CallClass::kControl) return true;
  if (running_ >= max_running_) return false;
  return its_class == CallClass::kNormal || running_background_ < max_background_;
}

bool AdmissionQueue::can_run() const { return NextClass().has_value(); }

std::optional<CallClass> AdmissionQueue::NextClass() const {
  const bool control = MayRun(CallClass::kControl);
  const bool normal = MayRun(CallClass::kNormal);
  const bool background = MayRun(CallClass::kBackground);
  if (control && ((!normal && !background) || control_in_a_row_ < kControlInARow)) {
    return CallClass::kControl;
  }
  const bool starving = normal_in_a_row_ >= kNormalInARow && !VERBENA_MUTANT(kBackgroundStarves);
  if (normal && (!background || !starving)) return CallClass::kNormal;
  if (background) return CallClass::kBackground;
  return std::nullopt;
}

void AdmissionQueue::NoteClass(CallClass its_class) {
  control_in_a_row_ = its_class == CallClass::kControl ? control_in_a_row_ + 1 : 0;
  if (its_class == CallClass::kNormal) ++normal_in_a_row_;
  if (its_class == CallClass::kBackground) normal_in_a_row_ = 0;
}

QueuedCall* AdmissionQueue::Pick() {
  while (std::optional<CallClass> next = NextClass()) {
    QueuedCall* call = PickFrom(*next);
    if (call == nullptr) continue;  // no flow of the class may run one
    NoteClass(*next);
    return call;
  }
  return nullptr;
}

QueuedCall* AdmissionQueue::PickFrom(CallClass its_class) {
  const size_t index = IndexOf(its_class);
  const auto next = [this, index] {
    return VERBENA_MUTANT(kClientsTakeNoTurns) ? turns_[index].Front() : turns_[index].PopFront();
  };
  while (CallFlow* flow = next()) {
    SourceQueue& source = flow->client_->source_;
    if (its_class != CallClass::kControl) {
      // Calls of its other class have taken the client's places. EndRun() places the flow again.
      if (flow->client_->running_ >= max_running_per_client_) {
        Unpark(source);
        continue;
      }
      if (IsFull(source)) {
        source.parked_[index].PushBack(*flow);
        continue;
      }
    }
    QueuedCall& call = *flow->calls_.Front();
    Unlink(call);
    Count(call);
    Place(*flow);
    return &call;
  }
  return nullptr;
}

void AdmissionQueue::Count(QueuedCall& call) {
  if (call.class_ == CallClass::kControl) return;
  call.counted_ = true;
  ++running_;
  if (call.class_ == CallClass::kBackground) ++running_background_;
  ++call.client_->running_;
  ++call.client_->source_.running_;
}

void AdmissionQueue::EndRun(QueuedCall& call) {
  if (!std::exchange(call.counted_, false)) return;
  --running_;
  if (call.class_ == CallClass::kBackground) --running_background_;
  ClientQueue& client = *call.client_;
  SourceQueue& source = client.source_;
  --client.running_;
  --source.running_;
  for (CallFlow& flow : client.flows_) Place(flow);
  Unpark(source);
}

bool AdmissionQueue::IsFull(const SourceQueue& source) const {
  return source.bounded_ && source.running_ >= max_running_per_source_;
}

// One of each class, since the classes take turns, too.
void AdmissionQueue::Unpark(SourceQueue& source) {
  if (IsFull(source)) return;
  for (IntrusiveList<CallFlow>& parked : source.parked_) {
    while (CallFlow* flow = parked.PopFront()) {
      Place(*flow);
      if (flow->linked()) break;
    }
  }
}

uint32_t AdmissionQueue::Budget() const {
  if (!measured_) return 1;
  if (pace_ <= Duration::zero()) return kMaxStartsPerTurn;
  const auto starts = static_cast<uint64_t>(kTurnSlice / pace_);
  return static_cast<uint32_t>(std::clamp<uint64_t>(starts, 1, kMaxStartsPerTurn));
}

void AdmissionQueue::RunTurn() {
  RefuseOld();
  const uint32_t budget = Budget();
  const bool measuring = measuring_;
  uint32_t started = 0;
  while (started < budget) {
    QueuedCall* call = Pick();
    if (call == nullptr) break;
    ++started;
    call->RunQueued();
  }
  if (started == 0) return;
  // The handlers of this turn have run, but now() is the turn's. So the time between this turn and
  // the last is what the last one's calls took.
  const TimePoint now = scheduler_.now();
  if (measuring) MeasurePace(now);
  last_turn_ = now;
  last_started_ = started;
  measuring_ = waiting_ > 0;
}

void AdmissionQueue::MeasurePace(TimePoint now) {
  const Duration sample = (now - last_turn_) / last_started_;
  pace_ = measured_ ? pace_ + (sample - pace_) / (1 << kPaceShift) : sample;
  measured_ = true;
  pace_holds_ = waiting_ > 0;
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

}  // namespace verbena::internal
