// Stamps: the content of a benchmark's payloads, by which a payload that did not arrive is noticed.
//
// A stamp is an 8-byte word that follows from the payload's number and the word's place. Sizes are
// multiples of 8.

#ifndef VERBENA_BENCHMARKS_HARNESS_STAMPS_H_
#define VERBENA_BENCHMARKS_HARNESS_STAMPS_H_

#include <cstddef>
#include <cstdint>

namespace verbena::benchmarks {

enum class Stamps {
  kPages,     // the first word of each 4 KiB page, and the last word: cheap, for timed slices
  kAllWords,  // every word: for a pass that verifies
  kEnds,      // the first and the last word: if even a look at each page would delay other work
};

void WriteStamps(char* data, size_t bytes, uint64_t number, Stamps which);
// False if a word is not what WriteStamps wrote.
bool HasStamps(const char* data, size_t bytes, uint64_t number, Stamps which);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_STAMPS_H_
