// replica_server: one replica of one shard as a process, until SIGINT or SIGTERM.
//
//   replica_server --etcd=127.0.0.1:2379 --name=s1 --replicas=s1,s2,s3 --directory=/var/s1

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/admin.h"
#include "examples/common/signals.h"
#include "examples/kv/rocks_store.h"
#include "examples/replicated_kv/replica.h"
#include "examples/replicated_kv/replica_service.h"
#include "examples/replicated_kv/replica_store.h"
#include "fmt/format.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

ABSL_FLAG(std::string, address, "127.0.0.1:0", "Host and port to listen at.");
ABSL_FLAG(std::string, admin, "", "Host and port of the admin server.");
ABSL_FLAG(std::string, etcd, "", "etcd's host:port.");
ABSL_FLAG(std::string, prefix, "replicated_kv", "Of all keys in etcd.");
ABSL_FLAG(uint32_t, shard, 0, "The shard.");
ABSL_FLAG(std::string, name, "", "This replica's name.");
ABSL_FLAG(std::vector<std::string>, replicas, {}, "Names of all replicas of the shard.");
ABSL_FLAG(std::string, directory, "", "Where RocksDB has its files.");

namespace replicated_kv {
namespace {

using verbena::Runtime;
using verbena::Server;

constexpr std::chrono::seconds kGrace(2);
constexpr size_t kWriteBufferBytes = size_t{8} << 20;

absl::StatusOr<ReplicaOptions> OptionsFromFlags() {
  ReplicaOptions options;
  options.shard = absl::GetFlag(FLAGS_shard);
  options.name = absl::GetFlag(FLAGS_name);
  options.replicas = absl::GetFlag(FLAGS_replicas);
  options.prefix = fmt::format("{}/shard-{}", absl::GetFlag(FLAGS_prefix), options.shard);
  // Its text parses if all names are allowed.
  const ShardState first = FirstState(options.replicas);
  if (!IsInSync(first, options.name) || !ParseShardState(ShardStateText(first)).ok()) {
    return absl::InvalidArgumentError(fmt::format(
        "--replicas must be 1 to {} names of letters, digits, - and _, and have '{}' among them",
        kMaxReplicas, options.name));
  }
  return options;
}

// A replica that fails ends the process, as a signal does.
verbena::Task<absl::Status> RunToTheEnd(Replica& replica, std::string address) {
  absl::Status status = co_await replica.Run(std::move(address));
  if (!status.ok()) kill(getpid(), SIGTERM);
  co_return status;
}

absl::Status Serve() {
  VERBENA_ASSIGN_OR_RETURN(const ReplicaOptions options, OptionsFromFlags());
  // Before there are other threads, so that none of them takes the signal.
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<examples::StopSignals> signals,
                           examples::StopSignals::Block());
  // One executor: all of the replica's state is its own.
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Start({.executors = 1}));
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<verbena::Admin> admin,
                           examples::StartAdmin(*runtime, absl::GetFlag(FLAGS_admin)));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<kv::RocksStore> rocks,
                           kv::RocksStore::Open({.directory = absl::GetFlag(FLAGS_directory),
                                                 .durable = true,
                                                 // Entries and position are there up to one.
                                                 .ends_at_failure = true,
                                                 .write_buffer_bytes = kWriteBufferBytes,
                                                 .cache_bytes = kWriteBufferBytes}));
  ReplicaStore store(std::move(rocks));
  const std::string etcd_address = absl::GetFlag(FLAGS_etcd);
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<verbena::EtcdClient> etcd,
                           verbena::EtcdClient::Start({.endpoints = {etcd_address}}));
  // Each replica registers below a prefix of its own, which is a target for the others.
  const std::string target = fmt::format("etcd://{}/{}/replicas/", etcd_address, options.prefix);
  std::vector<OtherReplica> peers;
  for (const std::string& name : options.replicas) {
    if (name == options.name) continue;
    peers.push_back({name, std::make_unique<verbena::Channel>(*runtime, target + name)});
  }
  Replica replica(options, store, *etcd, std::move(peers));
  ReplicatedKvService kv(replica);
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                           Server::Start(*runtime, {&kv, &replica},
                                         {.address = absl::GetFlag(FLAGS_address),
                                          .dedupe = {.store = &kv},
                                          .registration = {.target = target + options.name,
                                                           .name = options.name,
                                                           .ttl = options.ttl}}));
  verbena::JoinHandle<absl::Status> runs = runtime->Spawn(RunToTheEnd(replica, server->address()));
  examples::PrintAddresses(server->address(), admin.get());
  signals->WaitForLast();
  runtime->BlockOn(replica.HandOver());
  server->Shutdown(kGrace);
  server.reset();
  runs.RequestCancel();
  return runs.Join();
}

int Main(int argc, char** argv) {
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    fmt::print(stderr, "replica_server: '{}' is not an option\n", words[1]);
    return 1;
  }
  const absl::Status status = Serve();
  if (!status.ok()) fmt::print(stderr, "replica_server: {}\n", std::string(status.message()));
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace replicated_kv

int main(int argc, char** argv) { return replicated_kv::Main(argc, argv); }
