// BoundedVector: a vector that allocates all its room beforehand, so that adding to it is only a
// store.
//
// For free lists and queues of the data path, which have a bound anyway: std::vector::push_back
// carries the path that grows into every function that calls it. One owner, one thread.
//
//   BoundedVector<uint32_t> free(depth);
//   free.PushBack(index);
//   uint32_t last = free.PopBack();

#ifndef VERBENA_TRANSPORT_BASE_BOUNDED_VECTOR_H_
#define VERBENA_TRANSPORT_BASE_BOUNDED_VECTOR_H_

#include <cassert>
#include <cstddef>
#include <vector>

namespace verbena::internal {

template <typename T>
class BoundedVector {
 public:
  explicit BoundedVector(size_t capacity = 0) : items_(capacity) {}

  // Makes room for `capacity` elements in all, unless there is as much already. The elements stay.
  void Reserve(size_t capacity) {
    if (capacity > items_.size()) items_.resize(capacity);
  }

  // Precondition: not full. The caller knows its bound.
  void PushBack(const T& item) {
    assert(size_ < items_.size());
    items_[size_++] = item;
  }
  // Precondition: not empty().
  T PopBack() {
    assert(size_ > 0);
    return items_[--size_];
  }
  T& back() {
    assert(size_ > 0);
    return items_[size_ - 1];
  }
  const T& back() const {
    assert(size_ > 0);
    return items_[size_ - 1];
  }
  void clear() { size_ = 0; }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return items_.size(); }
  T& operator[](size_t index) {
    assert(index < size_);
    return items_[index];
  }
  T* begin() { return items_.data(); }
  T* end() { return items_.data() + size_; }
  const T* begin() const { return items_.data(); }
  const T* end() const { return items_.data() + size_; }

 private:
  std::vector<T> items_;
  size_t size_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_BOUNDED_VECTOR_H_
