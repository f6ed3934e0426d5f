// The text of etcd's answers and of servers' values: no input makes its readers fail other than by
// a Status, and a server that was read is written and read again as the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "verbena/rpc/naming/etcd/messages.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

void Read(std::string_view text) {
  const absl::StatusOr<EtcdRange> range = DecodeRange(text);
  if (range.ok()) VERBENA_CHECK(range->revision > 0) << range->revision;
  (void)DecodeTxn(text);
  (void)DecodeWatch(text);
  (void)DecodeRevision(text);
  (void)DecodeLogin(text);
  const absl::StatusOr<EtcdLease> kept = DecodeKeepAlive(text);
  if (kept.ok()) VERBENA_CHECK(kept->ttl > Duration::zero()) << kept->id;
  const absl::StatusOr<EtcdLease> granted = DecodeGrant(text);
  if (granted.ok()) VERBENA_CHECK(granted->ttl > Duration::zero()) << granted->id;
  VERBENA_CHECK(!DecodeFailure(500, text).ok()) << "a failure that is none";
  VERBENA_CHECK(!DecodeFailure(200, text).ok()) << "a failure that is none";
  const absl::StatusOr<ServerEntry> server = DecodeServerValue("a", text);
  if (!server.ok()) return;
  const absl::StatusOr<ServerEntry> again = DecodeServerValue("a", EncodeServerValue(*server));
  VERBENA_CHECK(again.ok() && again->server == server->server) << text.size();
}

}  // namespace
}  // namespace verbena::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::internal::Read(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
