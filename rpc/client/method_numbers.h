// MethodNumbers: the numbers that a server gave its methods, as one session has asked for them.
//
// A method is looked up among the server's once per link; then its number lies in an array. Owned
// by a ClientSession, on its executor's thread. Bounded by the methods that this process knows.

#ifndef VERBENA_RPC_CLIENT_METHOD_NUMBERS_H_
#define VERBENA_RPC_CLIENT_METHOD_NUMBERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "verbena/rpc/method.h"

namespace verbena::internal {

class MethodNumbers {
 public:
  // 0 if the server, whose methods are `ids`, has no such method. A session passes the same each
  // time.
  uint16_t Of(const MethodDescriptor& method, const std::vector<uint64_t>& ids) {
    const uint32_t index = method.index.value();
    if (index < numbers_.size() && numbers_[index] != kUnasked) [[likely]]
      return numbers_[index];
    return LookUp(method.id, index, ids);
  }

 private:
  static constexpr uint16_t kUnasked = 0xffff;

  [[gnu::cold, gnu::noinline]] uint16_t LookUp(uint64_t id, uint32_t index,
                                               const std::vector<uint64_t>& ids) {
    if (index >= numbers_.size()) numbers_.resize(index + 1, kUnasked);
    const auto found = std::find(ids.begin(), ids.end(), id);
    numbers_[index] = found == ids.end() ? 0 : static_cast<uint16_t>(found - ids.begin() + 1);
    return numbers_[index];
  }

  std::vector<uint16_t> numbers_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_METHOD_NUMBERS_H_
