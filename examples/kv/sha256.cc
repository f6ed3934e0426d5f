#include "examples/kv/sha256.h"

#include <openssl/sha.h>

#include <tuple>

namespace kv {

Digest Sha256(std::string_view bytes) {
  static_assert(std::tuple_size_v<Digest> == SHA256_DIGEST_LENGTH);
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

void AppendHex(const Digest& digest, std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}

}  // namespace kv
