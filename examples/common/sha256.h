// SHA-256: a digest, of bytes at once or as they come, and its hexadecimal form.
//
// None of this can fail. A stream is used by one thread at a time.
//
//   std::string key;
//   AppendHex(Sha256("a line"), key);   // 64 characters

#ifndef VERBENA_EXAMPLES_COMMON_SHA256_H_
#define VERBENA_EXAMPLES_COMMON_SHA256_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace examples {

using Digest = std::array<unsigned char, 32>;

Digest Sha256(std::string_view bytes);

class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();

  void Add(std::string_view bytes);
  // The digest of everything that was added; nothing may be added after that.
  Digest Finish();

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Lower case, as sha256sum prints it.
void AppendHex(const Digest& digest, std::string& text);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_SHA256_H_
