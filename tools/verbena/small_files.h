// Readers of small files in /proc and /sys, and of the names in a directory.

#ifndef VERBENA_TOOLS_VERBENA_SMALL_FILES_H_
#define VERBENA_TOOLS_VERBENA_SMALL_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace verbena::doctor {

// The whole file, at most 64 KiB of it, without white space at its end; empty if it cannot be read.
std::string ReadSmallFile(const std::string& path);

// The number at the beginning of a file, decimal or with 0x; nullopt if there is none.
std::optional<uint64_t> ReadNumber(const std::string& path);

std::vector<std::string> Lines(const std::string& text);

// Names in a directory, sorted; empty if it cannot be read.
std::vector<std::string> Names(const std::string& directory);

}  // namespace verbena::doctor

#endif  // VERBENA_TOOLS_VERBENA_SMALL_FILES_H_
