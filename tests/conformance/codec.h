// Codec: values as bytes, for calls between two processes that run the same binary.
//
// Trivially copyable values go as they are; strings, vectors of trivially copyable values, Status
// and StatusOr are spelled out. Reading past the end aborts: both ends are ours.

#ifndef VERBENA_TESTS_CONFORMANCE_CODEC_H_
#define VERBENA_TESTS_CONFORMANCE_CODEC_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal::conformance {

class Encoder {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Put(const std::string& value) {
    Put(uint64_t{value.size()});
    bytes_ += value;
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(uint64_t{values.size()});
    for (const T& value : values) Put(value);
  }
  void Put(const absl::Status& status) {
    Put(static_cast<int32_t>(status.code()));
    Put(std::string(status.message()));
  }
  template <typename T>
  void Put(const absl::StatusOr<T>& value) {
    Put(value.status());
    if (value.ok()) Put(*value);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Decoder {
 public:
  explicit Decoder(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  T Get() {
    return Getter<T>::Get(*this);
  }

 private:
  template <typename T>
  struct Getter {
    static T Get(Decoder& decoder) {
      static_assert(std::is_trivially_copyable_v<T>);
      T value;
      std::memcpy(&value, decoder.Take(sizeof(T)), sizeof(T));
      return value;
    }
  };

  const char* Take(uint64_t size) {
    if (size > bytes_.size() - at_) {
      std::fprintf(stderr, "a message between hosts is too short\n");
      std::abort();
    }
    const char* data = bytes_.data() + at_;
    at_ += size;
    return data;
  }

  const std::string bytes_;
  size_t at_ = 0;
};

template <>
struct Decoder::Getter<std::string> {
  static std::string Get(Decoder& decoder) {
    const auto size = decoder.Get<uint64_t>();
    return std::string(decoder.Take(size), size);
  }
};

template <typename T>
struct Decoder::Getter<std::vector<T>> {
  static std::vector<T> Get(Decoder& decoder) {
    std::vector<T> values;
    for (auto left = decoder.Get<uint64_t>(); left > 0; --left) values.push_back(decoder.Get<T>());
    return values;
  }
};

template <>
struct Decoder::Getter<absl::Status> {
  static absl::Status Get(Decoder& decoder) {
    const auto code = static_cast<absl::StatusCode>(decoder.Get<int32_t>());
    return absl::Status(code, decoder.Get<std::string>());
  }
};

template <typename T>
struct Decoder::Getter<absl::StatusOr<T>> {
  static absl::StatusOr<T> Get(Decoder& decoder) {
    auto status = decoder.Get<absl::Status>();
    if (!status.ok()) return status;
    return decoder.Get<T>();
  }
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_CODEC_H_
