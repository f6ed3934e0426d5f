// MetadataCodec: the entries of a Metadata (call.h) as bytes, and back.
//
// Pure functions; any thread. The view of EntriesOf() is valid until the Metadata changes.

#ifndef VERBENA_RPC_CALL_METADATA_H_
#define VERBENA_RPC_CALL_METADATA_H_

#include <string_view>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/transport/base/export.h"

namespace verbena::internal {

class VERBENA_EXPORT MetadataCodec {
 public:
  // The entries in the form in which they travel, bytes() long.
  static std::string_view EntriesOf(const Metadata& metadata) {
    return metadata.rep_ == nullptr ? std::string_view() : metadata.rep_->entries;
  }
  // Reads entries from a peer, which must fill `bytes` exactly. INVALID_ARGUMENT if they do not, or
  // if an entry may not be sent.
  static absl::Status Read(std::string_view bytes, Metadata& metadata);
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_METADATA_H_
