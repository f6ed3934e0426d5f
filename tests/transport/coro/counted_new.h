// Counts calls of operator new and delete in this process, for tests of what allocates.
//
// Linking the library replaces the global operators.

#ifndef VERBENA_TESTS_TRANSPORT_CORO_COUNTED_NEW_H_
#define VERBENA_TESTS_TRANSPORT_CORO_COUNTED_NEW_H_

#include <cstddef>

namespace verbena {

size_t CountedNews();
size_t CountedDeletes();

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CORO_COUNTED_NEW_H_
