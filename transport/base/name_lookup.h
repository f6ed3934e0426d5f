// NameLookups: the addresses of hosts' names, looked up on threads that nobody waits for.

#ifndef VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_
#define VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

// What a lookup found. Plain values, since they cross threads.
struct NameAnswer {
  std::vector<SocketAddress> addresses = {};  // in the system's order, with port 0; if it is OK
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string why = {};  // if it is not

  absl::Status status() const { return absl::Status(code, why); }
};

// NameLookups: looks names up, one thread for each name that is slow.
//
// A name server that does not answer holds a thread for half a minute, and nothing can end that. So
// each name that hangs takes one thread and no more: those who ask for it meanwhile share the
// answer. Up to kMostThreads - 1 such names delay no other one. Threads start when they are needed,
// and stay. Names wait in the order in which they were asked for; the callers bound how many.
//
// Any thread. A program that ends, or an owner, leaves behind what hangs.
//
//   NameLookups::System().Start("storage-7", [mailbox](const NameAnswer& answer) {
//     mailbox->Push(answer);
//   });
class VERBENA_EXPORT NameLookups {
 public:
  static constexpr int kMostThreads = 8;  // (start)

  // Blocks. UNAVAILABLE: try again; NOT_FOUND: there is no such name.
  using LookUp = std::function<NameAnswer(const std::string& name)>;
  using Done = std::function<void(const NameAnswer& answer)>;

  // For tests: in another way than the system's. Threads keep `look_up` until it has returned.
  explicit NameLookups(LookUp look_up);
  // Forgets what was asked for and is not answered.
  ~NameLookups();
  NameLookups(const NameLookups&) = delete;
  NameLookups& operator=(const NameLookups&) = delete;

  // The process's own, by getaddrinfo(), for addresses of TCP. Never destroyed.
  static NameLookups& System();

  // Calls `done` once: on a thread of lookups, or, with RESOURCE_EXHAUSTED, on this one if there is
  // no thread to be had.
  void Start(const std::string& name, Done done);

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_
