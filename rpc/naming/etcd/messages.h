// Messages of etcd's JSON gateway: requests as text, and answers read from text.
//
// Pure functions. Nothing in an answer is trusted: an answer that is no JSON, lacks a field or has
// one of another kind gives INTERNAL, and the message says which. Keys and values travel as base64,
// 64-bit numbers as text.

#ifndef VERBENA_RPC_NAMING_ETCD_MESSAGES_H_
#define VERBENA_RPC_NAMING_ETCD_MESSAGES_H_

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/registrar.h"

namespace verbena::internal {

enum class EtcdRangeKind : uint8_t {
  kKey,     // one key
  kPrefix,  // keys that begin with it
  kNewest,  // among the keys that begin with it, the one that changed last, without its value
};

std::string EncodeRange(std::string_view key, EtcdRangeKind kind, size_t most);
std::string EncodeWatch(std::string_view prefix, int64_t from_revision);
std::string EncodeGrant(int64_t seconds);
std::string EncodeLease(int64_t lease);
std::string EncodeLogin(std::string_view user, std::string_view password);

// The first key behind all that begin with `prefix`.
std::string EndOfPrefix(std::string_view prefix);

absl::StatusOr<EtcdRange> DecodeRange(std::string_view text);
absl::StatusOr<EtcdTxnResult> DecodeTxn(std::string_view text);
absl::StatusOr<EtcdLease> DecodeGrant(std::string_view text);
// NOT_FOUND: the lease has ended.
absl::StatusOr<EtcdLease> DecodeKeepAlive(std::string_view text);
// The token of a login. INTERNAL if it could not be a line of HTTP.
absl::StatusOr<std::string> DecodeLogin(std::string_view text);
// Reads an answer of which only its revision matters.
absl::StatusOr<int64_t> DecodeRevision(std::string_view text);
// One message of a watch. OUT_OF_RANGE: the revision is compacted. No event: nothing has changed.
absl::StatusOr<EtcdChanges> DecodeWatch(std::string_view text);

// Why a request failed that was answered with this HTTP status. Never OK.
absl::Status DecodeFailure(int http_status, std::string_view text);

// Json: reads of a JSON object that somebody else wrote, each with an error that names the field.
//
// Pure functions over Boost.JSON, without exceptions.

// INTERNAL: the text is no JSON object, or nests deeper than 32.
absl::StatusOr<boost::json::object> ParseJsonObject(std::string_view text);

// Fields that are not there are as proto3 means them: 0, "" or false. Each fails with INTERNAL if
// the field has another kind.
absl::StatusOr<int64_t> JsonInteger(const boost::json::object& object, std::string_view name);
absl::StatusOr<std::string> JsonText(const boost::json::object& object, std::string_view name);
absl::StatusOr<std::string> JsonBase64(const boost::json::object& object, std::string_view name);
absl::StatusOr<bool> JsonBool(const boost::json::object& object, std::string_view name);
// nullptr: it is not there.
absl::StatusOr<const boost::json::object*> JsonObject(const boost::json::object& object,
                                                      std::string_view name);
absl::StatusOr<const boost::json::array*> JsonArray(const boost::json::object& object,
                                                    std::string_view name);

// Values of servers in etcd: one JSON object for each, under prefix/name.
//
//   {"addresses":["10.0.0.7:4000"],"devices":["mlx5_0"],"executors":4,"weight":3,"zone":"a"}
//
// Pure functions. Fields that a reader does not know are for later versions. Errors show at most
// 100 bytes of each text.

// The most bytes of a value.
inline constexpr size_t kMaxServerValueBytes = size_t{16} << 10;

std::string EncodeServerValue(const ServerEntry& entry);

// INVALID_ARGUMENT: the name or the value breaks a rule of ResolvedServer, or is too long.
absl::StatusOr<ServerEntry> DecodeServerValue(std::string_view name, std::string_view value);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_MESSAGES_H_
