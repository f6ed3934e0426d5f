#include "verbena/rpc/naming/resolvers.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace {

// (start) From a look to the next one that is asked for.
constexpr Duration kFirstPause = std::chrono::seconds(1);

// Whether this host knows a way to the address, as far as can be said without sending anything.
bool HasRoute(SocketAddress address) {
  address.set_port(9);  // any
  const UniqueFd fd(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && connect(fd.get(), address.get(), address.size()) == 0;
}

bool IsIpv6(const SocketAddress& address) { return address.family() == AF_INET6; }

// The hosts of a name's servers, in an order of their own: the system rotates them, but the same
// set is the same list here. A host with addresses of both families is one server, not two. So the
// family with more addresses counts, or of as many the one that the system prefers.
std::vector<std::string> HostsOf(std::vector<SocketAddress> addresses) {
  const auto by_text = [](const SocketAddress& a, const SocketAddress& b) {
    return a.host() < b.host();
  };
  const auto is_same = [](const SocketAddress& a, const SocketAddress& b) {
    return a.host() == b.host();
  };
  const bool prefers_ipv6 = !addresses.empty() && IsIpv6(addresses.front());
  std::sort(addresses.begin(), addresses.end(), by_text);
  addresses.erase(std::unique(addresses.begin(), addresses.end(), is_same), addresses.end());
  std::vector<SocketAddress> reachable;
  std::copy_if(addresses.begin(), addresses.end(), std::back_inserter(reachable), &HasRoute);
  if (reachable.empty()) reachable = std::move(addresses);
  const auto ipv6 = std::count_if(reachable.begin(), reachable.end(), &IsIpv6);
  const auto ipv4 = static_cast<ptrdiff_t>(reachable.size()) - ipv6;
  const bool takes_ipv6 = ipv6 > ipv4 || (ipv6 == ipv4 && prefers_ipv6);
  std::vector<std::string> hosts;
  for (const SocketAddress& each : reachable) {
    if (IsIpv6(each) == takes_ipv6) hosts.push_back(each.host());
  }
  return hosts;
}

// A lookup's hosts, or why there are none. Plain values, since they cross threads.
struct FoundHosts {
  std::vector<std::string> hosts = {};
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string why = {};
};

FileContent ErrorOf(const std::string& path, int error) {
  const std::string text = fmt::format("the list of servers {}", path);
  const absl::Status why = absl::ErrnoToStatus(error, text);
  return {.code = why.code(), .why = std::string(why.message())};
}

// Blocks.
FileContent ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrorOf(path, errno);
  absl::Cleanup closer = [fd] { close(fd); };
  FileContent content;
  char chunk[4096];
  for (;;) {
    const ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrorOf(path, errno);
    if (got == 0) return content;
    content.bytes.append(chunk, static_cast<size_t>(got));
    if (content.bytes.size() > FileResolver::kMaxBytes) {
      return {
          .code = absl::StatusCode::kInvalidArgument,
          .why = fmt::format("{} has more than {} bytes, the most that a list of servers may have",
                             path, FileResolver::kMaxBytes)};
    }
  }
}

absl::Status SetOption(std::string_view option, ResolvedServer& server) {
  const size_t equals = std::min(option.find('='), option.size());
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(std::min(equals + 1, option.size()));
  if (key == "weight") {
    uint32_t weight = 0;
    const char* const begin = value.data();
    const char* const end = begin + value.size();
    const auto [rest, error] = std::from_chars(begin, end, weight);
    if (rest != end || error != std::errc() || weight > ResolvedServer::kMaxWeight) {
      return absl::InvalidArgumentError(fmt::format("weight is \"{}\", but must be in [0, {}]",
                                                    Shown(value), ResolvedServer::kMaxWeight));
    }
    server.weight = weight;
  } else if (key == "name" && !value.empty()) {
    VERBENA_RETURN_IF_ERROR(CheckResolvedText("a name", value));
    server.name = value;
  } else if (key == "zone" && !value.empty()) {
    VERBENA_RETURN_IF_ERROR(CheckResolvedText("a zone", value));
    server.zone = value;
  } else {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" is no option: write weight=3, zone=a or name=storage-7", Shown(option)));
  }
  return absl::OkStatus();
}

