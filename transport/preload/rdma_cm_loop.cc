#include "verbena/transport/preload/rdma_cm_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "verbena/transport/base/check.h"

namespace verbena::internal::preload {
namespace {

constexpr uint64_t kWakeWatch = 0;
constexpr auto kNoDeadline = CmLoop::Clock::time_point::max();

}  // namespace

CmLoop& CmLoop::Instance() {
  static CmLoop& loop = *new CmLoop;
  return loop;
}

CmLoop::CmLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  VERBENA_CHECK(epoll_ >= 0 && wake_ >= 0) << "errno " << errno;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeWatch}};
  VERBENA_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) << "errno " << errno;
}

uint64_t CmLoop::Watch(int fd, uint32_t events, CmReadyListener& listener) {
  Start();
  const uint64_t watch = ++last_watch_;
  watched_.emplace(watch, Watched{.fd = fd, .listener = &listener, .deadline = kNoDeadline});
  epoll_event event{.events = events, .data = {.u64 = watch}};
  VERBENA_CHECK(fd < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) << "errno " << errno;
  return watch;
}

void CmLoop::Change(uint64_t watch, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = watch}};
  VERBENA_CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, watched_.at(watch).fd, &event) == 0)
      << "errno " << errno;
}

void CmLoop::SetDeadline(uint64_t watch, Clock::duration after) {
  ClearDeadline(watch);
  Watched& watched = watched_.at(watch);
  watched.deadline = Clock::now() + after;
  deadlines_.emplace(watched.deadline, watch);
  Wake();
}

void CmLoop::ClearDeadline(uint64_t watch) {
  Watched& watched = watched_.at(watch);
  if (watched.deadline == kNoDeadline) return;
  deadlines_.erase({watched.deadline, watch});
  watched.deadline = kNoDeadline;
}

void CmLoop::Forget(uint64_t watch) {
  ClearDeadline(watch);
  const auto found = watched_.find(watch);
  if (found->second.fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second.fd, nullptr);
  watched_.erase(found);
}

void CmLoop::Start() {
  if (started_) return;
  started_ = true;
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([this] { Run(); });
  pthread_setname_np(thread.native_handle(), "verbena_rdma_cm");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CmLoop::Wake() {
  const uint64_t one = 1;
  // The write can fail only if the counter is full, and then the loop wakes anyhow.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

int CmLoop::TimeLeft() {
  const std::scoped_lock lock(mutex_);
  if (deadlines_.empty()) return -1;
  constexpr auto kLongest = std::chrono::hours(1);
  const auto left = std::min<Clock::duration>(deadlines_.begin()->first - Clock::now(), kLongest);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left);
  return static_cast<int>(std::max<int64_t>(ms.count(), 0));
}

void CmLoop::CallLate() {
  const auto now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t watch = deadlines_.begin()->second;
    ClearDeadline(watch);
    watched_.at(watch).listener->OnDeadline();
  }
}

void CmLoop::Run() {
  std::array<epoll_event, 32> events;
  while (true) {
    const int count =
        epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), TimeLeft());
    const std::scoped_lock lock(mutex_);
    for (int i = 0; i < count; ++i) {
      const uint64_t watch = events[static_cast<size_t>(i)].data.u64;
      if (watch == kWakeWatch) {
        uint64_t wakes;
        [[maybe_unused]] const ssize_t got = read(wake_, &wakes, sizeof(wakes));
        continue;
      }
      // An earlier one of these events may have ended it.
      const auto found = watched_.find(watch);
      if (found != watched_.end()) {
        found->second.listener->OnReady(events[static_cast<size_t>(i)].events);
      }
    }
    CallLate();
  }
}

}  // namespace verbena::internal::preload
