// Published: a value that its owner sets from time to time, and any thread reads.
//
// For statistics of one executor that another executor reads: the reader must not wait for the
// owner.
//
//   published_.Set(stats());               // on the owner's thread
//   DeviceStats before = published_.Get();  // on any thread

#ifndef VERBENA_RPC_SHARD_PUBLISHED_H_
#define VERBENA_RPC_SHARD_PUBLISHED_H_

#include <mutex>
#include <utility>

namespace verbena::internal {

template <typename T>
class Published {
 public:
  void Set(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(value_, value);
  }
  T Get() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return value_;
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_PUBLISHED_H_
