// Rewrites the golden files of a workspace: update_golden <top of the workspace>.

#include <filesystem>
#include <fstream>
#include <string>

#include "fmt/format.h"
#include "tests/rpc/codegen/golden_files.h"

namespace {

namespace fs = std::filesystem;

bool Write(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) fmt::print(stderr, "update_golden: cannot write {}\n", path.string());
  return static_cast<bool>(out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: update_golden <top of the workspace>\n");
    return 2;
  }
  const fs::path folder = fs::path(argv[1]) / verbena::testing::kGoldenFolder;
  std::error_code error;
  if (!fs::is_directory(folder / "testdata", error)) {
    fmt::print(stderr, "update_golden: {} has no testdata\n", folder.string());
    return 1;
  }
  const auto generated = verbena::testing::GeneratedFiles();
  if (generated.empty()) {
    fmt::print(stderr, "update_golden: no generated files below {}; run it through Bazel\n",
               fs::current_path().string());
    return 1;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "testdata")) {
    if (entry.path().extension() == ".golden") fs::remove(entry.path());
  }
  bool written = true;
  for (const auto& [name, text] : generated) {
    written &= Write(verbena::testing::GoldenPath(folder, name), text);
  }
  return written ? 0 : 1;
}
