#include "verbena/rpc/shard/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/device_keeper.h"
#include "verbena/rpc/shard/device_sizes.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/version.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/tcp_bootstrap.h"
#include "verbena/transport/device/near_cores.h"
#include "verbena/transport/device/process_memory.h"
#include "verbena/transport/executor/blocking.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena {
namespace internal {
namespace {

ExecutorOptions OptionsOf(const RuntimeOptions& options, const std::vector<int>& cpus, int index,
                          BlockingPool& pool) {
  ExecutorOptions executor;
  executor.name = fmt::format("verbena-{}", index);
  executor.mode = options.mode;
  executor.spin = options.spin;
  executor.waiter = options.waiter;
  executor.clock = options.clock;
  executor.blocking_pool = &pool;
  executor.stamps = options.metrics;
  if (static_cast<size_t>(index) < cpus.size()) executor.cpu = cpus[index];
  return executor;
}

// True also if the kernel does not say which cores there are.
bool HasCore(int cpu) {
  const std::string cores = "/sys/devices/system/cpu/cpu";
  return cpu >= 0 && (access((cores + std::to_string(cpu)).c_str(), F_OK) == 0 ||
                      access((cores + "0").c_str(), F_OK) != 0);
}

absl::Status CheckOptions(const RuntimeOptions& options) {
  constexpr int kMaxExecutors = 1024;
  if (options.executors < 1 || options.executors > kMaxExecutors) {
    return absl::InvalidArgumentError(
        fmt::format("RuntimeOptions::executors is {}, but must be in [1, {}]", options.executors,
                    kMaxExecutors));
  }
  constexpr int kMaxBlockingThreads = 1024;
  if (options.blocking_threads < 1 || options.blocking_threads > kMaxBlockingThreads) {
    return absl::InvalidArgumentError(
        fmt::format("RuntimeOptions::blocking_threads is {}, but must be in [1, {}]",
                    options.blocking_threads, kMaxBlockingThreads));
  }
  if (options.spin < Duration::zero()) {
    return absl::InvalidArgumentError(
        fmt::format("RuntimeOptions::spin is {} ns, but must be 0 or more", options.spin.count()));
  }
  if (options.cpus.size() > static_cast<size_t>(options.executors)) {
    return absl::InvalidArgumentError(
        fmt::format("RuntimeOptions::cpus has {} cores for {} executors: name at most one for each",
                    options.cpus.size(), options.executors));
  }
  if (options.numa && !options.cpus.empty()) {
    return absl::InvalidArgumentError(
        "RuntimeOptions::numa is true, but RuntimeOptions::cpus names cores, too: set one of them "
        "alone");
  }
  for (const int cpu : options.cpus) {
    if (cpu == -1 || HasCore(cpu)) continue;
    return absl::InvalidArgumentError(fmt::format(
        "RuntimeOptions::cpus names core {}, which this machine does not have: use the number of "
        "one of its cores, or -1 for an executor that is not pinned",
        cpu));
  }
  if (options.reopen.first <= Duration::zero() || options.reopen.longest < options.reopen.first) {
    return absl::InvalidArgumentError(
        fmt::format("RuntimeOptions::reopen.first is {} ns and reopen.longest {} ns, but must be "
                    "positive and in this order",
                    options.reopen.first.count(), options.reopen.longest.count()));
  }
  return absl::OkStatus();
}

}  // namespace

RuntimeCore::RuntimeCore(RuntimeOptions options, TestDevice device)
    : process_(getpid()),
      options_(std::move(options)),
      test_device_(std::move(device)),
      cpus_(options_.cpus),
      blocking_pool_(options_.blocking_threads) {}

RuntimeCore::~RuntimeCore() {
  Shutdown();
  // Executors first: nothing runs on one any more when its shard is destroyed.
  threads_.clear();
  executors_.clear();
  shards_.clear();
}

absl::StatusOr<std::unique_ptr<Runtime>> RuntimeCore::Start(RuntimeOptions options,
                                                            TestDevice device) {
  VERBENA_CHECK(device.use == nullptr || device.open == nullptr)
      << "a runtime has one device in tests: one to use, or one to open";
  VERBENA_RETURN_IF_ERROR(CheckOptions(options));
  auto core = std::make_unique<RuntimeCore>(std::move(options), std::move(device));
  VERBENA_RETURN_IF_ERROR(core->StartAll());
  return std::unique_ptr<Runtime>(new Runtime(std::move(core)));
}

absl::Status RuntimeCore::StartAll() {
  VERBENA_RETURN_IF_ERROR(OpenParts());
  for (int i = 0; i < options_.executors; ++i) {
    VERBENA_ASSIGN_OR_RETURN(Executor * executor, StartExecutor(i));
    shards_.push_back(
        std::make_unique<Shard>(*executor, *bootstrap_, static_cast<uint32_t>(i), id_, this));
    Shard& shard = *shards_.back();
    if (counts_calls()) {
      counts_.push_back(std::make_unique<ExecutorCounts>(*executor));
      shard.set_counts(*counts_.back());
    }
    VERBENA_RETURN_IF_ERROR(BlockOn(InitShard(shard), i));
  }
  VERBENA_LOG_LINE(kRuntime, kInfo,
                   fmt::format("Verbena {}.{}.{} runs {} executor{} over {}", VERBENA_VERSION_MAJOR,
                               VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH, options_.executors,
                               options_.executors == 1 ? "" : "s", fmt::join(device_names_, ", ")));
  return absl::OkStatus();
}

absl::Status RuntimeCore::OpenParts() {
  VERBENA_RETURN_IF_ERROR(OpenDevices());
  // Once the sizes are final: they are found again for each device that is left out.
  if (!sizes_.reduced.empty()) NoteDegraded("the runtime " + sizes_.reduced);
  bootstrap_ = options_.use_bootstrap;
  if (bootstrap_ == nullptr) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<TcpBootstrap> bootstrap, TcpBootstrap::Create());
    owned_bootstrap_ = std::move(bootstrap);
    bootstrap_ = owned_bootstrap_.get();
  }
  return absl::OkStatus();
}

