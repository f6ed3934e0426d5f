// IoUringWaiter: a Waiter on the io_uring that also carries an executor's file operations.
//
// Each watched descriptor has a one-shot poll in the ring. The system call that sleeps also renews
// the polls that fired, and submits the collected file operations. So a sleep and its wake-up cost
// one system call together. A poll belongs to the thread that asked for it and is cancelled when
// that thread ends. The thread that sleeps next renews it.
//
// A loop that waits in this one's stead gets an epoll descriptor instead of the ring's own, because
// polls complete only when the thread that asked for them enters the kernel.

#ifndef VERBENA_TRANSPORT_EXECUTOR_IO_URING_WAITER_H_
#define VERBENA_TRANSPORT_EXECUTOR_IO_URING_WAITER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/executor/epoll_waiter.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

class IoUringWaiter final : public Waiter, private RingListener {
 public:
  // Fails as IoRing::Create does.
  static absl::StatusOr<std::unique_ptr<IoUringWaiter>> Create();
  ~IoUringWaiter() override = default;

  const char* name() const override { return "io_uring"; }
  absl::Status Watch(int fd, ReadableListener& listener) override;
  void Unwatch(int fd) override;
  void Wait(Duration timeout) override;
  void Dispatch() override { nested_->Dispatch(); }
  int fd() const override { return nested_->fd(); }
  absl::StatusOr<IoRing*> UseRing() override;

 private:
  // A watch, or a free place for one. The generation tells late completions of an earlier watch
  // apart.
  struct Place {
    int fd = -1;
    uint32_t generation = 0;
    bool polled = false;
    ReadableListener* listener = nullptr;
  };
  // Does nothing: the loop reaps the completions.
  class NoListener final : public ReadableListener {
   public:
    void OnReadable() override {}
  };

  explicit IoUringWaiter(std::unique_ptr<EpollWaiter> nested);

  void RequestPolls();
  void OnTagged(uint64_t tag, int32_t result) override;

  std::vector<Place> places_;
  std::unique_ptr<EpollWaiter> nested_;
  NoListener ring_listener_;
  bool ring_watched_ = false;
  std::unique_ptr<IoRing> ring_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_IO_URING_WAITER_H_
