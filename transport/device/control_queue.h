// ControlQueue: jobs of one kind that wait for a thread, served in turn by source.
//
// A source is the address of the peer for which a job runs, or empty. Each source has a queue of
// its own, and the queues take turns: a job waits for one job of each other source, however many
// jobs these have handed over. One source runs at most `most_running` jobs at once, also while the
// others have none, so that a thread is free when another source comes.
//
// Guarded by the mutex of its ControlPool. It owns no job, and keeps a source while that has jobs.

#ifndef VERBENA_TRANSPORT_DEVICE_CONTROL_QUEUE_H_
#define VERBENA_TRANSPORT_DEVICE_CONTROL_QUEUE_H_

#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/node_hash_map.h"
#include "verbena/transport/base/intrusive_list.h"

namespace verbena::internal {

class ControlQueue {
 public:
  class Source;

  // A job. Its owner takes it off the queue before it destroys it.
  class Entry : public IntrusiveNode<Entry> {
   public:
    explicit Entry(std::string source) : source_name_(std::move(source)) {}

   private:
    friend class ControlQueue;
    const std::string source_name_;
    Source* source_ = nullptr;  // once it was queued
  };

  // The jobs of one address.
  class Source : public IntrusiveNode<Source> {
    friend class ControlQueue;
    ControlQueue* queue = nullptr;
    const std::string* name = nullptr;
    IntrusiveList<Entry> ready;
    size_t waiting = 0;  // in `ready`
    size_t running = 0;
  };

  // A job that begins. Its source must hear of its end.
  struct Begun {
    Entry* entry = nullptr;
    Source* source = nullptr;
  };

  // Before the first job.
  void set_most_running(size_t jobs) { most_running_ = jobs; }

  // False when it may not begin yet, because its source runs enough.
  bool Push(Entry& entry);
  // Returns the next job, which then counts as running until End(); no entry if none may begin.
  Begun Take();
  void End(Source& source);
  // Takes a job off whichever queue it is in.
  static void Remove(Entry& entry);
  // Jobs that may begin now.
  size_t startable() const { return startable_; }

 private:
  size_t StartableOf(const Source& source) const;
  void Forget(Source& source);

  size_t most_running_ = std::numeric_limits<size_t>::max();
  size_t startable_ = 0;
  absl::node_hash_map<std::string, Source> sources_;
  // Sources of which a job may begin; the first is served next.
  IntrusiveList<Source> turns_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_CONTROL_QUEUE_H_
