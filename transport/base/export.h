// VERBENA_EXPORT, the mark of each name that programs link from libverbena.so.
//
// The shared library is compiled with -fvisibility=hidden: names that no program needs neither
// clash with those of a program nor cost the loader time. Programs still need functions of its
// source files. They call them through the headers that they include, through the headers that
// these include, and through generated code. The libraries of etcd, of the admin server and of
// testing do the same. The mark keeps such a name visible. In an archive it means nothing
// (VERBENA_STATIC, which the CMake target of an archive defines): a library of a program's own that
// links it hides all of Verbena, so that two such libraries in one process do not mix.
//
// Each class and each function of such a header, public or internal, has the mark if a source file
// defines the function or a member of the class:
//
//   class VERBENA_EXPORT Channel {                  // members, vtable and type information
//   class [[nodiscard]] VERBENA_EXPORT QuotaHold {  // after other attributes
//   class VERBENA_EXPORT Metadata::Iterator {       // a nested class has a mark of its own
//   VERBENA_EXPORT Outcome OutcomeOf(const absl::Status& status);
//
// Templates, and classes whose members are all in the header, have no mark: each library compiles a
// copy. So a header must not define a variable, not even in an inline function: each library could
// have a copy of it, too. Variables are in source files. tests/repository/exports_test.py holds
// these rules. Beyond them, SoftDevice and OpenDevice() have the mark, so that
// ./dev bench --installed can count the instructions of an installed library.

#ifndef VERBENA_TRANSPORT_BASE_EXPORT_H_
#define VERBENA_TRANSPORT_BASE_EXPORT_H_

#include "verbena/transport/base/compiler.h"  // IWYU pragma: export

#ifdef VERBENA_STATIC
#define VERBENA_EXPORT
#else
// gcc does not accept __attribute__ beside attributes in brackets.
#define VERBENA_EXPORT [[gnu::visibility("default")]]
#endif

#endif  // VERBENA_TRANSPORT_BASE_EXPORT_H_
