// Messages of the preloaded library's connection manager: each that is accepted encodes to the
// bytes that it was read from.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/preload/cm_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace preload = verbena::internal::preload;
  std::array<uint8_t, preload::kCmMessageBytes> bytes = {};
  std::copy_n(data, std::min(size, bytes.size()), bytes.begin());
  const auto message = preload::DecodeCmMessage(bytes);
  if (message.ok()) VERBENA_CHECK(preload::EncodeCmMessage(*message) == bytes);
  return 0;
}
