// A tree comes back as it was stored: each file has its place, and each piece holds every byte
// once. An index or a header that we did not write is refused.

#include "examples/block_store/tree.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/tree.pb.h"
#include "examples/common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace block_store {
namespace tree_test {

using absl::StatusCode;
using testing::HasSubstr;

Tree TreeOf(const std::vector<uint64_t>& sizes) {
  Tree tree;
  for (const uint64_t bytes : sizes) {
    FileEntry file{.path = "f" + std::to_string(tree.files.size()), .mode = 0644, .bytes = bytes};
    file.sha256 = examples::Sha256(file.path);
    tree.files.push_back(std::move(file));
  }
  tree.Layout();
  return tree;
}

// --- Places --------------------------------------------------------------------------------------

TEST(TreeTest, EachFileBeginsAtABlockBehindTheOneBefore) {
  const Tree tree = TreeOf({1, 0, 4096, 4097, 5});
  EXPECT_EQ(tree.files[0].offset, 1 * kBlockBytes);
  EXPECT_EQ(tree.files[1].offset, 0u);
  EXPECT_EQ(tree.files[2].offset, 2 * kBlockBytes);
  EXPECT_EQ(tree.files[3].offset, 3 * kBlockBytes);
  EXPECT_EQ(tree.files[4].offset, 5 * kBlockBytes);
  EXPECT_EQ(tree.index_offset(), 6 * kBlockBytes);
  EXPECT_EQ(tree.bytes(), 1 + 4096 + 4097 + 5u);
}

// Every byte of every file is in one piece, and pieces follow each other.
void CheckPieces(const Tree& tree, uint64_t max_bytes) {
  std::vector<uint64_t> seen(tree.files.size());
  uint64_t next = kBlockBytes;
  for (const Piece& piece : tree.Pieces(max_bytes)) {
    ASSERT_EQ(piece.offset, next);
    ASSERT_GT(piece.bytes, 0u);
    ASSERT_LE(piece.bytes, max_bytes);
    ASSERT_EQ(piece.bytes % kBlockBytes, 0u);
    uint64_t at = 0;
    for (const FilePart& part : tree.PartsOf(piece)) {
      ASSERT_EQ(part.at, at);
      ASSERT_EQ(part.file_offset, seen[part.file]);
      ASSERT_EQ(piece.offset + part.at, tree.files[part.file].offset + part.file_offset);
      seen[part.file] += part.bytes;
      at += RoundUpToBlocks(part.bytes);
    }
    ASSERT_EQ(at, piece.bytes);
    next += piece.bytes;
  }
  ASSERT_EQ(next, tree.index_offset());
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], tree.files[i].bytes) << i;
}

TEST(TreeTest, PiecesHoldEveryByteOnce) {
  const Tree tree =
      TreeOf({0, 1, 4096, 0, 4097, 100'000, 3, 65'536, 65'537, 8192, 0, 4096, 12'289, 1 << 20, 0});
  for (const uint64_t max_bytes : {1, 2, 3, 16, 17, 64, 1024}) {
    SCOPED_TRACE(max_bytes);
    CheckPieces(tree, max_bytes * kBlockBytes);
  }
}

TEST(TreeTest, SmallFilesShareAPieceAndALargeOneHasItsOwn) {
  const Tree tree = TreeOf({4096, 0, 4096, 3 * 4096, 4096});
  const std::vector<Piece> pieces = tree.Pieces(2 * kBlockBytes);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].files, 3u);
  EXPECT_EQ(pieces[1].first_file, 3u);
  EXPECT_EQ(pieces[2].first_file, 3u);
  EXPECT_EQ(pieces[2].file_offset, 2 * kBlockBytes);
  EXPECT_EQ(pieces[3].first_file, 4u) << "a small file is not put behind a part of a large one";
  EXPECT_TRUE(TreeOf({}).Pieces(4096).empty());
  EXPECT_TRUE(TreeOf({0, 0}).Pieces(4096).empty());
}

// --- The index -----------------------------------------------------------------------------------

TreeHeader HeaderOf(const Tree& tree, const std::string& index) {
  return {.index_offset = tree.index_offset(),
          .index_bytes = index.size(),
          .index_sha256 = examples::Sha256(index)};
}

