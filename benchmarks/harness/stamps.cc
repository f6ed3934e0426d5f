#include "verbena/benchmarks/harness/stamps.h"

#include <cstring>

namespace verbena::benchmarks {
namespace {

constexpr size_t kPage = 4096;

uint64_t WordAt(uint64_t number, size_t offset) {
  return (number + 1) * 0x9e3779b97f4a7c15 + offset * 0xd6e8feb86659fd93;
}

// The distance between two stamps. The last word is a stamp besides.
size_t Stride(Stamps which, size_t bytes) {
  if (which == Stamps::kEnds) return bytes;
  return which == Stamps::kPages ? kPage : sizeof(uint64_t);
}

}  // namespace

void WriteStamps(char* data, size_t bytes, uint64_t number, Stamps which) {
  const auto write = [&](size_t offset) {
    const uint64_t word = WordAt(number, offset);
    std::memcpy(data + offset, &word, sizeof(word));
  };
  for (size_t offset = 0; offset < bytes; offset += Stride(which, bytes)) write(offset);
  write(bytes - sizeof(uint64_t));
}

bool HasStamps(const char* data, size_t bytes, uint64_t number, Stamps which) {
  const auto good = [&](size_t offset) {
    uint64_t word = 0;
    std::memcpy(&word, data + offset, sizeof(word));
    return word == WordAt(number, offset);
  };
  // No early return: this way the loads do not wait for one another.
  bool all = good(bytes - sizeof(uint64_t));
  for (size_t offset = 0; offset < bytes; offset += Stride(which, bytes)) all &= good(offset);
  return all;
}

}  // namespace verbena::benchmarks
