// IntrusiveList: a doubly linked list of objects that carry their own links.
//
// Linking and unlinking allocate nothing and cost O(1), so that a coroutine may be destroyed while
// it waits anywhere. An object is in at most one list per base class; its destructor takes it out.
// The list owns nothing: a list destroyed with members leaves them unlinked. One thread.
//
//   class Waiter : public IntrusiveNode<Waiter> { … };
//   IntrusiveList<Waiter> waiters;
//   waiters.PushBack(waiter);
//   while (Waiter* next = waiters.PopFront()) …

#ifndef VERBENA_TRANSPORT_BASE_INTRUSIVE_LIST_H_
#define VERBENA_TRANSPORT_BASE_INTRUSIVE_LIST_H_

#include <cassert>

namespace verbena::internal {

template <typename T>
class IntrusiveList;

// The links of one membership. T names the list's element type, and tells two memberships apart.
template <typename T>
class IntrusiveNode {
 public:
  IntrusiveNode() = default;
  IntrusiveNode(const IntrusiveNode&) = delete;
  IntrusiveNode& operator=(const IntrusiveNode&) = delete;
  ~IntrusiveNode() { Unlink(); }

  bool linked() const { return next_ != nullptr; }

  // Takes the object out of its list; does nothing when it is in none.
  void Unlink() {
    if (next_ == nullptr) return;
    previous_->next_ = next_;
    next_->previous_ = previous_;
    previous_ = next_ = nullptr;
  }

 private:
  friend class IntrusiveList<T>;
  IntrusiveNode* previous_ = nullptr;
  IntrusiveNode* next_ = nullptr;
};

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
    assert(!node.linked());
    node.previous_ = head_.previous_;
    node.next_ = &head_;
    head_.previous_->next_ = &node;
    head_.previous_ = &node;
  }

  T* Front() { return empty() ? nullptr : static_cast<T*>(head_.next_); }

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

  // The sentinel: its links are never null while the list lives.
  IntrusiveNode<T> head_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_INTRUSIVE_LIST_H_
