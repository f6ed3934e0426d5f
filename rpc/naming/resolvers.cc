#include "verbena/rpc/naming/resolvers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/directory.h"
#include "verbena/rpc/naming/server_list.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/blocking_pool.h"
#include "verbena/transport/executor/run_blocking.h"

namespace verbena::internal {
namespace {

constexpr Duration kLeastPause = std::chrono::seconds(1);

class SystemLookup final : public NameLookup {
 public:
  absl::StatusOr<std::vector<std::string>> Lookup(const std::string& name) override {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
    if (error != 0) {
      const std::string text = fmt::format("looking up {}: {}", name, gai_strerror(error));
      return error == EAI_NONAME ? absl::NotFoundError(text) : absl::UnavailableError(text);
    }
    absl::Cleanup free = [found] { freeaddrinfo(found); };
    std::vector<std::string> addresses;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      char text[INET6_ADDRSTRLEN];
      const void* address =
          each->ai_family == AF_INET6
              ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(each->ai_addr)->sin6_addr)
              : static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(each->ai_addr)->sin_addr);
      if (inet_ntop(each->ai_family, address, text, sizeof text) != nullptr) {
        addresses.emplace_back(text);
      }
    }
    return addresses;
  }
};

// Lookups have threads of their own: a name server that does not answer holds one for many seconds,
// and the files of RunBlocking must not wait behind it. Two, so that one such name does not stop
// all others. (start)
BlockingPool& LookupPool() {
  static BlockingPool& pool = *new BlockingPool(2);
  return pool;
}

absl::Status ErrorOf(const std::string& path, int error) {
  const std::string text = fmt::format("the list of servers {}", path);
  return absl::ErrnoToStatus(error, text);
}

// Blocks.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrorOf(path, errno);
  absl::Cleanup closer = [fd] { close(fd); };
  std::string content;
  char chunk[4096];
  for (;;) {
    const ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrorOf(path, errno);
    if (got == 0) return content;
    content.append(chunk, static_cast<size_t>(got));
    if (content.size() > FileResolver::kMaxBytes) {
      return absl::InvalidArgumentError(
          fmt::format("{} has more than {} bytes, the most that a list of servers may have", path,
                      FileResolver::kMaxBytes));
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Resolver>> MakeResolver(Target target) {
  if (auto* etcd = std::get_if<EtcdTarget>(&target)) {
    VERBENA_ASSIGN_OR_RETURN(const Directory* directory, Directory::Etcd());
    return directory->MakeResolver(std::move(*etcd));
  }
  if (auto* fixed = std::get_if<StaticTarget>(&target)) {
    return std::make_shared<StaticResolver>(std::move(fixed->servers));
  }
  if (auto* dns = std::get_if<DnsTarget>(&target)) {
    return std::make_shared<DnsResolver>(std::move(*dns));
  }
  return std::make_shared<FileResolver>(std::move(std::get<FileTarget>(target).path));
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> StaticResolver::Next() {
  if (std::exchange(given_, true)) {
    VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(kNever));
  }
  co_return servers_;
}

NameLookup& NameLookup::System() {
  static SystemLookup lookup;
  return lookup;
}

Task<absl::Status> PeriodicLook::Due() {
  const Scheduler& scheduler = *(co_await CurrentContext()).scheduler;
  if (last_ != kNever) {
    // Not `asked_` at once: a server that is down asks at each attempt.
    VERBENA_CO_RETURN_IF_ERROR(
        co_await SleepUntil(SaturatingAdd(last_, std::min(kLeastPause, period_))));
    const TimePoint due = SaturatingAdd(last_, period_);
    if (!asked_.is_set() && scheduler.now() < due) {
      const absl::Status asked = co_await WithDeadline(Asked(), due);
      if (!asked.ok() && scheduler.now() < due) co_return asked;
    }
  }
  asked_.Reset();
  last_ = scheduler.now();
  const CancelScope* cancel = (co_await CurrentContext()).cancel;
  co_return cancel == nullptr ? absl::OkStatus() : cancel->status();
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> DnsResolver::Next() {
  VERBENA_CO_RETURN_IF_ERROR(co_await look_.Due());
  const auto look = [this] { return lookup_.Lookup(target_.name); };
  VERBENA_CO_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                              co_await RunBlockingOn(LookupPool(), look));
  // The system rotates them; the same set is the same list here.
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  if (addresses.empty()) {
    co_return absl::UnavailableError(fmt::format("{} has no address", target_.name));
  }
  std::vector<ResolvedServer> servers;
  for (const std::string& address : addresses) {
    const bool v6 = address.find(':') != std::string::npos;
    servers.push_back({.addresses = {v6 ? fmt::format("[{}]:{}", address, target_.port)
                                        : fmt::format("{}:{}", address, target_.port)}});
  }
  co_return servers;
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> FileResolver::Next() {
  for (;;) {
    VERBENA_CO_RETURN_IF_ERROR(co_await look_.Due());
    absl::StatusOr<std::string> content = co_await RunBlocking([this] { return ReadFile(path_); });
    if (!content.ok()) {
      // The same content later is news again.
      read_ = false;
      co_return content.status();
    }
    if (read_ && *content == content_) continue;
    read_ = true;
    content_ = *std::move(content);
    co_return ParseServerList(path_, content_);
  }
}

}  // namespace verbena::internal
