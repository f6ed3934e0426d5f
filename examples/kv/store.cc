#include "examples/kv/store.h"

#include "examples/kv/limits.h"
#include "fmt/format.h"
#include "verbena/rpc/status.h"

namespace kv {
namespace {

absl::Status CheckKey(const char* what, std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the {} has {} bytes, but must have 1 to {}", what, key.size(), kMaxKeyBytes));
}

absl::Status CheckValue(const char* what, std::optional<std::string_view> value) {
  if (!value.has_value() || value->size() <= kMaxValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("the {} has {} bytes, but may have at most {}",
                                                what, value->size(), kMaxValueBytes));
}

absl::Status CheckAll(const StoreWrite& write) {
  VERBENA_RETURN_IF_ERROR(CheckKey("key", write.key));
  VERBENA_RETURN_IF_ERROR(CheckValue("value", write.value));
  if (write.records.size() > kMaxRecords) {
    return absl::InvalidArgumentError(fmt::format(
        "the write has {} records, but may have at most {}", write.records.size(), kMaxRecords));
  }
  for (const StoreRecord& record : write.records) {
    VERBENA_RETURN_IF_ERROR(CheckKey("id of a record", record.id));
    VERBENA_RETURN_IF_ERROR(CheckValue("record", record.bytes));
    VERBENA_RETURN_IF_ERROR(CheckValue("record", record.bytes_if_existed));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLengths(const StoreWrite& write) {
  return verbena::WithOutcome(CheckAll(write), verbena::Outcome::kNotExecuted);
}

}  // namespace kv
