#include "verbena/rpc/shard/device_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

// Lines that are logged at its end: declare it before the lock. The program's sink may take long,
// while executors wait for the mutex.
class DeviceKeeper::Lines {
 public:
  Lines() = default;
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    for (const Line& line : lines_) {
      WriteLog(LogComponent::kRuntime, line.level, line.text, {{"device", line.device}});
    }
  }

  void Add(LogLevel level, const std::string& device, std::string text) {
    if (!IsLogged(LogComponent::kRuntime, level)) return;
    lines_.push_back({.level = level, .device = device, .text = std::move(text)});
  }

 private:
  struct Line {
    LogLevel level;
    std::string device;
    std::string text;
  };
  std::vector<Line> lines_;
};

absl::StatusOr<std::unique_ptr<DeviceKeeper>> DeviceKeeper::Create(Device& device,
                                                                   const Options& options) {
  std::unique_ptr<DeviceKeeper> keeper(new DeviceKeeper(nullptr, options));
  VERBENA_RETURN_IF_ERROR(keeper->Start(nullptr, device));
  return keeper;
}

absl::StatusOr<std::unique_ptr<DeviceKeeper>> DeviceKeeper::Create(std::unique_ptr<Device> device,
                                                                   Open open,
                                                                   const Options& options) {
  VERBENA_CHECK(open != nullptr) << device->name();
  std::unique_ptr<DeviceKeeper> keeper(new DeviceKeeper(std::move(open), options));
  Device& opened = *device;
  VERBENA_RETURN_IF_ERROR(keeper->Start(std::move(device), opened));
  return keeper;
}

std::unique_ptr<DeviceKeeper> DeviceKeeper::InReserve(std::string name, LinkKind kind, Open open,
                                                      const Options& options) {
  VERBENA_CHECK(open != nullptr) << name;
  std::unique_ptr<DeviceKeeper> keeper(new DeviceKeeper(std::move(open), options));
  keeper->name_ = std::move(name);
  keeper->kind_ = kind;
  keeper->in_reserve_ = true;
  return keeper;
}

DeviceKeeper::DeviceKeeper(Open open, const Options& options)
    : open_(std::move(open)),
      options_(options),
      grave_(std::make_shared<Grave>()),
      backoff_(options.backoff.first, options.backoff.longest) {
  grave_->keeper = this;
  if (sched_getaffinity(0, sizeof(cores_), &cores_) != 0) CPU_ZERO(&cores_);
}

DeviceKeeper::~DeviceKeeper() {
  Stop();
  if (thread_.joinable()) thread_.join();
  CloseContexts();
  current_.reset();
  {
    std::lock_guard<std::mutex> lock(grave_->mutex);
    grave_->keeper = nullptr;
  }
  buried_.clear();
  unclosable_.clear();
}

// A program's RegisteredMemory may hold an opening for longer: all that it needs is the device.
void DeviceKeeper::CloseContexts() {
  std::vector<std::shared_ptr<OpenedDevice>> held;
  while (!FindHeld(held)) std::this_thread::yield();
  // Without the lock: a context waits for its threads, which may wait for the lock.
  for (const std::shared_ptr<OpenedDevice>& opened : held) opened->context.reset();
}

// False while another thread that has let go of one is on its way to bury it.
bool DeviceKeeper::FindHeld(std::vector<std::shared_ptr<OpenedDevice>>& held) {
  held.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::weak_ptr<OpenedDevice>& opening : openings_) {
    if (std::shared_ptr<OpenedDevice> opened = opening.lock()) held.push_back(std::move(opened));
  }
  return held.size() + buried_.size() + unclosable_.size() == unclosed_;
}

absl::Status DeviceKeeper::Start(std::unique_ptr<Device> owned, Device& device) {
  name_ = device.name();
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<OpenedDevice> used, Use(std::move(owned), device));
  kind_ = used->context->address().kind;
  std::lock_guard<std::mutex> lock(mutex_);
  // OnFailure() opens again only what is in service, so a device that has failed before must be
  // refused here.
  if (used->failed) return absl::UnavailableError(fmt::format("{} has failed", name_));
  current_ = std::move(used);
  opened_at_ = Clock::Real().Now();
  return absl::OkStatus();
}