absl::Status RuntimeCore::OpenDevices() {
  if (test_device_.use != nullptr) {
    std::vector<Device*> devices = {test_device_.use};
    if (test_device_.also_use != nullptr) devices.push_back(test_device_.also_use);
    VERBENA_RETURN_IF_ERROR(FitDevices(devices));
    for (Device* device : devices) {
      VERBENA_RETURN_IF_ERROR(Keep(DeviceKeeper::Create(*device, KeeperOptions(device->kind()))));
    }
    return absl::OkStatus();
  }
  if (test_device_.open != nullptr) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, test_device_.open());
    VERBENA_RETURN_IF_ERROR(FitDevices({device.get()}));
    const DeviceKeeper::Options options = KeeperOptions(device->kind());
    return Keep(DeviceKeeper::Create(std::move(device), test_device_.open, options));
  }
  return OpenNamedDevices();
}

absl::Status RuntimeCore::OpenNamedDevices() {
  VERBENA_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> opened,
                           internal::OpenDevices(options_.device));
  const bool automatic = IsAutomatic(options_.device);
  VERBENA_RETURN_IF_ERROR(FitOpened(automatic, opened));
  bool has_tcp = false;
  for (std::unique_ptr<Device>& device : opened) {
    const bool last = keepers_.empty() && &device == &opened.back();
    const std::string name = device->name();
    const std::string again = NameToReopen(options_.device, *device);
    const DeviceKeeper::Options options = KeeperOptions(device->kind());
    const absl::Status kept = Keep(
        DeviceKeeper::Create(std::move(device), [again] { return OpenDevice(again); }, options));
    has_tcp |= kept.ok() && name == kTcpDeviceName;
    if (kept.ok()) continue;
    if (last || !automatic || absl::IsInvalidArgument(kept)) return kept;
    NoteUnused(name, kept);
  }
  return automatic && !has_tcp ? KeepTcpInReserve() : absl::OkStatus();
}

