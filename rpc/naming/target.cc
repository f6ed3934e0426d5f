#include "verbena/rpc/naming/target.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

constexpr std::string_view kStatic = "static:";
constexpr std::string_view kDns = "dns:///";
constexpr std::string_view kFile = "file:///";
constexpr std::string_view kEtcd = "etcd://";
constexpr std::string_view kEtcdTls = "etcds://";
constexpr const char* kWriteEtcd = "etcd://host:port,host:port/prefix";

absl::Status Wrong(size_t position, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("position {}: {}", position, what));
}

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The port after the last colon, at `position`.
absl::StatusOr<uint16_t> ParsePort(std::string_view text, size_t position) {
  uint16_t port = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (rest != text.data() + text.size() || error != std::errc() || port == 0) {
    return Wrong(position,
                 fmt::format("\"{}\" is no port: write a number from 1 to 65535", Shown(text)));
  }
  return port;
}

// A bootstrap of the program's may take any name, so a host without a port is left to it.
absl::Status CheckAddress(std::string_view text, size_t position) {
  if (text.empty()) return Wrong(position, "an address is missing: write host:port");
  const size_t odd = text.find_first_of(" \t\r\n\"'");
  if (odd != std::string_view::npos) {
    return Wrong(position + odd, "an address has no blanks and no quotes: write host:port");
  }
  if (const absl::Status checked = CheckResolvedText("an address", text); !checked.ok()) {
    return Wrong(position, std::string(checked.message()));
  }
  const size_t bracket = text.front() == '[' ? text.find(']') : 0;
  if (bracket == std::string_view::npos) {
    return Wrong(position, "the bracket is not closed: write [address]:port");
  }
  const size_t colon = text.find(':', bracket);
  if (colon == std::string_view::npos) return absl::OkStatus();
  if (bracket == 0 && text.find(':', colon + 1) != std::string_view::npos) {
    return Wrong(position, fmt::format("\"{}\" has several colons: write an IPv6 address in "
                                       "brackets, [::1]:4000",
                                       Shown(text)));
  }
  if (colon == 0) return Wrong(position, "the host is missing: write host:port");
  return ParsePort(text.substr(colon + 1), position + colon + 1).status();
}

absl::StatusOr<StaticTarget> ParseStatic(std::string_view text) {
  StaticTarget target;
  for (size_t begin = kStatic.size();;) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    VERBENA_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                             ParseAddresses(text.substr(begin, comma - begin), begin + 1));
    const auto same = [&addresses](const ResolvedServer& each) {
      return each.addresses.front() == addresses.front();
    };
    if (std::any_of(target.servers.begin(), target.servers.end(), same)) {
      return Wrong(begin + 1, fmt::format("{} is there twice", Shown(addresses.front())));
    }
    if (target.servers.size() == Resolver::kMaxServers) {
      return Wrong(begin + 1, fmt::format("more than {} servers: name them in a file, and split "
                                          "the set",
                                          Resolver::kMaxServers));
    }
    target.servers.push_back({.addresses = std::move(addresses)});
    if (comma == text.size()) return target;
    begin = comma + 1;
  }
}

absl::StatusOr<DnsTarget> ParseDns(std::string_view text) {
  std::string_view name = text.substr(kDns.size());
  const size_t slash = name.find_first_of("/,|");
  if (slash != std::string_view::npos) {
    return Wrong(kDns.size() + slash + 1,
                 fmt::format("'{}' after the name: write dns:///name:port", name[slash]));
  }
  const size_t colon = name.rfind(':');
  if (colon == std::string_view::npos || (name.front() == '[' && name[colon - 1] != ']')) {
    return Wrong(text.size() + 1, "the port is missing: write dns:///name:port");
  }
  VERBENA_RETURN_IF_ERROR(CheckAddress(name, kDns.size() + 1));
  VERBENA_ASSIGN_OR_RETURN(const uint16_t port,
                           ParsePort(name.substr(colon + 1), kDns.size() + colon + 2));
  name = name.substr(0, colon);
  if (name.front() == '[') name = name.substr(1, name.size() - 2);
  if (name.empty()) return Wrong(kDns.size() + 1, "the name is missing: write dns:///name:port");
  return DnsTarget{.name = std::string(name), .port = port};
}

// "ca=/path&cert=/path&key=/path&user=name&password_file=/path", which begins at `position`.
absl::Status ParseEtcdOptions(std::string_view text, size_t position, EtcdTarget& target) {
  for (;;) {
    const std::string_view option = text.substr(0, text.find('&'));
    const size_t equals = std::min(option.find('='), option.size());
    const std::string_view key = option.substr(0, equals);
    const std::string_view value = option.substr(std::min(equals + 1, option.size()));
    std::string* const file = key == "ca"     ? &target.ca_file
                              : key == "cert" ? &target.certificate_file
                              : key == "key"  ? &target.key_file
                                              : nullptr;
    std::string* const member = key == "user"            ? &target.user
                                : key == "password_file" ? &target.password_file
                                                         : file;
    if (member == nullptr || value.empty() || !member->empty()) {
      return Wrong(position,
                   fmt::format("\"{}\" is no option: write each of ca=/path, cert=/path, "
                               "key=/path, user=name and password_file=/path once at most",
                               Shown(option)));
    }
    if (file != nullptr && !target.tls) {
      return Wrong(position, "this file is for TLS: write etcds://");
    }
    *member = value;
    if (option.size() == text.size()) break;
    text.remove_prefix(option.size() + 1);
    position += option.size() + 1;
  }
  if (target.certificate_file.empty() != target.key_file.empty()) {
    return Wrong(position, "a certificate needs its key: write both cert=/path and key=/path");
  }
  if (target.user.empty() != target.password_file.empty()) {
    return Wrong(position, "a user needs a password: write both user=name and password_file=/path");
  }
  return absl::OkStatus();
}

