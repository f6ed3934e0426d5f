// The files of a store on RocksDB, for tests that copy and damage them.

#ifndef VERBENA_TESTS_EXAMPLES_KV_STORE_FILES_H_
#define VERBENA_TESTS_EXAMPLES_KV_STORE_FILES_H_

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace kv {

inline std::string BytesOf(const std::string& file) {
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

inline void SetBytes(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// The files of a store, which may be open: RocksDB removes files that it needs no more.
inline void CopyStore(const std::string& from, const std::string& to) {
  std::filesystem::create_directory(to);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::error_code removed;
    std::filesystem::copy_file(entry.path(), std::filesystem::path(to) / entry.path().filename(),
                               removed);
  }
}

}  // namespace kv

#endif  // VERBENA_TESTS_EXAMPLES_KV_STORE_FILES_H_