absl::Status RuntimeCore::FitDevices(const std::vector<Device*>& devices) {
  std::vector<DeviceNeed> needs;
  needs.reserve(devices.size());
  for (const Device* device : devices) needs.push_back(NeedOf(*device));
  const bool named = test_device_.use == nullptr && test_device_.open == nullptr;
  VERBENA_ASSIGN_OR_RETURN(sizes_, FitSizes(options_.limits, options_.executors, needs,
                                            named ? ReadProcessMemory() : test_device_.memory));
  for (const std::string& line : sizes_.warnings) VERBENA_LOG_LINE(kRuntime, kWarning, line);
  if (!sizes_.reduced.empty()) VERBENA_LOG_LINE(kRuntime, kWarning, "Verbena " + sizes_.reduced);
  ChooseCores(devices);
  return absl::OkStatus();
}

absl::Status RuntimeCore::FitOpened(bool automatic, std::vector<std::unique_ptr<Device>>& opened) {
  while (true) {
    std::vector<Device*> devices;
    devices.reserve(opened.size());
    for (const std::unique_ptr<Device>& device : opened) devices.push_back(device.get());
    const absl::Status fits = FitDevices(devices);
    if (fits.ok() || !automatic || opened.size() == 1) return fits;
    const auto last = std::ranges::find_if(opened.rbegin(), opened.rend(), [](const auto& device) {
      return device->kind() == DeviceKind::kRdma;
    });
    if (last == opened.rend()) return fits;
    NoteUnused((*last)->name(), fits);
    opened.erase(std::next(last).base());
  }
}

void RuntimeCore::NoteUnused(const std::string& device, const absl::Status& why) {
  const std::string line = fmt::format("{} is not used: {}", device, why.ToString());
  VERBENA_LOG_LINE(kRuntime, kWarning, line, {{"device", device}});
  NoteDegraded(line);
}

void RuntimeCore::ChooseCores(const std::vector<Device*>& devices) {
  if (!options_.numa) return;
  const auto rdma = std::ranges::find(devices, DeviceKind::kRdma, &Device::kind);
  if (rdma == devices.end()) {
    VERBENA_LOG_LINE(kRuntime, kWarning,
                     "RuntimeOptions::numa pins no executor, because there is no RDMA device: name "
                     "cores in RuntimeOptions::cpus, or set numa to false");
    return;
  }
  const auto executors = static_cast<size_t>(options_.executors);
  cpus_ = CoresNear("/", (*rdma)->name(), AllowedCores(), executors);
  const LogLevel level = cpus_.size() == executors ? LogLevel::kInfo : LogLevel::kWarning;
  if (!IsLogged(LogComponent::kRuntime, level)) return;
  WriteLog(
      LogComponent::kRuntime, level,
      fmt::format("{} of {} executors are pinned to cores near {}: {}", cpus_.size(), executors,
                  (*rdma)->name(),
                  cpus_.empty() ? "it names none" : fmt::format("{}", fmt::join(cpus_, ", "))));
}

absl::Status RuntimeCore::KeepTcpInReserve() {
  return Keep(DeviceKeeper::InReserve(
      kTcpDeviceName, LinkKind::kTcp, [] { return OpenDevice("soft:tcp"); },
      KeeperOptions(DeviceKind::kSoft)));
}

DeviceKeeper::Options RuntimeCore::KeeperOptions(DeviceKind kind) const {
  return {.context = {.event_thread = options_.threads,
                      .control_threads = options_.threads || kind != DeviceKind::kSoft,
                      .connect = options_.connect,
                      .rdma = options_.rdma},
          .backoff = options_.reopen};
}

absl::Status RuntimeCore::Keep(absl::StatusOr<std::unique_ptr<DeviceKeeper>> keeper) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceKeeper> kept, std::move(keeper));
  device_names_.push_back(kept->name());
  keepers_.push_back(std::move(kept));
  return absl::OkStatus();
}

absl::StatusOr<Executor*> RuntimeCore::StartExecutor(int index) {
  if (!options_.threads) {
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                             Executor::Create(OptionsOf(options_, cpus_, index, blocking_pool_)));
    executors_.push_back(std::move(executor));
    return executors_.back().get();
  }
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<ExecutorThread> thread,
      ExecutorThread::Start(OptionsOf(options_, cpus_, index, blocking_pool_)));
  threads_.push_back(std::move(thread));
  return &threads_.back()->executor();
}

