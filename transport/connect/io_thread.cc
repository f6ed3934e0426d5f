#include "verbena/transport/connect/io_thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal {

IoThread::IoThread() : context_(1), work_(boost::asio::make_work_guard(context_)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): posting throws only when memory is out
IoThread::~IoThread() { Stop(); }

absl::StatusOr<std::shared_ptr<IoThread>> IoThread::Start() {
  try {
    std::shared_ptr<IoThread> io(new IoThread());
    io->thread_ = StartQuietThread([raw = io.get()] { raw->context_.run(); });
    pthread_setname_np(io->thread_.native_handle(), "verbena-connect");
    return io;
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        fmt::format("no thread or descriptor for the bootstrap: {}", error.what()));
  }
}

void IoThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    boost::asio::post(context_, [this] {
      for (const auto& object : std::exchange(objects_, {})) object->CloseOnThread();
    });
  }
  work_.reset();
  VERBENA_CHECK(thread_.get_id() != std::this_thread::get_id()) << "the thread would await itself";
  if (thread_.joinable()) thread_.join();
  VERBENA_CHECK(objects_.empty()) << objects_.size() << " objects were registered after the end";
}

void IoThread::Park(std::chrono::seconds patience) {
  // Shared: the thread may come to it after the wait.
  const auto parked = std::make_shared<std::promise<void>>();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    boost::asio::post(context_, [parked] {
      parked->set_value();
      for (;;) pause();
    });
  }
  parked->get_future().wait_for(patience);
}

}  // namespace verbena::internal
