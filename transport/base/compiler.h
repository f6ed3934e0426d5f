// What Verbena asks of a compiler. One that lacks something ends here, with one error in words.
//
//   asked              why
//   C++20              coroutines and concepts are in every chapter
//   exceptions         what a coroutine throws comes out of the co_await of its Task
//   RTTI               protobuf asks messages for their type: without, the first stream crashes
//   libstdc++          what Verbena, Abseil and protobuf are built with: libc++ does not link
//   clang 17, gcc 13   older gcc miscompiles coroutines (it destroys temporaries in a co_await
//                      operand twice). Those that have run this version: clang 19, gcc 13 and 14
//
// clang is also asked for -fcoro-aligned-allocation, of which no macro tells: without it no
// coroutine that returns a Task compiles (transport/coro/task.h).
//
// Every public header includes this one ahead of all that would fail (through export.h, or by
// itself before <coroutine>). tests/repository/compiler_test.py holds that each case gives one
// error, and that it is the first.
//
// VERBENA_SYNTAX_ONLY has an older gcc parse the headers. What it compiles must not run.

#ifndef VERBENA_TRANSPORT_BASE_COMPILER_H_
#define VERBENA_TRANSPORT_BASE_COMPILER_H_

// After an #error a compiler goes on, and these two cases give many errors more. A file that is not
// there ends the compilation: its name is the error.
#if __cplusplus < 202002L
#define VERBENA_REFUSAL "Verbena needs C++20: compile with -std=c++20 or newer"
#include VERBENA_REFUSAL
#elif !defined(__cpp_exceptions)
#define VERBENA_REFUSAL "Verbena needs exceptions: compile without -fno-exceptions"
#include VERBENA_REFUSAL
#endif

#include <version>  // which standard library this is

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13 && !defined(VERBENA_SYNTAX_ONLY)
#error "Verbena needs gcc 13 or newer (13 and 14 have run 0.1): older gcc miscompiles coroutines."
#elif defined(__clang__) && __clang_major__ < 17
#error "Verbena needs clang 17 or newer (19 has run 0.1)."
#elif !defined(__cpp_rtti) && !defined(__GXX_RTTI)
#error "Verbena needs run-time type information: compile without -fno-rtti."
#elif defined(_LIBCPP_VERSION)
#error "Verbena needs libstdc++: compile without -stdlib=libc++."
#endif

#endif  // VERBENA_TRANSPORT_BASE_COMPILER_H_
