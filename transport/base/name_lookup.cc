#include "verbena/transport/base/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <string>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {
namespace {

NameAnswer AskSystem(const std::string& name) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return {
        .code = error == EAI_NONAME ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
        .why = fmt::format("looking up {}: {}", name, gai_strerror(error))};
  }
  absl::Cleanup free = [found] { freeaddrinfo(found); };
  NameAnswer answer;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const SocketAddress address(*each->ai_addr);
    if (address.has_value()) answer.addresses.push_back(address);
  }
  if (answer.addresses.empty()) {
    answer.code = absl::StatusCode::kUnavailable;
    answer.why = fmt::format("{} has no address", name);
  }
  return answer;
}

}  // namespace

NameLookups& NameLookups::System() {
  static NameLookups* lookups = new NameLookups(&AskSystem);
  // A child of fork() has a copy whose threads are not there, so it begins with none.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { lookups = new NameLookups(&AskSystem); });
  return *lookups;
}

}  // namespace verbena::internal
