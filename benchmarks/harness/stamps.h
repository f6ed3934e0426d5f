// Stamps: what a benchmark's payload holds, so that no payload is counted that did not arrive.
//
// Each 8-byte word of a payload follows from the payload's number and the word's place. All of them
// are written and compared in a pass that verifies; in timed slices, to cost little, only the first
// word of each 4 KiB page and the last word of all; or, if nothing beside may wait for a thread
// that looks at thousands of pages, the first word and the last one.
//
// Sizes are multiples of 8.

#ifndef VERBENA_BENCHMARKS_HARNESS_STAMPS_H_
#define VERBENA_BENCHMARKS_HARNESS_STAMPS_H_

#include <cstddef>
#include <cstdint>

namespace verbena::benchmarks {

enum class Stamps { kPages, kAllWords, kEnds };

void WriteStamps(char* data, size_t bytes, uint64_t number, Stamps which);
// False if a word is not what WriteStamps wrote.
bool HasStamps(const char* data, size_t bytes, uint64_t number, Stamps which);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_STAMPS_H_
