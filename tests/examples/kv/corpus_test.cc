// A corpus keeps every byte of every line, under keys that the store takes, equal for equal lines.
// Files that cannot be read or exceed the bound are refused by name.

#include "examples/kv/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/sha256.h"
#include "examples/kv/limits.h"

namespace kv {
namespace corpus_test {

using ::examples::AppendHex;
using ::examples::Sha256;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kPlenty = 16 << 20;

std::string FileWith(const std::string& name, const std::string& content) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

Corpus LoadText(const std::string& content) {
  absl::StatusOr<Corpus> corpus = Corpus::Load({FileWith("text", content)}, kPlenty);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  return *std::move(corpus);
}

std::vector<std::string> LinesOf(const std::string& content) {
  const Corpus corpus = LoadText(content);
  std::vector<std::string> lines;
  for (const Piece& piece : corpus.pieces()) lines.emplace_back(piece.bytes);
  return lines;
}

std::string KeyOf(const Piece& piece) {
  std::string key;
  piece.AppendKey(key);
  return key;
}

TEST(CorpusTest, LinesEndAtNewlinesAndAtTheEndOfTheFile) {
  EXPECT_THAT(LinesOf(""), IsEmpty());
  EXPECT_THAT(LinesOf("\n"), ElementsAre(""));
  EXPECT_THAT(LinesOf("a\nb\n"), ElementsAre("a", "b"));
  EXPECT_THAT(LinesOf("a\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(LinesOf(std::string("\0\xff\r\n\n\x80", 6)),
              ElementsAre(std::string("\0\xff\r", 3), "", "\x80"));
}

TEST(CorpusTest, ALineIsStoredUnderItsDigest) {
  const Corpus corpus = LoadText("abc\n");
  ASSERT_EQ(corpus.pieces().size(), 1u);
  EXPECT_EQ(KeyOf(corpus.pieces()[0]),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(CorpusTest, TheLongestValueIsWholeAndOneByteMoreMakesTwoParts) {
  const std::string whole(kMaxPieceBytes, 'x');
  const Corpus one = LoadText(whole + "\n");
  EXPECT_EQ(one.pieces().size(), 1u);
  EXPECT_EQ(one.long_lines(), 0u);

  const Corpus two = LoadText(whole + "y\n");
  ASSERT_EQ(two.pieces().size(), 2u);
  EXPECT_EQ(two.lines(), 1u);
  EXPECT_EQ(two.long_lines(), 1u);
  EXPECT_EQ(two.parts(), 2u);
  EXPECT_EQ(two.pieces()[0].bytes, whole);
  EXPECT_EQ(two.pieces()[1].bytes, "y");
  std::string digest;
  AppendHex(Sha256(whole + "y"), digest);
  EXPECT_EQ(KeyOf(two.pieces()[0]), digest + "#0");
  EXPECT_EQ(KeyOf(two.pieces()[1]), digest + "#1");
}

TEST(CorpusTest, TheLongestKeyIsOneThatTheStoreTakes) {
  Piece piece;
  piece.part = Piece::kWholeLine - 1;
  EXPECT_LE(KeyOf(piece).size(), kMaxKeyBytes);
  EXPECT_LE(kMaxPieceBytes, kMaxValueBytes);
}

TEST(CorpusTest, EqualLinesShareTheirKeys) {
  const std::string long_line(2 * kMaxPieceBytes, 'x');
  const Corpus corpus = LoadText("a\nb\na\n" + long_line + "\n" + long_line + "\n");
  EXPECT_EQ(corpus.lines(), 5u);
  EXPECT_EQ(corpus.pieces().size(), 7u);
  EXPECT_EQ(corpus.distinct_keys(), 4u);
  EXPECT_EQ(corpus.bytes(), 3 + 4 * kMaxPieceBytes);
}

TEST(CorpusTest, AFileThatCannotBeReadIsNamed) {
  const std::string missing = testing::TempDir() + "/no such file";
  const absl::Status not_there = Corpus::Load({missing}, kPlenty).status();
  EXPECT_TRUE(absl::IsNotFound(not_there));
  EXPECT_THAT(std::string(not_there.message()), HasSubstr(missing));

  const absl::Status directory = Corpus::Load({testing::TempDir()}, kPlenty).status();
  EXPECT_FALSE(directory.ok());
  EXPECT_THAT(std::string(directory.message()), HasSubstr("directory"));
}

TEST(CorpusTest, FilesTogetherAreBoundedAlsoOnesWithoutAnEnd) {
  const std::string ten = FileWith("ten", "123456789\n");
  EXPECT_TRUE(Corpus::Load({ten, ten}, 20).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Corpus::Load({ten, ten}, 19).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Corpus::Load({"/dev/zero"}, kPlenty).status()));
}

TEST(CorpusTest, AFileWhoseSizeIsNotKnownBeforeIsReadToItsEnd) {
  const absl::StatusOr<Corpus> corpus = Corpus::Load({"/proc/self/status"}, kPlenty);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_GT(corpus->lines(), 10u);
}

}  // namespace corpus_test
}  // namespace kv
