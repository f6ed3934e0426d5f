// FakeRoot: a directory laid out as the /proc, /sys and /dev of a machine that a test invents.

#ifndef VERBENA_TESTS_SUPPORT_FAKE_ROOT_H_
#define VERBENA_TESTS_SUPPORT_FAKE_ROOT_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace verbena {

class FakeRoot {
 public:
  FakeRoot() : path_(::testing::TempDir() + "/root.XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  // `name` is relative: "proc/sys/kernel/osrelease".
  void Write(const std::string& name, const std::string& content) {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_FAKE_ROOT_H_
