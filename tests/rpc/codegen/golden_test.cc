// Generated code equals the golden files byte for byte, and each .proto of testdata has exactly its
// golden files.

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/codegen/golden_files.h"

namespace verbena::testing {
namespace {

namespace fs = std::filesystem;

TEST(GoldenTest, GeneratedCodeIsWhatTheGoldenFilesSay) {
  std::map<std::string, std::string> generated = GeneratedFiles();
  ASSERT_FALSE(generated.empty());
  for (const auto& [name, text] : generated) {
    EXPECT_EQ(ReadFile(GoldenPath(kGoldenFolder, name)), text)
        << name << " changed; if it should, run ./dev golden";
  }
}

TEST(GoldenTest, EveryProtoOfTestdataHasItsGoldenFilesAndNoGoldenFileIsLeftOver) {
  std::map<std::string, std::string> generated = GeneratedFiles();
  std::set<std::string> expected, found;
  for (const auto& [name, text] : generated) expected.insert(name + ".golden");
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(kGoldenFolder) / "testdata")) {
    std::string name = entry.path().filename();
    if (entry.path().extension() == ".golden") found.insert(name);
    if (entry.path().extension() == ".proto") {
      EXPECT_TRUE(generated.contains(entry.path().stem().string() + ".verbena.pb.h"))
          << name << " has no golden_proto() in BUILD";
    }
  }
  EXPECT_THAT(found, ::testing::ContainerEq(expected));
}

}  // namespace
}  // namespace verbena::testing