absl::Status DeviceKeeper::Wake() {
  std::lock_guard<std::mutex> one_at_a_time(waking_);
  if (!in_reserve()) return absl::OkStatus();
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<OpenedDevice> opened, OpenAlike());
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return absl::CancelledError("the runtime ends");
  if (opened->failed) return absl::UnavailableError(fmt::format("{} has failed", name_));
  VERBENA_CHECK(current_ == nullptr) << name_ << " was in service while it was in reserve";
  current_ = opened;
  opened_at_ = Clock::Real().Now();
  // From here on a failure reaches the users, behind the word of this opening.
  for (User* user : users_) user->OnDeviceOpened(opened, std::nullopt);
  in_reserve_.store(false, std::memory_order_release);
  return absl::OkStatus();
}

// The last holder may be an executor, so the keeper's thread closes the opening.
absl::StatusOr<std::shared_ptr<OpenedDevice>> DeviceKeeper::Use(std::unique_ptr<Device> owned,
                                                                Device& device) {
  std::shared_ptr<OpenedDevice> opened(new OpenedDevice, [grave = grave_](OpenedDevice* gone) {
    Bury(*grave, std::unique_ptr<OpenedDevice>(gone));
  });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(openings_, [](const auto& opening) { return opening.expired(); });
    openings_.push_back(opened);
    ++unclosed_;
  }
  opened->owned = std::move(owned);
  DeviceContext::Options options = options_.context;
  options.on_failure = [this, raw = opened.get()] { OnFailure(*raw); };
  VERBENA_ASSIGN_OR_RETURN(opened->context, DeviceContext::Create(device, options));
  return opened;
}

std::shared_ptr<OpenedDevice> DeviceKeeper::Attach(User& user) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_CHECK(std::ranges::find(users_, &user) == users_.end()) << name_;
  users_.push_back(&user);
  return current_;
}

absl::Status DeviceKeeper::Presence() {
  Lines lines;
  std::lock_guard<std::mutex> lock(mutex_);
  if (in_reserve()) return absl::OkStatus();
  if (current_ != nullptr) return absl::OkStatus();
  // With the same lock: otherwise a device that comes back meanwhile would be reported as lost.
  return AbsenceLocked(lines);
}

absl::Status DeviceKeeper::Absence() {
  Lines lines;
  std::lock_guard<std::mutex> lock(mutex_);
  return AbsenceLocked(lines);
}

absl::Status DeviceKeeper::AbsenceLocked(Lines& lines) {
  if (stopping_) {
    return absl::UnavailableError(
        fmt::format("{} has failed, or was removed, and its runtime ends", name_));
  }
  // The system may have a thread to spare by now.
  if (reopening_) EnsureThread(lines);
  std::string detail;
  if (const std::string obstacle = Obstacle(); !obstacle.empty()) {
    detail = fmt::format(" once this is over: {}", obstacle);
  } else if (!last_error_.ok()) {
    detail = fmt::format(" (attempt {} failed: {})", attempts_, last_error_.ToString());
  }
  return absl::UnavailableError(fmt::format(
      "{} has failed, or was removed, and is being reopened{}; try again", name_, detail));
}

void DeviceKeeper::OnFailure(OpenedDevice& opened) {
  std::shared_ptr<OpenedDevice> failed;
  Lines lines;
  std::lock_guard<std::mutex> lock(mutex_);
  // A device of the program's is not opened again: its links report the loss.
  if (opened.failed || stopping_ || open_ == nullptr) return;
  opened.failed = true;
  if (current_.get() != &opened) return;
  failed = std::move(current_);
  current_ = nullptr;
  failed->draining = users_.size();
  if (failed->draining > 0) ++undrained_;
  for (User* user : users_) user->OnDeviceFailed(failed);
  const TimePoint now = Clock::Real().Now();
  if (now - opened_at_ >= options_.backoff.longest) backoff_.Reset();
  attempts_ = 0;
  last_error_ = absl::OkStatus();
  obstacle_reported_ = false;
  reopening_ = true;
  next_attempt_ = SaturatingAdd(now, backoff_.Next());
  EnsureThread(lines);
}

