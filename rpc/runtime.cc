#include "verbena/rpc/runtime.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/open_device.h"
#include "verbena/rpc/shard.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_thread.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

ExecutorOptions OptionsOf(const RuntimeOptions& options, int index) {
  ExecutorOptions executor;
  executor.name = fmt::format("verbena-{}", index);
  executor.mode = options.mode;
  executor.spin = options.spin;
  executor.waiter = options.waiter;
  executor.clock = options.clock;
  if (static_cast<size_t>(index) < options.cpus.size()) executor.cpu = options.cpus[index];
  return executor;
}

absl::Status CheckOptions(const RuntimeOptions& options) {
  constexpr int kMaxExecutors = 1024;
  if (options.executors < 1 || options.executors > kMaxExecutors) {
    return absl::InvalidArgumentError(
        fmt::format("executors is {}, but must be in [1, {}]", options.executors, kMaxExecutors));
  }
  return absl::OkStatus();
}

}  // namespace

class Runtime::Impl {
 public:
  explicit Impl(RuntimeOptions options) : options_(std::move(options)) {}

  ~Impl() {
    for (size_t i = 0; i < shards_.size(); ++i)
      RunToEnd(shards_[i]->Shutdown(), static_cast<int>(i));
    // Threads first: nothing runs on an executor any more when its shard is destroyed.
    threads_.clear();
    shards_.clear();
  }

  absl::Status Start() {
    if (absl::Status status = CheckOptions(options_); !status.ok()) return status;
    if (absl::Status status = OpenParts(); !status.ok()) return status;
    for (int i = 0; i < options_.executors; ++i) {
      absl::StatusOr<Executor*> executor = StartExecutor(i);
      if (!executor.ok()) return executor.status();
      auto shard = std::make_unique<Shard>(**executor, *bootstrap_, static_cast<uint32_t>(i));
      Shard* added = shard.get();
      shards_.push_back(std::move(shard));
      absl::Status status;
      RunToEnd(InitShard(*added, status), i);
      if (!status.ok()) {
        shards_.pop_back();
        return status;
      }
    }
    return absl::OkStatus();
  }

  void RunToEnd(Task<void> task, int index) {
    Executor& executor = shards_[index]->executor();
    if (options_.threads) {
      std::mutex mutex;
      std::condition_variable ended;
      bool done = false;
      executor.PostFunction([&] {
        shards_[index]->roots().Spawn(RunAndTell(std::move(task), [&] {
          // Told under the lock: whoever waits owns the three, and is gone right after.
          std::lock_guard<std::mutex> lock(mutex);
          done = true;
          ended.notify_one();
        }));
      });
      std::unique_lock<std::mutex> lock(mutex);
      ended.wait(lock, [&done] { return done; });
    } else {
      bool done = false;
      executor.PostFunction([&] {
        shards_[index]->roots().Spawn(RunAndTell(std::move(task), [&done] { done = true; }));
      });
      while (!done) executor.Poll();
    }
  }

  const RuntimeOptions options_;
  std::vector<std::unique_ptr<Device>> owned_devices_;
  std::string device_name_;
  std::unique_ptr<Bootstrap> owned_bootstrap_;
  Bootstrap* bootstrap_ = nullptr;
  std::vector<std::unique_ptr<DeviceContext>> contexts_;
  std::vector<std::unique_ptr<Executor>> executors_;  // without threads
  std::vector<std::unique_ptr<ExecutorThread>> threads_;
  std::vector<std::unique_ptr<Shard>> shards_;

 private:
  absl::Status OpenParts() {
    if (absl::Status status = OpenContexts(); !status.ok()) return status;
    bootstrap_ = options_.use_bootstrap;
    if (bootstrap_ == nullptr) {
      absl::StatusOr<std::unique_ptr<TcpBootstrap>> bootstrap = TcpBootstrap::Create();
      if (!bootstrap.ok()) return bootstrap.status();
      owned_bootstrap_ = *std::move(bootstrap);
      bootstrap_ = owned_bootstrap_.get();
    }
    return absl::OkStatus();
  }

