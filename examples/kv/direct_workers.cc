#include "examples/kv/direct_workers.h"

#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace kv {

using examples::Lane;
using verbena::Clock;
using verbena::Task;
using verbena::TimePoint;

Task<void> DirectWork::RunWorker(Lane& lane) {
  std::string key;
  while (lane.may_go_on()) {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= corpus_.pieces().size()) co_return;
    const Piece& piece = corpus_.pieces()[index];
    key.clear();
    piece.AppendKey(key);
    const TimePoint began = Clock::Real().Now();
    absl::Status status = co_await Do(key, piece);
    if (!status.ok()) {
      lane.Fail(std::move(status));
      co_return;
    }
    lane.CountCall(began, piece.bytes.size());
    // A store in memory never suspends; others of this executor want their turn.
    (co_await verbena::Yield()).IgnoreError();
  }
}

Task<absl::Status> DirectPutWork::Do(const std::string& key, const Piece& piece) {
  VERBENA_CO_RETURN_IF_ERROR((co_await store().Put(key, piece.bytes)).status());
  co_return absl::OkStatus();
}

Task<absl::Status> DirectGetWork::Do(const std::string& key, const Piece& piece) {
  std::string value;
  VERBENA_CO_RETURN_IF_ERROR(co_await store().Get(key, value));
  if (value == piece.bytes) co_return absl::OkStatus();
  co_return absl::DataLossError(fmt::format("Get of key '{}': {} bytes came back, not the {} put",
                                            key, value.size(), piece.bytes.size()));
}

}  // namespace kv
