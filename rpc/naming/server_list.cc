#include "verbena/rpc/naming/server_list.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

absl::Status SetOption(std::string_view option, ResolvedServer& server) {
  const size_t equals = std::min(option.find('='), option.size());
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(std::min(equals + 1, option.size()));
  if (key == "weight") {
    uint32_t weight = 0;
    const char* const begin = value.data();
    const char* const end = begin + value.size();
    const auto [rest, error] = std::from_chars(begin, end, weight);
    if (rest != end || error != std::errc() || weight < 1 || weight > ResolvedServer::kMaxWeight) {
      return absl::InvalidArgumentError(fmt::format("weight is \"{}\", but must be in [1, {}]",
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
    } else {
      servers.push_back(*std::move(server));
    }
  }
  if (wrong.any()) return wrong.status();
  if (servers.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} names no server: write a line host:port for each", path));
  }
  return servers;
}

}  // namespace verbena::internal
