#include "verbena/transport/device/control_queue.h"

#include <algorithm>

namespace verbena::internal {

bool ControlQueue::Push(Entry& entry) {
  auto [found, added] = sources_.try_emplace(entry.source_name_);
  Source& source = found->second;
  if (added) {
    source.queue = this;
    source.name = &found->first;
  }
  const size_t before = StartableOf(source);
  entry.source_ = &source;
  source.ready.PushBack(entry);
  ++source.waiting;
  if (StartableOf(source) == before) return false;
  ++startable_;
  if (!source.linked()) turns_.PushBack(source);
  return true;
}

ControlQueue::Begun ControlQueue::Take() {
  Source* source = turns_.PopFront();
  if (source == nullptr) return {};
  Entry* entry = source->ready.PopFront();
  --source->waiting;
  ++source->running;
  --startable_;
  if (StartableOf(*source) > 0) turns_.PushBack(*source);
  return {.entry = entry, .source = source};
}

void ControlQueue::End(Source& source) {
  const size_t before = StartableOf(source);
  --source.running;
  startable_ += StartableOf(source) - before;
  if (StartableOf(source) > 0 && !source.linked()) turns_.PushBack(source);
  Forget(source);
}

void ControlQueue::Remove(Entry& entry) {
  Source& source = *entry.source_;
  ControlQueue& queue = *source.queue;
  const size_t before = queue.StartableOf(source);
  entry.Unlink();
  --source.waiting;
  const size_t after = queue.StartableOf(source);
  queue.startable_ -= before - after;
  if (after == 0) source.Unlink();
  queue.Forget(source);
}

size_t ControlQueue::StartableOf(const Source& source) const {
  return std::min(source.waiting, most_running_ - source.running);
}

void ControlQueue::Forget(Source& source) {
  if (source.waiting > 0 || source.running > 0) return;
  sources_.erase(sources_.find(*source.name));
}

}  // namespace verbena::internal
