#include "examples/common/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <cassert>
#include <tuple>

namespace examples {

Digest Sha256(std::string_view bytes) {
  static_assert(std::tuple_size_v<Digest> == SHA256_DIGEST_LENGTH);
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

class Sha256Stream::State {
 public:
  State() : context_(EVP_MD_CTX_new()) {
    [[maybe_unused]] const int done = EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
    assert(done == 1);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context_); }
  EVP_MD_CTX* context() const { return context_; }

 private:
  EVP_MD_CTX* const context_;
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {}
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Add(std::string_view bytes) {
  EVP_DigestUpdate(state_->context(), bytes.data(), bytes.size());
}

Digest Sha256Stream::Finish() {
  Digest digest;
  EVP_DigestFinal_ex(state_->context(), digest.data(), nullptr);
  return digest;
}

void AppendHex(const Digest& digest, std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}

}  // namespace examples
