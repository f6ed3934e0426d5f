// Crowd: client processes of a benchmark that act at once. Each tells when it has done its part.
//
//   absl::StatusOr<std::unique_ptr<Crowd>> crowd =
//       Crowd::Start(60, /*signals=*/1, [](Crowd::Member& me) -> absl::Status {
//         me.Tell(absl::OkStatus());              // ready
//         if (!me.Await(0)) return absl::OkStatus();
//         me.Tell(CallOnce());
//         …
//       });
//   (*crowd)->AwaitAll(60);
//   const uint64_t begin = (*crowd)->Signal(0);
//   absl::StatusOr<Crowd::Done> calls = (*crowd)->Await(60);

#ifndef VERBENA_BENCHMARKS_LINKS_CROWD_H_
#define VERBENA_BENCHMARKS_LINKS_CROWD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/links/pipe.h"

namespace verbena::benchmarks {

// Owns the processes: the destructor kills them, frozen or not. For one thread.
class Crowd {
  struct Event {
    uint64_t at_ns;
    bool well;
  };

 public:
  // A client process's end of the crowd. Any thread may use it.
  class Member {
   public:
    // Waits for the signal. A client may wait for each signal once.
    bool Await(int signal) const;
    // Tells the crowd that the client has just done something. Prints a failure.
    void Tell(const absl::Status& done) const;

   private:
    friend class Crowd;
    explicit Member(const Crowd& crowd) : crowd_(crowd) {}
    const Crowd& crowd_;
  };

  // Forks, so call it before this process has threads. Each client's process runs `be`, and ends
  // when `be` returns. Signals have the numbers 0 to `signals` - 1.
  static absl::StatusOr<std::unique_ptr<Crowd>> Start(
      int clients, int signals, const std::function<absl::Status(Member& me)>& be);

  // Gives all clients a signal. Returns the time just before.
  uint64_t Signal(int signal) const;
  struct Done {
    std::vector<uint64_t> times;  // of what was done well
    int failed = 0;
  };
  // Returns how the next `count` things that clients do have ended. DEADLINE_EXCEEDED if no client
  // does anything for two minutes.
  absl::StatusOr<Done> Await(int count) const;
  // The same; INTERNAL if one of them failed.
  absl::StatusOr<std::vector<uint64_t>> AwaitAll(int count) const;
  // Stops all clients for good. Returns when all of their threads stand still. INTERNAL if a client
  // has ended.
  absl::Status Freeze() const;

 private:
  explicit Crowd(int signals) : signals_(signals) {}

  std::vector<Pipe<char>> signals_;
  Pipe<Event> events_;
  std::vector<ServerProcess> clients_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_CROWD_H_
