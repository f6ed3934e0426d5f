#include "examples/kv/workers.h"

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/explained.h"
#include "examples/kv/kv.pb.h"
#include "examples/kv/kv.verbena.pb.h"
#include "fmt/format.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"

namespace kv {

using examples::Lane;
using verbena::Clock;
using verbena::Task;
using verbena::TimePoint;

namespace {

// A server that does not answer for this long is as good as gone; a Put may wait for a slow disk.
constexpr std::chrono::seconds kCallTimeout(60);

absl::Status Explained(const char* method, const std::string& key, const absl::Status& status) {
  return examples::Explained(fmt::format("{} of key '{}'", method, key), status);
}

}  // namespace

const Piece* PieceWork::Take(const Lane& lane) {
  if (!lane.may_go_on()) return nullptr;
  const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  return index < corpus_.pieces().size() ? &corpus_.pieces()[index] : nullptr;
}

Task<absl::StatusOr<verbena::Payload>> PutWork::PayloadOf(std::string_view bytes) {
  if (bytes.empty()) co_return verbena::Payload::Empty();
  VERBENA_CO_ASSIGN_OR_RETURN(verbena::Buffer buffer,
                              co_await channel().AllocateBuffer(bytes.size()));
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  co_return std::move(buffer);
}

Task<void> PutWork::RunWorker(Lane& lane) {
  const v1::KeyValue::Stub store(channel());
  v1::PutRequest request;
  v1::PutReply reply;
  while (const Piece* piece = Take(lane)) {
    request.mutable_key()->clear();
    piece->AppendKey(*request.mutable_key());
    const TimePoint began = Clock::Real().Now();
    absl::StatusOr<verbena::Payload> value = co_await PayloadOf(piece->bytes);
    absl::Status status = value.status();
    if (status.ok()) {
      status = co_await store.Put(request, reply,
                                  {.deadline = kCallTimeout, .request_payload = *std::move(value)});
    }
    if (!status.ok()) {
      lane.Fail(Explained("Put", request.key(), status));
      co_return;
    }
    lane.CountCall(began, piece->bytes.size());
  }
}

Task<void> GetWork::RunWorker(Lane& lane) {
  const v1::KeyValue::Stub store(channel());
  v1::GetRequest request;
  verbena::WithPayload<v1::GetReply> reply;
  while (const Piece* piece = Take(lane)) {
    request.mutable_key()->clear();
    piece->AppendKey(*request.mutable_key());
    const TimePoint began = Clock::Real().Now();
    absl::Status status = co_await store.Get(request, reply, {.deadline = kCallTimeout});
    if (!status.ok()) {
      lane.Fail(Explained("Get", request.key(), status));
      co_return;
    }
    const std::string_view value(reply.payload.data(), reply.payload.size());
    lane.CountCall(began, value.size());
    if (value != piece->bytes) {
      lane.Fail(absl::DataLossError(
          fmt::format("Get of key '{}': the {} bytes that came back are not the {} that were put",
                      request.key(), value.size(), piece->bytes.size())));
    }
  }
}

Task<void> ScanWork::RunWorker(Lane& lane) {
  const v1::KeyValue::Stub store(channel_);
  v1::ScanRequest request;
  v1::ScanReply reply;
  std::string last_key;
  uint64_t keys = 0;
  do {
    const TimePoint began = Clock::Real().Now();
    absl::Status status = co_await store.Scan(request, reply, {.deadline = kCallTimeout});
    if (!status.ok()) {
      lane.Fail(Explained("Scan", request.start_key(), status));
      co_return;
    }
    uint64_t bytes = 0;
    for (const v1::Entry& entry : reply.entries()) {
      if (entry.key() <= last_key) {
        lane.Fail(absl::DataLossError(
            fmt::format("Scan: key '{}' came after '{}'", entry.key(), last_key)));
      }
      last_key = entry.key();
      bytes += entry.value().size();
    }
    keys += reply.entries_size();
    lane.CountCall(began, bytes);
    request.set_start_key(reply.next_key());
  } while (!request.start_key().empty() && lane.may_go_on());
  if (lane.may_go_on() && keys != corpus_.distinct_keys()) {
    lane.Fail(absl::DataLossError(
        fmt::format("Scan: there are {} keys, but {} were put", keys, corpus_.distinct_keys())));
  }
}

}  // namespace kv
