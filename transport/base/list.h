// Lists and queues that allocate nothing in use: IntrusiveList, BoundedVector and WaiterQueue.
//
// Each is used on one thread. An IntrusiveList and a WaiterQueue own nothing; a BoundedVector has a
// bound.

#ifndef VERBENA_TRANSPORT_BASE_LIST_H_
#define VERBENA_TRANSPORT_BASE_LIST_H_

#include <cstddef>
#include <vector>

#include "verbena/transport/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_HAS_ASAN 1
#endif
#endif

#ifdef VERBENA_HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace verbena::internal {

template <typename T>
class IntrusiveList;

// The pointers of one membership. T names the list's element type, and tells two memberships apart.
template <typename T>
class IntrusiveNode {
 public:
  IntrusiveNode() = default;
  IntrusiveNode(const IntrusiveNode&) = delete;
  IntrusiveNode& operator=(const IntrusiveNode&) = delete;
  ~IntrusiveNode() { Unlink(); }

  bool linked() const { return next_ != nullptr; }

  // Takes the object out of its list; does nothing if it is in none.
  void Unlink() {
    if (next_ == nullptr) return;
    VERBENA_DCHECK(previous_->next_ == this && next_->previous_ == this)
        << "the neighbours of " << this << " do not know it";
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

 private:
  friend class IntrusiveList<T>;
  IntrusiveNode* previous_ = nullptr;
  IntrusiveNode* next_ = nullptr;
};

// IntrusiveList: a doubly linked list of objects that carry their own pointers.
//
// Linking and unlinking allocate nothing and cost O(1), so that a coroutine may be destroyed while
// it waits anywhere. An object is in at most one list per base class; its destructor takes it out.
// The list owns nothing: a list destroyed with members leaves them unlinked. One thread.
//
//   class Waiter : public IntrusiveNode<Waiter> { … };
//   IntrusiveList<Waiter> waiters;
//   waiters.PushBack(waiter);
//   while (Waiter* next = waiters.PopFront()) …
template <typename T>
class IntrusiveList {
 public:
  IntrusiveList() { Reset(); }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;
  ~IntrusiveList() {
    while (PopFront() != nullptr) {
    }
    head_.previous_ = head_.next_ = nullptr;
  }

  bool empty() const { return head_.next_ == &head_; }

  void PushBack(T& object) {
    IntrusiveNode<T>& node = object;
    VERBENA_DCHECK(!node.linked()) << "an object is put into a second list: " << &object;
    node.previous_ = head_.previous_;
    node.next_ = &head_;
    head_.previous_->next_ = &node;
    head_.previous_ = &node;
  }

  void PushFront(T& object) {
    IntrusiveNode<T>& node = object;
    VERBENA_DCHECK(!node.linked()) << "an object is put into a second list: " << &object;
    node.previous_ = &head_;
    node.next_ = head_.next_;
    head_.next_->previous_ = &node;
    head_.next_ = &node;
  }

  T* Front() { return empty() ? nullptr : static_cast<T*>(head_.next_); }
  T* Back() { return empty() ? nullptr : static_cast<T*>(head_.previous_); }

  T* PopFront() {
    if (empty()) return nullptr;
    IntrusiveNode<T>* front = head_.next_;
    head_.next_ = front->next_;
    front->next_->previous_ = &head_;
    front->previous_ = front->next_ = nullptr;
    return static_cast<T*>(front);
  }

  // Moves every member of `other` to the end of this list.
  void Append(IntrusiveList& other) {
    VERBENA_DCHECK(&other != this) << "a list is appended to itself";
    if (other.empty()) return;
    IntrusiveNode<T>* first = other.head_.next_;
    IntrusiveNode<T>* last = other.head_.previous_;
    other.Reset();
    first->previous_ = head_.previous_;
    head_.previous_->next_ = first;
    last->next_ = &head_;
    head_.previous_ = last;
  }

 private:
  void Reset() { head_.previous_ = head_.next_ = &head_; }

  // The sentinel: its pointers are never null while the list lives.
  IntrusiveNode<T> head_;
};

// BoundedVector: a vector that allocates all its room beforehand, so that adding to it is only a
// store.
//
// For free lists and queues of the data path, which have a bound anyway: std::vector::push_back
// carries the path that grows into every function that calls it. One owner, one thread.
//
//   BoundedVector<uint32_t> free(depth);
//   free.PushBack(index);
//   uint32_t last = free.PopBack();
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
    VERBENA_DCHECK(size_ < items_.size()) << size_ << " of " << items_.size();
    items_[size_++] = item;
  }
  // Precondition: not empty().
  T PopBack() {
    VERBENA_DCHECK(size_ > 0);
    return items_[--size_];
  }
  T& back() {
    VERBENA_DCHECK(size_ > 0);
    return items_[size_ - 1];
  }
  const T& back() const {
    VERBENA_DCHECK(size_ > 0);
    return items_[size_ - 1];
  }
  void clear() { size_ = 0; }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return items_.size(); }
  T& operator[](size_t index) {
    VERBENA_DCHECK(index < size_) << index << " of " << size_;
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

// Poisoning: telling AddressSanitizer that memory which a free list holds may not be touched.
//
// A pool hides a use after free, since its memory is never given back to malloc. Everything that
// keeps memory for reuse poisons it here. Without AddressSanitizer these cost nothing.

// Any access to [memory, memory + bytes) is reported until it is unpoisoned. Both ends should be
// multiples of 8: shadow memory knows no finer grain.
inline void PoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_HAS_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
}

inline void UnpoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_HAS_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

// WaiterQueue: waiters for one thing, served in the order in which they came.
//
// Owns nothing: a waiter that is destroyed leaves the queue, so that a coroutine may be destroyed
// while it waits. Waiter derives from IntrusiveNode<Waiter>. One thread.
//
//   WaiterQueue<LeaseWaiter> waiters;
//   waiters.Add(waiter);
//   while (!waiters.empty() && HasLeases()) {
//     waiters.ServeFirst([](LeaseWaiter& first) { first.OnLeasesFree(); });
//   }
template <typename Waiter>
class WaiterQueue {
 public:
  bool empty() const { return waiters_.empty(); }
  // Whether ServeFirst() is under way.
  bool serving() const { return serving_; }
  // nullptr if nobody waits.
  Waiter* first() { return waiters_.Front(); }

  void Add(Waiter& waiter) { waiters_.PushBack(waiter); }
  // Takes the first waiter off the queue, and calls `serve` with it. Precondition: !empty(), and
  // the queue outlives the call.
  template <typename Serve>
  void ServeFirst(Serve serve) {
    VERBENA_DCHECK(!empty());
    Waiter& waiter = *waiters_.PopFront();
    serving_ = true;
    serve(waiter);
    serving_ = false;
  }
  // Moves all waiters to the end of `other`.
  void MoveTo(WaiterQueue& other) { other.waiters_.Append(waiters_); }
  // Takes all waiters off the queue, and tells none of them.
  void Clear() {
    while (waiters_.PopFront() != nullptr) {
    }
  }

 private:
  IntrusiveList<Waiter> waiters_;
  bool serving_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_LIST_H_