TEST(TreeCodecTest, ATreeComesBackAsItWas) {
  Tree tree = TreeOf({10, 0, 5000});
  tree.directories = {{"d", 0755}, {"d/e", 0500}};
  tree.files[1].path = "d/e/\xff name\n";
  const std::string index = EncodeIndex(tree);
  const absl::StatusOr<Tree> decoded = DecodeIndex(index, HeaderOf(tree, index));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->files.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(decoded->files[i].path, tree.files[i].path);
    EXPECT_EQ(decoded->files[i].mode, tree.files[i].mode);
    EXPECT_EQ(decoded->files[i].bytes, tree.files[i].bytes);
    EXPECT_EQ(decoded->files[i].offset, tree.files[i].offset);
    EXPECT_EQ(decoded->files[i].sha256, tree.files[i].sha256);
  }
  ASSERT_EQ(decoded->directories.size(), 2u);
  EXPECT_EQ(decoded->directories[1].path, "d/e");
  EXPECT_EQ(decoded->directories[1].mode, 0500u);
}

TEST(TreeCodecTest, AnIndexThatIsNotWhatWasWrittenIsDataLoss) {
  const Tree tree = TreeOf({10});
  std::string index = EncodeIndex(tree);
  const TreeHeader header = HeaderOf(tree, index);
  index[3] ^= 1;
  EXPECT_EQ(DecodeIndex(index, header).status().code(), StatusCode::kDataLoss);
}

// Decodes an index with the right SHA-256, and something wrong with it.
absl::Status Decoded(const v1::TreeIndex& index, uint64_t index_offset) {
  const std::string bytes = index.SerializeAsString();
  return DecodeIndex(bytes, {.index_offset = index_offset,
                             .index_bytes = bytes.size(),
                             .index_sha256 = examples::Sha256(bytes)})
      .status();
}

v1::TreeIndex IndexOf(const Tree& tree) {
  v1::TreeIndex index;
  EXPECT_TRUE(index.ParseFromString(EncodeIndex(tree)));
  return index;
}

TEST(TreeCodecTest, PathsThatLeadElsewhereAreRefused) {
  const Tree tree = TreeOf({10});
  ASSERT_TRUE(Decoded(IndexOf(tree), tree.index_offset()).ok());
  for (const std::string& path :
       {std::string(), std::string("/etc/passwd"), std::string(".."), std::string("../x"),
        std::string("d/../../x"), std::string("d//x"), std::string("d/"), std::string("./x"),
        std::string("x\0y", 3), std::string("missing/x")}) {
    v1::TreeIndex index = IndexOf(tree);
    v1::TreeDirectory& directory = *index.add_directories();
    directory.set_path("d");
    index.mutable_files(0)->set_path(path);
    EXPECT_EQ(Decoded(index, tree.index_offset()).code(), StatusCode::kInvalidArgument) << path;
    if (path == "missing/x") continue;
    index = IndexOf(tree);
    index.add_directories()->set_path(path);
    EXPECT_EQ(Decoded(index, tree.index_offset()).code(), StatusCode::kInvalidArgument) << path;
  }
}

TEST(TreeCodecTest, APathThatIsThereTwiceOrIsAFileAndADirectoryIsRefused) {
  const Tree tree = TreeOf({0, 0});
  v1::TreeIndex twice = IndexOf(tree);
  twice.mutable_files(1)->set_path("f0");
  EXPECT_THAT(Decoded(twice, tree.index_offset()).ToString(), HasSubstr("twice"));
  v1::TreeIndex below = IndexOf(tree);
  below.mutable_files(1)->set_path("f0/x");
  EXPECT_THAT(Decoded(below, tree.index_offset()).ToString(), HasSubstr("no directory"));
}

