// The libibverbs that this library stands before.
//
// With VERBENA_SOFT_ONLY=0 the program also sees the machine's own devices. Their objects are not
// in the registry, and calls on them go to libibverbs. Otherwise such calls have no object, and
// fail with EINVAL.

#ifndef VERBENA_TRANSPORT_PRELOAD_REAL_LIBRARY_H_
#define VERBENA_TRANSPORT_PRELOAD_REAL_LIBRARY_H_

#include <cerrno>
#include <type_traits>

namespace verbena::internal::preload {

// The function of that name, in its default version. Null if real devices are hidden.
void* RealFunction(const char* name);

// Calls libibverbs' `name`, of the type of `like`. Returns `otherwise`, and sets errno to EINVAL,
// if real devices are hidden.
//
//   return CallReal(&::ibv_alloc_pd, "ibv_alloc_pd", nullptr, context);
template <typename Result, typename... Parameters>
Result CallReal(Result (*like)(Parameters...), const char* name,
                std::type_identity_t<Result> otherwise,
                std::type_identity_t<Parameters>... arguments) {
  auto* function = reinterpret_cast<decltype(like)>(RealFunction(name));
  if (function != nullptr) return function(arguments...);
  errno = EINVAL;
  return otherwise;
}

// The same for functions that return nothing.
template <typename... Parameters>
void CallRealVoid(void (*like)(Parameters...), const char* name,
                  std::type_identity_t<Parameters>... arguments) {
  auto* function = reinterpret_cast<decltype(like)>(RealFunction(name));
  if (function != nullptr) function(arguments...);
}

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_REAL_LIBRARY_H_
