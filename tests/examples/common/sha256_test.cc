// Digests match the example of the standard, and a stream in parts has the digest of the whole.

#include "examples/common/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace examples {
namespace sha256_test {

std::string Hex(const Digest& digest) {
  std::string text;
  AppendHex(digest, text);
  return text;
}

constexpr char kOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256Test, DigestsAreThoseOfTheStandard) { EXPECT_EQ(Hex(Sha256("abc")), kOfAbc); }

TEST(Sha256Test, AStreamsDigestIsThatOfItsWhole) {
  Sha256Stream stream;
  for (const char* part : {"a", "", "bc"}) stream.Add(part);
  EXPECT_EQ(Hex(stream.Finish()), kOfAbc);
  EXPECT_EQ(Sha256Stream().Finish(), Sha256(""));
}

}  // namespace sha256_test
}  // namespace examples