Task<absl::Status> RuntimeCore::InitShard(Shard& shard) {
  std::vector<DeviceKeeper*> devices;
  devices.reserve(keepers_.size());
  for (const std::unique_ptr<DeviceKeeper>& keeper : keepers_) devices.push_back(keeper.get());
  shard.executor().set_attachment(&shard);
  absl::Status status = shard.Init(devices, sizes_, static_cast<uint32_t>(options_.executors));
  shard.PublishStats();
  co_return status;
}

size_t RuntimeCore::CheckedIndex(int index) const {
  VERBENA_CHECK(index >= 0 && index < executors()) << "executor " << index << " of " << executors();
  return static_cast<size_t>(index);
}

void RuntimeCore::LaunchAndWait(BlockOnRoot& root, size_t index) {
  VERBENA_CHECK(getpid() == process_)
      << "process " << getpid() << " is a fork of " << process_
      << ", which started the runtime, and has none of its threads: call fork() or daemon() "
         "first, then Runtime::Start()";
  root.Launch(shards_[index]->executor());
  if (options_.threads) {
    root.Wait();
    return;
  }
  PollExecutors(index, [&root] { return root.done(); });
}

SpawnSite RuntimeCore::SiteOf(size_t index) {
  return {.scheduler = shards_[index]->executor(),
          .function = "Runtime::Spawn",
          .failed_tasks = &failed_tasks_,
          .driver = options_.threads ? nullptr : this};
}

void RuntimeCore::LaunchSpawned(Task<void> task, size_t index) {
  Shard& shard = *shards_[index];
  shard.executor().PostFunction([&shard, task = std::move(task)]() mutable {
    if (shard.closing()) return;
    shard.tasks().Spawn(std::move(task));
  });
}

void RuntimeCore::PollExecutors(size_t first, absl::FunctionRef<bool()> done) {
  std::vector<Executor*> executors;
  executors.reserve(executors_.size());
  executors.push_back(executors_[first].get());
  for (const std::unique_ptr<Executor>& executor : executors_) {
    if (executor.get() != executors.front()) executors.push_back(executor.get());
  }
  PollUntil(executors, done);
}

void RuntimeCore::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  // From here on no device is opened, and no executor told of one.
  for (const std::unique_ptr<DeviceKeeper>& keeper : keepers_) keeper->Stop();
  constexpr Task<void> (RuntimeCore::* kSteps[])(size_t) = {
      &RuntimeCore::BeginShutdown, &RuntimeCore::CloseLinks, &RuntimeCore::JoinTasks,
      &RuntimeCore::End};
  for (auto step : kSteps) {
    for (size_t i = 0; i < shards_.size(); ++i) BlockOn((this->*step)(i), i);
  }
}

Task<void> RuntimeCore::BeginShutdown(size_t index) {
  shards_[index]->BeginShutdown();
  co_return;
}

RuntimeCore& CoreOf(const Runtime& runtime) { return *runtime.core_; }

}  // namespace internal

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Start(RuntimeOptions options) {
  internal::LinkSecondCopyCheck();
  return internal::RuntimeCore::Start(std::move(options));
}

Runtime::Runtime(std::unique_ptr<internal::RuntimeCore> core) : core_(std::move(core)) {}
Runtime::~Runtime() {
  internal::CheckMayBlock("~Runtime");
  const int servers = core_->servers();
  VERBENA_CHECK(servers == 0) << "a Runtime is destroyed before " << servers
                              << " of its servers: declare a Server after its Runtime";
  VERBENA_CHECK(core_->reporters() == 0)
      << "a Runtime is destroyed before its Admin: declare an Admin after its Runtime";
  // The tasks that this waits for may use the runtime.
  core_->Shutdown();
}

void Runtime::LaunchAndWait(internal::BlockOnRoot& root, int executor_index) {
  core_->LaunchAndWait(root, core_->CheckedIndex(executor_index));
}

internal::SpawnSite Runtime::SiteOf(int executor_index) {
  return core_->SiteOf(core_->CheckedIndex(executor_index));
}

