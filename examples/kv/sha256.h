// SHA-256, as key of a line: a digest, and its hexadecimal form.
//
// Plain functions, any thread; they cannot fail.
//
//   std::string key;
//   kv::AppendHex(kv::Sha256("a line"), key);   // 64 characters

#ifndef VERBENA_EXAMPLES_KV_SHA256_H_
#define VERBENA_EXAMPLES_KV_SHA256_H_

#include <array>
#include <string>
#include <string_view>

namespace kv {

using Digest = std::array<unsigned char, 32>;

Digest Sha256(std::string_view bytes);

// Lower case, as sha256sum prints it.
void AppendHex(const Digest& digest, std::string& text);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_SHA256_H_
