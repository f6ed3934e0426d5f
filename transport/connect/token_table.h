// TokenTable<T>: the objects that tokens were given out for; each is taken at most once.
//
// The table shares the ownership of its objects. Safe from any thread. Its bound is the only limit
// on how many wait. A token expires when its object's owner removes it.
//
//   TokenTable<CmConnection> waiting(1024);
//   if (!waiting.Add(token, connection)) return absl::ResourceExhaustedError(…);
//   std::shared_ptr<CmConnection> found = waiting.Take(token);  // nullptr: unknown or used

#ifndef VERBENA_TRANSPORT_CONNECT_TOKEN_TABLE_H_
#define VERBENA_TRANSPORT_CONNECT_TOKEN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace verbena::internal {

template <typename T>
class TokenTable {
 public:
  explicit TokenTable(size_t limit) : limit_(limit) {}

  // False when the table is full, or the token is in it.
  bool Add(uint64_t token, const std::shared_ptr<T>& waiting) {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= limit_) return false;
    return waiting_.try_emplace(token, waiting).second;
  }

  std::shared_ptr<T> Take(uint64_t token) {
    std::lock_guard lock(mutex_);
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return nullptr;
    std::shared_ptr<T> taken = std::move(found->second);
    waiting_.erase(found);
    return taken;
  }

  void Remove(uint64_t token) { Take(token); }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  const size_t limit_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> waiting_;  // under mutex_
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_TOKEN_TABLE_H_
