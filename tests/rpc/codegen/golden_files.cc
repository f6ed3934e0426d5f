#include "tests/rpc/codegen/golden_files.h"

#include <fstream>
#include <iterator>

namespace verbena::testing {

namespace fs = std::filesystem;

std::map<std::string, std::string> GeneratedFiles() {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kGoldenFolder)) {
    std::string name = entry.path().filename();
    if (name.ends_with(".verbena.pb.h") || name.ends_with(".verbena.pb.cc")) {
      files[name] = ReadFile(entry.path());
    }
  }
  return files;
}

fs::path GoldenPath(const fs::path& folder, const std::string& generated) {
  return folder / "testdata" / (generated + ".golden");
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace verbena::testing