absl::Status ParseEtcdPrefix(std::string_view prefix, size_t position, EtcdTarget& target) {
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (prefix.empty()) {
    return Wrong(position, fmt::format("the prefix of keys is missing: write {}", kWriteEtcd));
  }
  if (const absl::Status checked = CheckResolvedText("a prefix", prefix); !checked.ok()) {
    return Wrong(position, std::string(checked.message()));
  }
  target.prefix = std::string(prefix) + "/";
  return absl::OkStatus();
}

absl::StatusOr<EtcdTarget> ParseEtcd(std::string_view text) {
  EtcdTarget target;
  target.tls = text.starts_with(kEtcdTls);
  size_t begin = target.tls ? kEtcdTls.size() : kEtcd.size();
  const size_t slash = text.find('/', begin);
  if (slash == std::string_view::npos) {
    return Wrong(text.size() + 1,
                 fmt::format("the prefix of keys is missing: write {}", kWriteEtcd));
  }
  for (;;) {
    const size_t end = std::min(text.find(',', begin), slash);
    const std::string_view endpoint = text.substr(begin, end - begin);
    VERBENA_RETURN_IF_ERROR(CheckAddress(endpoint, begin + 1));
    if (endpoint.find(':', endpoint.find(']') + 1) == std::string_view::npos) {
      return Wrong(end + 1, fmt::format("the port is missing: write {}", kWriteEtcd));
    }
    if (target.endpoints.size() == EtcdTarget::kMaxEndpoints) {
      return Wrong(begin + 1, fmt::format("more than {} endpoints: name some members of the etcd",
                                          EtcdTarget::kMaxEndpoints));
    }
    target.endpoints.emplace_back(endpoint);
    if (end == slash) break;
    begin = end + 1;
  }
  const size_t question = std::min(text.find('?', slash), text.size());
  VERBENA_RETURN_IF_ERROR(
      ParseEtcdPrefix(text.substr(slash + 1, question - slash - 1), slash + 2, target));
  if (question == text.size()) return target;
  VERBENA_RETURN_IF_ERROR(ParseEtcdOptions(text.substr(question + 1), question + 2, target));
  return target;
}

// A text that looks like one of ours and is not: "dns://8.8.8.8/name:1", "file:x".
absl::Status CheckPrefix(std::string_view text, std::string_view prefix, const char* write) {
  const std::string_view scheme = prefix.substr(0, prefix.find(':') + 1);
  if (!text.starts_with(scheme) || text.starts_with(prefix)) return absl::OkStatus();
  // A host of that name.
  if (IsNumber(text.substr(scheme.size()))) return absl::OkStatus();
  return Wrong(scheme.size() + 1, fmt::format("\"{}\" is followed by \"{}\": write {}", scheme,
                                              Shown(text.substr(scheme.size()), 20), write));
}

absl::StatusOr<Target> Parse(std::string_view text) {
  if (text.starts_with(kStatic) && !IsNumber(text.substr(kStatic.size()))) {
    if (text.substr(kStatic.size()).starts_with('/')) {
      return Wrong(kStatic.size() + 1,
                   "\"static:\" is followed by '/': write "
                   "static:host:port,host:port");
    }
    return ParseStatic(text);
  }
  if (text.starts_with(kDns)) return ParseDns(text);
  if (text.starts_with(kFile)) {
    if (text.size() == kFile.size()) return Wrong(kFile.size() + 1, "the path is missing");
    return FileTarget{.path = std::string(text.substr(kFile.size() - 1))};
  }
  if (text.starts_with(kEtcd) || text.starts_with(kEtcdTls)) return ParseEtcd(text);
  VERBENA_RETURN_IF_ERROR(CheckPrefix(text, kEtcd, kWriteEtcd));
  VERBENA_RETURN_IF_ERROR(CheckPrefix(text, kEtcdTls, "etcds://host:port/prefix"));
  VERBENA_RETURN_IF_ERROR(CheckPrefix(text, kDns, "dns:///name:port"));
  VERBENA_RETURN_IF_ERROR(CheckPrefix(text, kFile, "file:///absolute/path"));
  return PlainTarget{};
}

}  // namespace

absl::StatusOr<Target> ParseTarget(std::string_view text) {
  absl::StatusOr<Target> target = Parse(text);
  if (target.ok()) return target;
  return absl::InvalidArgumentError(
      fmt::format("the target \"{}\", {}", Shown(text), std::string(target.status().message())));
}

absl::StatusOr<std::vector<std::string>> ParseAddresses(std::string_view text, size_t first) {
  std::vector<std::string> addresses;
  for (size_t begin = 0;;) {
    const size_t bar = std::min(text.find('|', begin), text.size());
    const std::string_view address = text.substr(begin, bar - begin);
    VERBENA_RETURN_IF_ERROR(CheckAddress(address, first + begin));
    if (addresses.size() == ResolvedServer::kMaxAddresses) {
      return Wrong(first + begin, fmt::format("more than {} addresses of one server",
                                              ResolvedServer::kMaxAddresses));
    }
    addresses.emplace_back(address);
    if (bar == text.size()) return addresses;
    begin = bar + 1;
  }
}

}  // namespace verbena::internal
