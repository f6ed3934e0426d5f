#include "examples/rolling/cluster.h"

#include <signal.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace rolling {

using examples::ServerProcess;

namespace {

constexpr std::chrono::milliseconds kLookEvery(20);
constexpr std::chrono::seconds kPatience(60);

}  // namespace

absl::Status Cluster::StartAll() {
  for (size_t server = 0; server < size(); ++server) VERBENA_RETURN_IF_ERROR(Start(server));
  for (size_t shard = 0; shard < options_.shards; ++shard) {
    VERBENA_RETURN_IF_ERROR(AwaitInSync(shard));
  }
  return absl::OkStatus();
}

absl::Status Cluster::StopAll() {
  absl::Status status;
  for (size_t server = 0; server < size(); ++server) status.Update(Stop(server));
  return status;
}

absl::Status Cluster::Start(size_t server) {
  const std::string name = NameOf(server);
  const std::string directory = fmt::format("{}/{}", options_.directory, name);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::InternalError(fmt::format("{}: {}", directory, error.message()));
  const size_t shard = ShardOf(server);
  std::string replicas;
  for (size_t i = 0; i < kReplicas; ++i) {
    replicas += (i == 0 ? "" : ",") + NameOf(shard * kReplicas + i);
  }
  VERBENA_ASSIGN_OR_RETURN(
      processes_[server],
      ServerProcess::Start(options_.server,
                           {"--etcd=" + options_.etcd, "--prefix=" + options_.prefix,
                            "--name=" + name, "--directory=" + directory, "--replicas=" + replicas,
                            fmt::format("--shard={}", shard)}));
  return processes_[server]->WaitUntilReady(signals_);
}

absl::Status Cluster::Stop(size_t server) {
  if (processes_[server] == nullptr) return absl::OkStatus();
  absl::Status stopped = processes_[server]->Stop(signals_);
  processes_[server].reset();
  return stopped;
}

// A ServerProcess that is destroyed is killed.
void Cluster::Kill(size_t server) { processes_[server].reset(); }

absl::Status Cluster::LoseDisk(size_t server) const {
  const std::string directory = fmt::format("{}/{}", options_.directory, NameOf(server));
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) return absl::InternalError(fmt::format("{}: {}", directory, error.message()));
  return absl::OkStatus();
}

void Cluster::Freeze(size_t server) const { kill(processes_[server]->pid(), SIGSTOP); }

void Cluster::Thaw(size_t server) const { kill(processes_[server]->pid(), SIGCONT); }

absl::StatusOr<replicated_kv::ShardState> Cluster::State(size_t shard) {
  const std::string key = fmt::format("{}/shard-{}/state", options_.prefix, shard);
  VERBENA_ASSIGN_OR_RETURN(const verbena::EtcdRange range, runtime_.BlockOn(etcd_.Get(key)));
  if (range.entries.empty()) return absl::UnavailableError(key + " is not in etcd");
  return replicated_kv::ParseShardState(range.entries.front().value);
}

absl::StatusOr<size_t> Cluster::PrimaryOf(size_t shard) {
  VERBENA_ASSIGN_OR_RETURN(const replicated_kv::ShardState state, State(shard));
  for (size_t i = 0; i < kReplicas; ++i) {
    const size_t server = shard * kReplicas + i;
    if (NameOf(server) == state.primary) return server;
  }
  return absl::UnavailableError(fmt::format("shard {} has no primary", shard));
}

absl::Status Cluster::AwaitInSync(size_t shard) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const absl::StatusOr<replicated_kv::ShardState> state = State(shard);
    if (state.ok() && state->epoch > 1 && state->in_sync.size() == kReplicas) {
      return absl::OkStatus();
    }
    VERBENA_RETURN_IF_ERROR(Pause(kLookEvery));
  }
  return absl::DeadlineExceededError(
      fmt::format("the replicas of shard {} are not in sync after a minute", shard));
}

absl::Status Cluster::Pause(std::chrono::milliseconds delay) {
  if (signals_.WaitReadable(-1, delay) != examples::Woken::kBySignal) return absl::OkStatus();
  return absl::CancelledError("interrupted");
}

}  // namespace rolling
