#include "verbena/transport/connect/runtime_id.h"

#include <sys/random.h>

#include <cerrno>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

RuntimeId RuntimeId::Random() {
  RuntimeId id;
  ssize_t got = 0;
  do {
    got = getrandom(id.bytes.data(), id.bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  // The kernel never cuts a request of up to 256 bytes short (getrandom(2)).
  VERBENA_CHECK(got == static_cast<ssize_t>(kBytes)) << "getrandom: " << got << ", errno " << errno;
  return id;
}

std::string RuntimeId::ToString() const {
  std::string text;
  for (uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace verbena::internal
