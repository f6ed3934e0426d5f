#include "verbena/transport/base/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal {
namespace {

NameAnswer AskSystem(const std::string& name) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return {
        .code = error == EAI_NONAME ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
        .why = fmt::format("looking up {}: {}", name, gai_strerror(error))};
  }
  absl::Cleanup free = [found] { freeaddrinfo(found); };
  NameAnswer answer;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const SocketAddress address(*each->ai_addr);
    if (address.has_value()) answer.addresses.push_back(address);
  }
  if (answer.addresses.empty()) {
    answer.code = absl::StatusCode::kUnavailable;
    answer.why = fmt::format("{} has no address", name);
  }
  return answer;
}

}  // namespace

// Owned by the object and by its threads.
struct NameLookups::Shared {
  explicit Shared(LookUp function) : look_up(std::move(function)) {}

  const LookUp look_up;
  std::mutex mutex;
  std::condition_variable work;
  // The rest is under the mutex.
  std::map<std::string, std::vector<Done>> asked;  // by name, until it is answered
  std::deque<std::string> queue;                   // of names that no thread has taken yet
  int threads = 0;
  size_t idle = 0;  // threads
  bool stopping = false;
};

NameLookups::NameLookups(LookUp look_up) : shared_(std::make_shared<Shared>(std::move(look_up))) {}

NameLookups::~NameLookups() {
  std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->work.notify_all();
}

NameLookups& NameLookups::System() {
  static NameLookups* lookups = new NameLookups(&AskSystem);
  // A child of fork() has a copy whose threads are not there, so it begins with none.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { lookups = new NameLookups(&AskSystem); });
  return *lookups;
}

void NameLookups::Start(const std::string& name, Done done) {
  {
    std::lock_guard lock(shared_->mutex);
    const auto [asked, is_new] = shared_->asked.try_emplace(name);
    asked->second.push_back(done);
    if (!is_new) return;
    shared_->queue.push_back(name);
    shared_->work.notify_one();
    if (shared_->idle >= shared_->queue.size() || shared_->threads == kMostThreads) return;
    try {
      StartQuietThread([shared = shared_] { Run(shared); }).detach();
      ++shared_->threads;
    } catch (const std::system_error&) {
      if (shared_->threads > 0) return;
      shared_->queue.pop_back();
      shared_->asked.erase(asked);
    }
    if (shared_->threads > 0) return;
  }
  done({.code = absl::StatusCode::kResourceExhausted,
        .why = fmt::format("there is no thread to look {} up", name)});
}

void NameLookups::Run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "verbena-names");
  std::unique_lock lock(shared->mutex);
  for (;;) {
    ++shared->idle;
    shared->work.wait(lock, [&] { return shared->stopping || !shared->queue.empty(); });
    --shared->idle;
    if (shared->stopping) return;
    const std::string name = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    const NameAnswer answer = shared->look_up(name);
    lock.lock();
    auto asked = shared->asked.extract(name);
    const bool is_wanted = !shared->stopping;
    lock.unlock();
    if (is_wanted) {
      for (const Done& done : asked.mapped()) done(answer);
    }
    // The callbacks go without the lock, too: they may own whoever takes it.
    asked = decltype(asked)();
    lock.lock();
  }
}

}  // namespace verbena::internal
