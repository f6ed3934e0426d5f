// WalkTree finds each file and directory in order and names the links and pipes that it skips.
// MakeTree replaces nothing and writes through no symbolic link.

#include "examples/block_store/local_tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace block_store {
namespace local_tree_test {

using testing::HasSubstr;

class LocalTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "/verbena_tree_XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    top_ = directory;
  }
  void TearDown() override { std::filesystem::remove_all(top_); }
  std::string Path(const std::string& name) const { return top_ / name; }
  void MakeFile(const std::string& name, const std::string& contents) const {
    std::ofstream(Path(name), std::ios::binary) << contents;
  }
  std::filesystem::path top_;
};

TEST_F(LocalTreeTest, FilesAndDirectoriesAreFoundInOrderAndLinksAreNamed) {
  std::filesystem::create_directories(Path("d/empty"));
  MakeFile("d/b", "12345");
  MakeFile("a", "");
  ASSERT_EQ(chmod(Path("a").c_str(), 0640), 0);
  ASSERT_EQ(symlink("a", Path("link").c_str()), 0);
  ASSERT_EQ(symlink("/", Path("d/root").c_str()), 0);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const absl::StatusOr<LocalTree> local = WalkTree(top_);
  ASSERT_TRUE(local.ok()) << local.status();
  ASSERT_EQ(local->tree.files.size(), 2u);
  EXPECT_EQ(local->tree.files[0].path, "a");
  EXPECT_EQ(local->tree.files[0].mode, 0640u);
  EXPECT_EQ(local->tree.files[1].path, "d/b");
  EXPECT_EQ(local->tree.files[1].bytes, 5u);
  ASSERT_EQ(local->tree.directories.size(), 2u);
  EXPECT_EQ(local->tree.directories[0].path, "d");
  EXPECT_EQ(local->tree.directories[1].path, "d/empty");
  ASSERT_EQ(local->skipped.size(), 3u);
  EXPECT_EQ(local->skipped[0].path, Path("d/root"));
  EXPECT_STREQ(local->skipped[0].what, "symbolic link");
  EXPECT_STREQ(local->skipped[2].what, "pipe");
}

TEST_F(LocalTreeTest, AFileIsATreeOfOne) {
  MakeFile("a", "123");
  const absl::StatusOr<LocalTree> local = WalkTree(Path("a"));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->root, top_);
  ASSERT_EQ(local->tree.files.size(), 1u);
  EXPECT_EQ(local->tree.files[0].path, "a");
}

TEST_F(LocalTreeTest, AMissingDirectoryIsNamed) {
  const absl::Status status = WalkTree(Path("none")).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(status.ToString(), HasSubstr(Path("none")));
}

TEST_F(LocalTreeTest, ATreeIsMadeAndReplacesNothing) {
  Tree tree;
  tree.directories = {{"d", 0500}, {"d/e", 0755}};
  tree.files = {{.path = "d/e/f", .mode = 0444}, {.path = "g", .mode = 0600}};
  ASSERT_TRUE(MakeTree(Path("to"), tree).ok());
  ASSERT_TRUE(SetModes(Path("to"), tree).ok());
  struct stat about;
  ASSERT_EQ(stat(Path("to/d/e/f").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0444u);
  ASSERT_EQ(stat(Path("to/d").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0500u);
  const absl::Status again = MakeTree(Path("to"), tree);
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  std::filesystem::permissions(Path("to/d"), std::filesystem::perms::owner_all);
}

TEST_F(LocalTreeTest, AFileIsNotMadeThroughALink) {
  MakeFile("outside", "precious");
  std::filesystem::create_directory(Path("to"));
  ASSERT_EQ(symlink(Path("outside").c_str(), Path("to/f").c_str()), 0);
  Tree tree;
  tree.files = {{.path = "f", .mode = 0600}};
  EXPECT_TRUE(absl::IsAlreadyExists(MakeTree(Path("to"), tree)));
  std::string text;
  std::ifstream(Path("outside")) >> text;
  EXPECT_EQ(text, "precious");
}

}  // namespace local_tree_test
}  // namespace block_store