TEST(TreeCodecTest, PlacesThatOverlapOrPassTheEndAreRefused) {
  const Tree tree = TreeOf({10, 20});
  struct Case {
    uint64_t offset;
    uint64_t bytes;
  };
  for (const Case& bad :
       {Case{kBlockBytes, 20}, Case{3 * kBlockBytes, 20}, Case{2 * kBlockBytes, 0},
        Case{2 * kBlockBytes, 4097}, Case{2 * kBlockBytes, ~uint64_t{0}},
        Case{2 * kBlockBytes, ~uint64_t{0} - 4095}, Case{0, 20}}) {
    v1::TreeIndex index = IndexOf(tree);
    index.mutable_files(1)->set_offset(bad.offset);
    index.mutable_files(1)->set_bytes(bad.bytes);
    EXPECT_EQ(Decoded(index, tree.index_offset()).code(), StatusCode::kInvalidArgument)
        << bad.offset << " " << bad.bytes;
  }
  EXPECT_THAT(Decoded(IndexOf(tree), tree.index_offset() + kBlockBytes).ToString(),
              HasSubstr("gap"));
}

TEST(TreeCodecTest, ADigestOfAnotherLengthIsRefused) {
  const Tree tree = TreeOf({10});
  v1::TreeIndex index = IndexOf(tree);
  index.mutable_files(0)->set_sha256("short");
  EXPECT_EQ(Decoded(index, tree.index_offset()).code(), StatusCode::kInvalidArgument);
}

// --- The header ----------------------------------------------------------------------------------

TEST(TreeCodecTest, AHeaderComesBackAsItWas) {
  const TreeHeader header{.index_offset = 5 * kBlockBytes,
                          .index_bytes = 1000,
                          .index_sha256 = examples::Sha256("index")};
  const std::string block = EncodeHeader(header);
  ASSERT_EQ(block.size(), kBlockBytes);
  const absl::StatusOr<TreeHeader> decoded = DecodeHeader(block, 6 * kBlockBytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->index_offset, header.index_offset);
  EXPECT_EQ(decoded->index_bytes, header.index_bytes);
  EXPECT_EQ(decoded->index_sha256, header.index_sha256);
}

TEST(TreeCodecTest, ABlockThatIsNoHeaderIsNoTree) {
  for (const std::string& block : {std::string(kBlockBytes, '\0'), std::string(kBlockBytes, 'v'),
                                   std::string("verbena"), EncodeUnfinishedHeader()}) {
    EXPECT_EQ(DecodeHeader(block, 1 << 20).status().code(), StatusCode::kNotFound);
  }
  EXPECT_TRUE(IsUnfinished(EncodeUnfinishedHeader()));
  EXPECT_FALSE(IsUnfinished(std::string(kBlockBytes, '\0')));
  EXPECT_FALSE(IsUnfinished(EncodeHeader({})));
}

TEST(TreeCodecTest, AHeaderThatDoesNotFitItsVolumeIsRefused) {
  constexpr uint64_t kVolume = 6 * kBlockBytes;
  for (const TreeHeader& header :
       {TreeHeader{.index_offset = 6 * kBlockBytes, .index_bytes = 1},
        TreeHeader{.index_offset = 5 * kBlockBytes, .index_bytes = 4097},
        TreeHeader{.index_offset = 0, .index_bytes = 1},
        TreeHeader{.index_offset = 5 * kBlockBytes + 1, .index_bytes = 1},
        TreeHeader{.index_offset = ~uint64_t{0} - 4095, .index_bytes = 1},
        TreeHeader{.index_offset = kBlockBytes, .index_bytes = ~uint64_t{0}},
        TreeHeader{.index_offset = kBlockBytes, .index_bytes = uint64_t{1} << 40}}) {
    EXPECT_EQ(DecodeHeader(EncodeHeader(header), kVolume).status().code(),
              StatusCode::kInvalidArgument)
        << header.index_offset << " " << header.index_bytes;
  }
}

TEST(TreeCodecTest, AHeaderWhoseLengthLiesIsRefused) {
  std::string block = EncodeHeader({.index_offset = kBlockBytes});
  for (const int byte : {16, 17, 19}) {
    std::string bad = block;
    bad[byte] = '\xff';
    EXPECT_EQ(DecodeHeader(bad, 1 << 20).status().code(), StatusCode::kInvalidArgument) << byte;
  }
}

}  // namespace tree_test
}  // namespace block_store
