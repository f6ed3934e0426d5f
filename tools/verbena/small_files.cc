#include "tools/verbena/small_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_split.h"

namespace verbena::doctor {

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::string text(size_t{64} << 10, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::string text = ReadSmallFile(path);
  char* end = nullptr;
  errno = 0;
  const uint64_t number = std::strtoull(text.c_str(), &end, 0);
  if (end == text.c_str() || errno != 0) return std::nullopt;
  return number;
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace verbena::doctor
