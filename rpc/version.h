// The version of Verbena that these headers belong to.
//
// These are macros because generated code compares them in an #if: protoc-gen-verbena writes its
// own version into each header that it generates, and such a header does not compile with another
// Verbena. CHANGELOG.md says what changed from version to version.
//
//   #if VERBENA_VERSION >= 200  // 0.2.0

#ifndef VERBENA_RPC_VERSION_H_
#define VERBENA_RPC_VERSION_H_

// Below 1.0.0, each minor version may change the API and the wire.
#define VERBENA_VERSION_MAJOR 0
#define VERBENA_VERSION_MINOR 1
#define VERBENA_VERSION_PATCH 0

// Minor and patch are below 100.
#define VERBENA_VERSION \
  (VERBENA_VERSION_MAJOR * 10000 + VERBENA_VERSION_MINOR * 100 + VERBENA_VERSION_PATCH)

#endif  // VERBENA_RPC_VERSION_H_
