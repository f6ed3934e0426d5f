#include "verbena/transport/connect/file_poller.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace verbena::internal {

void FilePoller::Watch(std::shared_ptr<Watched> watched) {
  if (closed_) return;
  watched_.insert(std::move(watched));
  delay_ = kFastest;
  // A long wait that is under way ends now.
  timer_.cancel();
  if (!waiting_) Wait();
}

void FilePoller::CloseOnThread() {
  closed_ = true;
  watched_.clear();
  timer_.cancel();
}

void FilePoller::Wait() {
  waiting_ = true;
  timer_.expires_after(delay_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code&) {
    self->waiting_ = false;
    self->LookAtAll();
  });
}

void FilePoller::LookAtAll() {
  bool news = false;
  // A copy: what looks may stop watching itself.
  for (const auto& watched :
       std::vector<std::shared_ptr<Watched>>(watched_.begin(), watched_.end())) {
    news = watched->Look() || news;
  }
  delay_ = news ? kFastest : std::min<std::chrono::milliseconds>(2 * delay_, kSlowest);
  if (!closed_ && !watched_.empty() && !waiting_) Wait();
}

}  // namespace verbena::internal
