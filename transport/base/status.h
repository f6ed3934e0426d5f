// Macros that hand an error on: to return a Status that is not OK, or unwrap a StatusOr.
//
// The plain ones are for functions that return absl::Status or absl::StatusOr, those with CO for
// coroutines; the expression may hold a co_await.
//
//   VERBENA_CO_RETURN_IF_ERROR(co_await queue.Push(std::move(block)));
//   VERBENA_CO_ASSIGN_OR_RETURN(Block block, co_await queue.Pop());

#ifndef VERBENA_TRANSPORT_BASE_STATUS_H_
#define VERBENA_TRANSPORT_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// `expression` is an absl::Status.
#define VERBENA_RETURN_IF_ERROR(...) VERBENA_INTERNAL_IF_ERROR(return, __VA_ARGS__)
#define VERBENA_CO_RETURN_IF_ERROR(...) VERBENA_INTERNAL_IF_ERROR(co_return, __VA_ARGS__)

// The expression is an absl::StatusOr; `lhs` declares a variable or names one, and holds no comma
// outside parentheses. Expands to several statements: not for the body of an unbraced if.
#define VERBENA_ASSIGN_OR_RETURN(lhs, ...)                                                    \
  VERBENA_INTERNAL_ASSIGN(return, VERBENA_INTERNAL_CONCAT(verbena_status_or_, __LINE__), lhs, \
                                __VA_ARGS__)
#define VERBENA_CO_ASSIGN_OR_RETURN(lhs, ...)                                                    \
  VERBENA_INTERNAL_ASSIGN(co_return, VERBENA_INTERNAL_CONCAT(verbena_status_or_, __LINE__), lhs, \
                          __VA_ARGS__)

#define VERBENA_INTERNAL_IF_ERROR(return_keyword, ...)                       \
  do {                                                                       \
    if (absl::Status verbena_status = (__VA_ARGS__); !verbena_status.ok()) { \
      return_keyword verbena_status;                                         \
    }                                                                        \
  } while (false)

#define VERBENA_INTERNAL_ASSIGN(return_keyword, status_or, lhs, ...) \
  auto status_or = (__VA_ARGS__);                                    \
  if (!status_or.ok()) return_keyword std::move(status_or).status(); \
  lhs = *std::move(status_or)

#define VERBENA_INTERNAL_CONCAT(a, b) VERBENA_INTERNAL_CONCAT_EXPANDED(a, b)
#define VERBENA_INTERNAL_CONCAT_EXPANDED(a, b) a##b

#endif  // VERBENA_TRANSPORT_BASE_STATUS_H_