void DeviceKeeper::OnDrained(OpenedDevice& opened) {
  Lines lines;
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_CHECK(opened.draining > 0) << name_;
  if (--opened.draining > 0) return;
  VERBENA_CHECK(undrained_ > 0) << name_;
  --undrained_;
  EnsureThread(lines);
}

void DeviceKeeper::Bury(Grave& grave, std::unique_ptr<OpenedDevice> opened) {
  Lines lines;
  std::lock_guard<std::mutex> open(grave.mutex);
  DeviceKeeper* const keeper = grave.keeper;
  // The keeper has destroyed the context; destroying the rest waits for nothing.
  if (keeper == nullptr) return;
  std::lock_guard<std::mutex> lock(keeper->mutex_);
  keeper->buried_.push_back(std::move(opened));
  keeper->EnsureThread(lines);
}

void DeviceKeeper::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  // Nobody starts another.
  if (thread_.joinable()) thread_.join();
}

// --- the thread

// Starts the thread if it has work. If the system refuses a thread, the next caller tries again,
// which is each call that the device would serve (Absence()).
void DeviceKeeper::EnsureThread(Lines& lines) {
  wake_.notify_all();
  if (running_ || stopping_ || (!reopening_ && buried_.empty())) return;
  // The thread has nothing left to do but to end.
  if (thread_.joinable()) thread_.join();
  try {
    const auto work = [this] { Work(); };
    thread_ = options_.start_thread ? options_.start_thread(work) : std::thread(work);
  } catch (const std::system_error& refused) {
    if (std::exchange(thread_refused_, true)) return;
    lines.Add(
        LogLevel::kError, name_,
        fmt::format("the system starts no thread that opens {} again: {}", name_, refused.what()));
    return;
  }
  thread_refused_ = false;
  running_ = true;
  pthread_setname_np(thread_.native_handle(), "verbena-device");
}

// Why the device is not opened now, however long ago it failed; empty when nothing is in the way.
std::string DeviceKeeper::Obstacle() const {
  if (thread_refused_) return "the system starts no thread for it";
  if (undrained_ > 1) {
    return fmt::format("links of {} of its former openings are still being torn down", undrained_);
  }
  if (unclosed_ >= kMostOpenings) {
    return fmt::format(
        "{} of its former openings are not closed: something of them is in use, as buffers or "
        "registered memory, or the device refused",
        unclosed_);
  }
  return "";
}

void DeviceKeeper::LogUnlocked(std::unique_lock<std::mutex>& lock, LogLevel level,
                               const std::string& line) {
  if (!IsLogged(LogComponent::kRuntime, level)) return;
  lock.unlock();
  WriteLog(LogComponent::kRuntime, level, line, {{"device", name_}});
  lock.lock();
}

void DeviceKeeper::Work() {
  // Not on the core of the executor that began it.
  if (CPU_COUNT(&cores_) > 0) (void)sched_setaffinity(0, sizeof(cores_), &cores_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && (reopening_ || !buried_.empty())) {
    if (!buried_.empty()) {
      CloseBuried(lock);
    } else if (next_attempt_ > Clock::Real().Now()) {
      wake_.wait_until(lock, next_attempt_);
    } else if (const std::string obstacle = Obstacle(); !obstacle.empty()) {
      // The line is logged without the lock, so the obstacle may be gone: look again.
      if (std::exchange(obstacle_reported_, true)) {
        wake_.wait(lock);
      } else {
        LogUnlocked(lock, LogLevel::kWarning,
                    fmt::format("{} is not reopened yet: {}", name_, obstacle));
      }
    } else {
      TryAgain(lock);
    }
  }
  running_ = false;
}

