#include "verbena/rpc/server/parts.h"

#include <memory>

#include "verbena/rpc/server/dedupe.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

ServerBulk& CallParts::Bulk() {
  if (bulk.get() == nullptr) BeginBulk({}, {}, nullptr);
  return *bulk.get();
}

void CallParts::BeginStream(const IncomingRequest& request, const MethodDescriptor& method) {
  ServedStream& served = stream.Make();
  served.Begin(state, *link, id, deadline, method, request.apart);
  if (request.context_header.travels) {
    served.ExpectContext(link->streams(), request.context_header.block_bytes);
  }
}

Task<absl::Status> CallParts::WriteKept(BufferView part) {
  absl::Status written = co_await Bulk().response().Write(part);
  const Link* open = link->link();
  // Whoever repeats the call gets the payload over another link.
  const bool lost = open == nullptr || !open->open();
  if (!lost) VERBENA_CO_RETURN_IF_ERROR(written);
  CarriedContext::Once& once = carried.once();
  once.written_bytes += part.size();
  DedupeTable& table = *state.limits().dedupe;
  // Nobody gives back what is taken once the handler has ended.
  const bool may_be_kept =
      once.outlives_link && !once.lacks_room && once.written_bytes <= table.max_result_bytes();
  if (!may_be_kept) co_return absl::OkStatus();
  if (table.TakeUnfinished(part.size())) {
    once.written.append(part.data(), part.size());
  } else {
    once.lacks_room = true;
  }
  co_return absl::OkStatus();
}

void CallParts::EndNamedRun(const std::shared_ptr<const KeptResult>& result) {
  if (carried.has_left_changes()) {
    carried.left_changes().result = result;
  } else {
    state.limits().dedupe->End(carried.name()->id, result, state.executor());
  }
}

}  // namespace verbena::internal