std::vector<std::string_view> WordsOf(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return words;
    const size_t end = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

absl::StatusOr<ResolvedServer> ParseLine(const std::vector<std::string_view>& words) {
  ResolvedServer server;
  VERBENA_ASSIGN_OR_RETURN(server.addresses, ParseAddresses(words.front(), 1));
  for (size_t i = 1; i < words.size(); ++i) {
    VERBENA_RETURN_IF_ERROR(SetOption(words[i], server));
  }
  if (server.name.empty()) server.name = server.addresses.front();
  return server;
}

// Lines that are wrong, as the error names them.
class WrongLines {
 public:
  explicit WrongLines(std::string_view path) : path_(path) {}
  void Add(size_t line, std::string_view what) {
    constexpr size_t kNamed = 3;
    if (++count_ > kNamed) return;
    text_ += fmt::format("{}{}:{}: {}", count_ == 1 ? "" : "; ", path_, line, what);
  }
  bool any() const { return count_ > 0; }
  absl::Status status() const {
    return absl::InvalidArgumentError(
        count_ <= 3 ? text_ : fmt::format("{}; and {} more lines", text_, count_ - 3));
  }

 private:
  const std::string_view path_;
  size_t count_ = 0;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Resolver>> MakeResolver(Target target) {
  if (auto* etcd = std::get_if<EtcdTarget>(&target)) {
    VERBENA_ASSIGN_OR_RETURN(const Directory* directory, Directory::Etcd());
    return directory->MakeResolver(std::move(*etcd));
  }
  VERBENA_CHECK(!std::holds_alternative<PlainTarget>(target)) << "one server needs no resolver";
  if (auto* fixed = std::get_if<StaticTarget>(&target)) {
    VERBENA_CHECK(!fixed->servers.empty() && fixed->servers.size() <= Resolver::kMaxServers)
        << fixed->servers.size() << " servers";
    return std::make_shared<StaticResolver>(std::move(fixed->servers));
  }
  if (auto* dns = std::get_if<DnsTarget>(&target)) {
    return std::make_shared<DnsResolver>(std::move(*dns));
  }
  std::string& path = std::get<FileTarget>(target).path;
  VERBENA_CHECK(path.starts_with('/')) << path;
  return std::make_shared<FileResolver>(std::move(path));
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> StaticResolver::Next() {
  if (std::exchange(given_, true)) {
    VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(kNever));
  }
  co_return servers_;
}

PeriodicLook::PeriodicLook(Duration first, Duration longest, Random& random)
    : periods_(first, longest, random), pauses_(std::min(kFirstPause, first), longest, random) {}

Task<absl::Status> PeriodicLook::Due() {
  const Scheduler& scheduler = *(co_await CurrentContext()).scheduler;
  // Not `asked_` at once: a server that is down asks at each attempt.
  VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(earliest_));
  if (!asked_.is_set() && scheduler.now() < due_) {
    const absl::Status asked = co_await WithDeadline(WaitFor(asked_), due_);
    if (!asked.ok() && scheduler.now() < due_) co_return asked;
  }
  // Nobody has asked for a whole period.
  if (!asked_.is_set()) pauses_.Reset();
  PlanNext(scheduler.now());
  const CancelScope* cancel = (co_await CurrentContext()).cancel;
  co_return cancel == nullptr ? absl::OkStatus() : cancel->status();
}

void PeriodicLook::NoteLook(TimePoint now) {
  periods_.Reset();
  PlanNext(now);
}

void PeriodicLook::NoteChange(TimePoint now) {
  pauses_.Reset();
  earliest_ = std::min(earliest_, SaturatingAdd(now, pauses_.Next()));
}

void PeriodicLook::PlanNext(TimePoint now) {
  asked_.Reset();
  due_ = SaturatingAdd(now, periods_.Next());
  earliest_ = std::min(due_, SaturatingAdd(now, pauses_.Next()));
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> DnsResolver::Next() {
  VERBENA_CO_RETURN_IF_ERROR(co_await look_.Due());
  absl::StatusOr<std::vector<ResolvedServer>> servers = co_await Look();
  if (!servers.ok()) {
    look_.Hasten();
  } else if (*servers != last_) {
    look_.NoteChange((co_await CurrentContext()).scheduler->now());
    last_ = *servers;
  }
  co_return servers;
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> DnsResolver::Look() {
  // Shared with the lookup, which may last longer than this Task.
  const auto found = std::make_shared<Mailbox<FoundHosts>>();
  lookups_.Start(target_.name, [found](const NameAnswer& answer) {
    found->Push({.hosts = HostsOf(answer.addresses), .code = answer.code, .why = answer.why});
  });
  VERBENA_CO_ASSIGN_OR_RETURN(const FoundHosts answer, co_await found->Pop());
  VERBENA_CO_RETURN_IF_ERROR(absl::Status(answer.code, answer.why));
  std::vector<ResolvedServer> servers;
  servers.reserve(answer.hosts.size());
  for (const std::string& host : answer.hosts) {
    servers.push_back({.addresses = {FormatHostPort(host, target_.port)}});
  }
  co_return servers;
}

FileReads& FileReads::System() {
  static FileReads* reads = new FileReads(&ReadFile);
  // A child of fork() has a copy whose threads are not there, so it begins with none.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { reads = new FileReads(&ReadFile); });
  return *reads;
}

Task<absl::StatusOr<std::vector<ResolvedServer>>> FileResolver::Next() {
  for (;;) {
    VERBENA_CO_RETURN_IF_ERROR(co_await look_.Due());
    absl::StatusOr<std::string> content = co_await Read();
    if (!content.ok()) {
      // The next content is reported even if it equals the last.
      read_ = false;
      co_return content.status();
    }
    if (read_ && *content == content_) continue;
    read_ = true;
    content_ = *std::move(content);
    co_return ParseServerList(path_, content_);
  }
}

Task<absl::StatusOr<std::string>> FileResolver::Read() {
  // Shared with the read, which may last longer than this Task.
  const auto read = std::make_shared<Mailbox<FileContent>>();
  reads_.Start(path_, [read](const FileContent& content) { read->Push(content); });
  VERBENA_CO_ASSIGN_OR_RETURN(FileContent content, co_await read->Pop());
  VERBENA_CO_RETURN_IF_ERROR(content.status());
  co_return std::move(content.bytes);
}

absl::StatusOr<std::vector<ResolvedServer>> ParseServerList(std::string_view path,
                                                            std::string_view text) {
  std::vector<ResolvedServer> servers;
  std::set<std::string> names;
  WrongLines wrong(path);
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::vector<std::string_view> words = WordsOf(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    absl::StatusOr<ResolvedServer> server = ParseLine(words);
    if (!server.ok()) {
      wrong.Add(number, std::string(server.status().message()));
    } else if (!names.insert(server->name).second) {
      wrong.Add(number, fmt::format("{} is there twice", Shown(server->name)));
    } else if (servers.size() == Resolver::kMaxServers) {
      wrong.Add(number, fmt::format("more than {} servers", Resolver::kMaxServers));
    } else if (server->weight > 0) {
      servers.push_back(*std::move(server));
    }
  }
  if (wrong.any()) return wrong.status();
  if (servers.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} names no server that takes calls: write a line host:port for each", path));
  }
  return servers;
}

}  // namespace verbena::internal
