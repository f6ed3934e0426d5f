// Amounts as people read them.
//
// Pure functions; any thread.

#ifndef VERBENA_EXAMPLES_COMMON_AMOUNTS_H_
#define VERBENA_EXAMPLES_COMMON_AMOUNTS_H_

#include <cstdint>
#include <string>

namespace examples {

// 1234567 as "1,234,567".
std::string Grouped(uint64_t number);

// 1234567 as "1.2 MB".
std::string Sized(uint64_t bytes);

// 1 and "line" as "1 line", 2 as "2 lines".
std::string Counted(uint64_t count, const char* noun);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_AMOUNTS_H_