void Runtime::LaunchSpawned(Task<void> task, int executor_index) {
  core_->LaunchSpawned(std::move(task), static_cast<size_t>(executor_index));
}

uint64_t Runtime::failed_tasks() const { return core_->failed_tasks(); }
int Runtime::executors() const { return core_->executors(); }
Executor& Runtime::executor(int index) const {
  return core_->shard(core_->CheckedIndex(index)).executor();
}
const std::vector<std::string>& Runtime::device_names() const { return core_->device_names(); }
const std::string& Runtime::reduced() const { return core_->reduced(); }

namespace {

Task<std::vector<DeviceStats>> ReadStats(internal::Shard& shard) {
  shard.PublishStats();
  co_return shard.stats();
}

}  // namespace

EndpointStats Runtime::endpoint_stats(int executor_index) {
  EndpointStats sum;
  for (const DeviceStats& each : device_stats(executor_index)) sum += each.endpoint;
  return sum;
}

std::vector<DeviceStats> Runtime::device_stats(int executor_index) {
  internal::Shard& shard = core_->shard(core_->CheckedIndex(executor_index));
  Scheduler* current = Scheduler::Current();
  if (current == &shard.executor()) return shard.stats();
  if (current == nullptr) return BlockOn(ReadStats(shard), executor_index);
  // An executor waits for no other.
  shard.executor().PostFunction([&shard] { shard.PublishStats(); });
  return shard.published_stats();
}

Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> Runtime::RegisterMemory(
    void* memory, size_t bytes, MemoryOptions options) {
  internal::Shard* shard = core_->ShardHere();
  if (shard == nullptr) {
    co_return absl::FailedPreconditionError(
        "memory is registered in a task of the runtime; use Runtime::BlockOn(task) or "
        "Runtime::Spawn(task)");
  }
  if (memory == nullptr || bytes == 0) {
    co_return absl::InvalidArgumentError(
        fmt::format("{} bytes at {} are no memory to register", bytes, fmt::ptr(memory)));
  }
  VERBENA_CO_ASSIGN_OR_RETURN(internal::ShardDevice * device, shard->DeviceNamed(options.device));
  VERBENA_CO_ASSIGN_OR_RETURN(internal::Endpoint * endpoint, co_await device->AwaitEndpoint());
  // The device may fail meanwhile, and is open until the memory is deregistered.
  const std::shared_ptr<internal::OpenedDevice> opened = device->opened();
  const internal::DeviceContext& context = *opened->context;
  Scheduler* const home = options.for_files ? &shard->executor() : nullptr;
  const int access = UserMemoryAccess(context, endpoint->limits());
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> registered =
      co_await internal::RegisterMemory(context, memory, bytes, access, home);
  if (registered.ok()) (*registered)->HoldDevice(opened);
  co_return registered;
}

Task<void> Runtime::DeregisterMemory(std::unique_ptr<RegisteredMemory> memory) {
  const internal::Shard* shard = core_->ShardHere();
  VERBENA_CHECK(shard != nullptr) << "memory is deregistered in a task of the runtime";
  if (const internal::Endpoint* endpoint = shard->EndpointWith(memory->region().pd())) {
    [[maybe_unused]] const auto use = endpoint->Use();
    co_await internal::DeregisterMemory(endpoint->context(), std::move(memory));
    co_return;
  }
  // This executor does not use the device, or the device has failed since. If a Buffer is in use,
  // only the home's thread may destroy the memory.
  if (!memory->LeaveRing()) co_return;
  // `end` returns no Status, so RunBlocking() runs it even if the caller is cancelled. Otherwise
  // the frame of such a caller would deregister the memory on this executor.
  auto end = [memory = std::move(memory)]() mutable { memory.reset(); };
  try {
    co_await RunBlocking(std::move(end));
  } catch (const std::system_error& refused) {
    VERBENA_LOG_LINE(
        kRuntime, kWarning,
        fmt::format("memory was deregistered on executor {}: the system starts no thread for it: "
                    "{}",
                    shard->index(), refused.what()),
        {{"executor", shard->index()}});
  }
}

}  // namespace verbena
