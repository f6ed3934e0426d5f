#include "verbena/transport/preload/real_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace verbena::internal::preload {

void* RealFunction(const char* name) {
  static void* const library = []() -> void* {
    const char* only = std::getenv("VERBENA_SOFT_ONLY");
    if (only == nullptr || std::strcmp(only, "0") != 0) return nullptr;
    return dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
  }();
  return library != nullptr ? dlsym(library, name) : nullptr;
}

}  // namespace verbena::internal::preload
