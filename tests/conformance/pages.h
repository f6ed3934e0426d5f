// Pages: zeroed memory for a registration, private to the process or a sealed memfd.
//
// Move-only; unmapped when destroyed.

#ifndef VERBENA_TESTS_CONFORMANCE_PAGES_H_
#define VERBENA_TESTS_CONFORMANCE_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "tests/conformance/objects.h"

namespace verbena::internal::conformance {

class Pages {
 public:
  static absl::StatusOr<Pages> Allocate(Backing backing, uint64_t bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) = delete;
  ~Pages();

  char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  Pages(char* data, uint64_t size) : data_(data), size_(size) {}

  char* data_;
  uint64_t size_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_PAGES_H_
