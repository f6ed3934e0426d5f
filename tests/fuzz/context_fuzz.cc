// The bytes of a context block: no input makes its reader leave it, and what it reads is what its
// encoding says.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "verbena/rpc/call/context_block.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

void Parse(const char* bytes, size_t size) {
  const absl::StatusOr<ContextHeader> header = ParseContextHeader(bytes, size);
  if (header.ok()) VERBENA_CHECK(header->in_frame() <= size) << size;
  CallContext context;
  const bool is_block = ParseContext(bytes, size, context).ok();
  (void)ParseTrailingMetadata(bytes, size);
  if (!is_block) return;
  size_t entries = 0;
  for (const auto& [key, value] : context.metadata) {
    VERBENA_CHECK(Metadata::CheckEntry(key, value).ok()) << std::string(key);
    ++entries;
  }
  VERBENA_CHECK(entries == context.metadata.size()) << entries;
  std::string again(context.encoded_bytes(), '\0');
  context.Encode(again.data());
  VERBENA_CHECK(again == std::string(bytes, size)) << size;
}

}  // namespace
}  // namespace verbena::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::internal::Parse(reinterpret_cast<const char*>(data), size);
  return 0;
}
