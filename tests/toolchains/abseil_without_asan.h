// For builds under address sanitizer with an Abseil that was compiled without, as Debian's is: its
// hash maps would have other members, and poison memory that the compiled part uses. Compile with
// -include of this file, ahead of all headers.

#ifndef VERBENA_TESTS_TOOLCHAINS_ABSEIL_WITHOUT_ASAN_H_
#define VERBENA_TESTS_TOOLCHAINS_ABSEIL_WITHOUT_ASAN_H_

#include "absl/base/config.h"

#undef ABSL_HAVE_ADDRESS_SANITIZER

#endif  // VERBENA_TESTS_TOOLCHAINS_ABSEIL_WITHOUT_ASAN_H_
