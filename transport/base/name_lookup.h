// NameLookups: the addresses of hosts' names, looked up on threads that nobody waits for.

#ifndef VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_
#define VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/lookups.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

// What a lookup found. Plain values, since they cross threads.
struct NameAnswer {
  std::vector<SocketAddress> addresses = {};  // in the system's order, with port 0; if it is OK
  // UNAVAILABLE: try again; NOT_FOUND: there is no such name.
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string why = {};  // if it is not OK

  absl::Status status() const { return absl::Status(code, why); }
};

// NameLookups: Lookups whose keys are names of hosts.
//
//   NameLookups::System().Start("storage-7", [mailbox](const NameAnswer& answer) {
//     mailbox->Push(answer);
//   });
class VERBENA_EXPORT NameLookups final : public Lookups<NameAnswer> {
 public:
  // For tests: in another way than the system's.
  explicit NameLookups(LookUp look_up) : Lookups("verbena-names", std::move(look_up)) {}

  // The process's own, by getaddrinfo(), for addresses of TCP. Never destroyed.
  static NameLookups& System();
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_NAME_LOOKUP_H_
