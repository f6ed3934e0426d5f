// Messages of etcd's JSON gateway: requests as text, and answers read from text.
//
// Pure functions. Nothing in an answer is trusted: what is no JSON, lacks a field or has one of
// another kind is an error, INTERNAL, that says which. Keys and values travel as base64, 64-bit
// numbers as text.

#ifndef VERBENA_RPC_NAMING_ETCD_MESSAGES_H_
#define VERBENA_RPC_NAMING_ETCD_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"

namespace verbena::internal {

enum class EtcdRangeKind : uint8_t {
  kKey,     // one key
  kPrefix,  // keys that begin with it
  kNewest,  // of these the one that changed last, without its value
};

std::string EncodeRange(std::string_view key, EtcdRangeKind kind, size_t most);
std::string EncodeWatch(std::string_view prefix, int64_t from_revision);
std::string EncodeGrant(int64_t seconds);
std::string EncodeLease(int64_t lease);

// The first key behind all that begin with `prefix`.
std::string EndOfPrefix(std::string_view prefix);

absl::StatusOr<EtcdRange> DecodeRange(std::string_view text);
absl::StatusOr<EtcdTxnResult> DecodeTxn(std::string_view text);
absl::StatusOr<EtcdLease> DecodeGrant(std::string_view text);
// NOT_FOUND: the lease has ended.
absl::StatusOr<EtcdLease> DecodeKeepAlive(std::string_view text);
// Reads an answer of which only its revision matters.
absl::StatusOr<int64_t> DecodeRevision(std::string_view text);
// One message of a watch. OUT_OF_RANGE: the revision is compacted. No event: nothing has changed.
absl::StatusOr<EtcdChanges> DecodeWatch(std::string_view text);

// Why a request failed that was answered with this HTTP status. Never OK.
absl::Status DecodeFailure(int http_status, std::string_view text);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_MESSAGES_H_