  absl::Status OpenContexts() {
    std::vector<Device*> devices;
    if (options_.use_device != nullptr) {
      devices.push_back(options_.use_device);
    } else {
      absl::StatusOr<std::vector<std::unique_ptr<Device>>> opened = OpenDevices(options_.device);
      if (!opened.ok()) return opened.status();
      owned_devices_ = *std::move(opened);
      for (const std::unique_ptr<Device>& device : owned_devices_) devices.push_back(device.get());
    }
    for (Device* device : devices) {
      absl::StatusOr<std::unique_ptr<DeviceContext>> context = DeviceContext::Create(
          *device, {.event_thread = options_.threads, .connect = options_.connect});
      if (!context.ok()) {
        const bool last = contexts_.empty() && device == devices.back();
        if (last || absl::IsInvalidArgument(context.status())) return context.status();
        Log(LogLevel::kWarning,
            fmt::format("{} is not used: {}", device->name(), context.status().ToString()));
        continue;
      }
      contexts_.push_back(*std::move(context));
      device_name_ += (device_name_.empty() ? "" : ", ") + device->name();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Executor*> StartExecutor(int index) {
    if (!options_.threads) {
      absl::StatusOr<std::unique_ptr<Executor>> executor =
          Executor::Create(OptionsOf(options_, index));
      if (!executor.ok()) return executor.status();
      executors_.push_back(*std::move(executor));
      return executors_.back().get();
    }
    absl::StatusOr<std::unique_ptr<ExecutorThread>> thread =
        ExecutorThread::Start(OptionsOf(options_, index));
    if (!thread.ok()) return thread.status();
    threads_.push_back(*std::move(thread));
    return &threads_.back()->executor();
  }

  Task<void> InitShard(Shard& shard, absl::Status& status) {
    std::vector<DeviceContext*> contexts;
    contexts.reserve(contexts_.size());
    for (const std::unique_ptr<DeviceContext>& context : contexts_) {
      contexts.push_back(context.get());
    }
    status = shard.Init(contexts, options_.limits, static_cast<uint32_t>(options_.executors));
    co_return;
  }

  template <typename Tell>
  static Task<void> RunAndTell(Task<void> task, Tell tell) {
    co_await std::move(task);
    tell();
  }
};

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Start(RuntimeOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Runtime>(new Runtime(std::move(impl)));
}

Runtime::Runtime(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Runtime::~Runtime() = default;

void Runtime::RunToEnd(Task<void> task, int executor_index) {
  impl_->RunToEnd(std::move(task), executor_index);
}

void Runtime::Spawn(Task<void> task, int executor_index) {
  Shard& shard = *impl_->shards_[executor_index];
  shard.executor().PostFunction(
      [&shard, task = std::move(task)]() mutable { shard.tasks().Spawn(std::move(task)); });
}

int Runtime::executors() const { return static_cast<int>(impl_->shards_.size()); }
Executor& Runtime::executor(int index) const { return impl_->shards_[index]->executor(); }
const std::string& Runtime::device_name() const { return impl_->device_name_; }
Shard& Runtime::shard(int index) const { return *impl_->shards_[index]; }

Shard* Runtime::CurrentShard() const {
  const Scheduler* current = Scheduler::Current();
  for (const std::unique_ptr<Shard>& shard : impl_->shards_) {
    if (&shard->executor() == current) return shard.get();
  }
  return nullptr;
}

namespace {

Task<std::vector<DeviceStats>> ReadStats(Shard& shard) { co_return shard.stats(); }

}  // namespace

EndpointStats Runtime::endpoint_stats(int executor_index) {
  EndpointStats sum;
  for (const DeviceStats& each : device_stats(executor_index)) sum += each.endpoint;
  return sum;
}

std::vector<DeviceStats> Runtime::device_stats(int executor_index) {
  return BlockOn(ReadStats(*impl_->shards_[executor_index]), executor_index);
}

}  // namespace verbena
