// Target: what the text of a channel's target says, without looking anything up.
//
//   storage-7:4000              one server; so is every text that has none of the prefixes below
//   static:a:4000,b:4000        these servers; "a:4000|a-rdma:4000" are two addresses of one
//   dns:///storage.local:4000   one server for each address of the name
//   file:///etc/storage.list    the servers of a file (resolvers.h), read again when it changes
//   etcd://a:2379,b:2379/storage   the servers that etcd has under "storage/"; over TLS with
//                               etcds://a:2379/storage?ca=/path&cert=/path&key=/path, and with a
//                               login as ?user=name&password_file=/path
//
// A pure function; errors name the position in the text, counted from 1, and what to write.

#ifndef VERBENA_RPC_NAMING_TARGET_H_
#define VERBENA_RPC_NAMING_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/resolver.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

// One server: the whole text is an address, as the bootstrap takes it.
struct PlainTarget {};
struct StaticTarget {
  std::vector<ResolvedServer> servers;  // 1 to Resolver::kMaxServers
};
struct DnsTarget {
  std::string name;  // an IPv6 address without its brackets
  uint16_t port = 0;
};
struct FileTarget {
  std::string path;  // absolute
};

struct EtcdTarget {
  static constexpr size_t kMaxEndpoints = 16;

  std::vector<std::string> endpoints;  // host:port, 1 to kMaxEndpoints
  std::string prefix;                  // of keys, ends with a slash
  bool tls = false;
  // As in EtcdOptions.
  std::string ca_file;
  std::string certificate_file;
  std::string key_file;
  std::string user;
  std::string password_file;
};

using Target = std::variant<PlainTarget, StaticTarget, DnsTarget, FileTarget, EtcdTarget>;

VERBENA_EXPORT absl::StatusOr<Target> ParseTarget(std::string_view text);

// The addresses of one server: "a:4000" or "a:4000|b:4000". Errors begin with "position N: ", where
// N counts from `text`'s first character, which is number `first`.
VERBENA_EXPORT absl::StatusOr<std::vector<std::string>> ParseAddresses(std::string_view text,
                                                                       size_t first);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_TARGET_H_