void DeviceKeeper::CloseBuried(std::unique_lock<std::mutex>& lock) {
  std::vector<std::unique_ptr<OpenedDevice>> closing = std::exchange(buried_, {});
  lock.unlock();
  const size_t closed = std::erase_if(closing, [this](const auto& opened) {
    if (opened->context == nullptr) return true;
    const absl::Status status = opened->context->Close();
    if (status.ok()) return true;
    VERBENA_LOG_LINE(kRuntime, kWarning,
                     fmt::format("{}, which has failed, stays open until its runtime ends: "
                                 "it does not let itself be closed: {}",
                                 name_, status.ToString()),
                     {{"device", name_}});
    return false;
  });
  lock.lock();
  VERBENA_CHECK(closed <= unclosed_) << name_ << ": " << closed << " of " << unclosed_;
  unclosed_ -= closed;
  std::move(closing.begin(), closing.end(), std::back_inserter(unclosable_));
}

void DeviceKeeper::TryAgain(std::unique_lock<std::mutex>& lock) {
  const int attempt = ++attempts_;
  lock.unlock();
  const absl::Status status = Reopen();
  lock.lock();
  if (status.ok() || stopping_) return;
  last_error_ = status;
  const Duration pause = backoff_.Next();
  next_attempt_ = SaturatingAdd(Clock::Real().Now(), pause);
  LogUnlocked(lock, LogLevel::kWarning,
              fmt::format("{} is not reopened yet (attempt {}, the next in {} ms): {}", name_,
                          attempt, Milliseconds(pause), status.ToString()));
}

absl::StatusOr<std::unique_ptr<Device>> DeviceKeeper::CallOpen() const {
  // The function may be the program's.
  try {
    absl::StatusOr<std::unique_ptr<Device>> device = open_();
    VERBENA_CHECK(!device.ok() || *device != nullptr) << name_;
    return device;
  } catch (const std::exception& error) {
    return absl::InternalError(fmt::format("opening it threw: {}", error.what()));
  } catch (...) {
    return absl::InternalError("opening it threw");
  }
}

// Opens a device of the keeper's kind.
absl::StatusOr<std::shared_ptr<OpenedDevice>> DeviceKeeper::OpenAlike() {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CallOpen());
  Device& opened = *device;
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<OpenedDevice> used, Use(std::move(device), opened));
  DeviceContext& context = *used->context;
  if (context.address().kind != kind_) {
    return absl::FailedPreconditionError(
        fmt::format("{} is a {} device now, and was a {} device", opened.name(),
                    LinkKindName(context.address().kind), LinkKindName(kind_)));
  }
  return used;
}

absl::Status DeviceKeeper::Reopen() {
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<OpenedDevice> used, OpenAlike());
  VERBENA_ASSIGN_OR_RETURN(std::vector<std::optional<EndpointMemory>> memory,
                           PrepareUsers(*used->context));
  return PutInService(used, memory);
}

absl::StatusOr<std::vector<std::optional<EndpointMemory>>> DeviceKeeper::PrepareUsers(
    DeviceContext& context) {
  std::vector<std::optional<EndpointMemory>> memory;
  for (size_t i = 0;; ++i) {
    User* user = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("the runtime ends");
      if (i == users_.size()) return memory;
      user = users_[i];
    }
    VERBENA_ASSIGN_OR_RETURN(std::optional<EndpointMemory> prepared, user->Prepare(context));
    memory.push_back(std::move(prepared));
  }
}

absl::Status DeviceKeeper::PutInService(const std::shared_ptr<OpenedDevice>& opened,
                                        std::vector<std::optional<EndpointMemory>>& memory) {
  Lines lines;
  std::lock_guard<std::mutex> lock(mutex_);
  if (opened->failed) return absl::UnavailableError("it failed again at once");
  if (stopping_) return absl::CancelledError("the runtime ends");
  VERBENA_CHECK(reopening_ && current_ == nullptr) << name_ << " is in service already";
  current_ = opened;
  reopening_ = false;
  opened_at_ = Clock::Real().Now();
  // A user that came meanwhile makes what it needs when it needs it.
  memory.resize(users_.size());
  for (size_t i = 0; i < users_.size(); ++i) {
    users_[i]->OnDeviceOpened(opened, std::move(memory[i]));
  }
  lines.Add(LogLevel::kWarning, name_,
            fmt::format("{} was reopened after {} attempt{}", name_, attempts_,
                        attempts_ == 1 ? "" : "s"));
  return absl::OkStatus();
}

}  // namespace verbena::internal
