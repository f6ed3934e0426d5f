#include "verbena/rpc/server/request_shares.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/server/server_client.h"
#include "verbena/rpc/server/session.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {

bool RequestShares::TryTake(ServerClient& client, size_t bytes) {
  const size_t of_client = std::min(bytes, client.max_bytes());
  if (!client.bytes().TryAcquire(of_client)) return false;
  const size_t of_source = std::min(bytes, client.source().max_bytes());
  if (!client.source_bytes().TryAcquire(of_source)) {
    client.bytes().Release(of_client);
    return false;
  }
  of_client_ = of_client;
  of_source_ = of_source;
  return true;
}

// Always in this order, so that no two calls wait for each other. A share that a call has when it
// is cancelled goes back when the call ends.
Task<absl::Status> RequestShares::Take(ServerSession& session, size_t bytes) {
  ServerClient& client = session.client();
  const size_t of_client = std::min(bytes, client.max_bytes());
  VERBENA_CO_RETURN_IF_ERROR(co_await client.bytes().Acquire(of_client));
  of_client_ = of_client;
  const size_t of_source = std::min(bytes, client.source().max_bytes());
  if (of_source > client.source_bytes().available()) session.ReclaimGrantsOfSource();
  VERBENA_CO_RETURN_IF_ERROR(co_await client.source_bytes().Acquire(of_source));
  of_source_ = of_source;
  co_return absl::OkStatus();
}

absl::Status RequestShares::NotTaken(ServerClient& client, size_t bytes, Duration waited) const {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  if (of_client_ < std::min(bytes, client.max_bytes())) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} bytes for a payload did not come free within {} ms: requests of this "
        "client take {} of the {} bytes that it may have. Send fewer at once, or raise "
        "ServerOptions::max_bytes_per_client",
        bytes, ms, client.max_bytes() - client.bytes().available(), client.max_bytes()));
  }
  ServerSource& source = client.source();
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes for a payload did not come free within {} ms: requests from this "
                  "client's address take {} of the {} bytes that all its clients may have, {} of "
                  "them in landings granted ahead. Send fewer at once, or raise "
                  "ServerOptions::max_bytes_per_source",
                  bytes, ms, source.max_bytes() - source.bytes().available(), source.max_bytes(),
                  source.granted_bytes()));
}

void RequestShares::Return(ServerClient& client) {
  if (of_client_ > 0) client.bytes().Release(std::exchange(of_client_, 0));
  if (of_source_ > 0) client.source_bytes().Release(std::exchange(of_source_, 0));
}

}  // namespace verbena::internal
