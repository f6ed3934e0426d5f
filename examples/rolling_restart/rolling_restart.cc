// Three server processes behind one channel are restarted one after another under load, and no call
// fails.
//
// The program starts itself three times as a server, and calls the three from 16 Tasks without a
// pause. One server after another is told to stop, and its successor starts at the same address.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/rolling_restart/rolling_restart.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

extern char** environ;

namespace rolling_restart {
namespace {

using std::chrono::seconds;
using verbena::Channel;
using verbena::ChannelServer;
using verbena::Runtime;
using verbena::Server;
using verbena::Task;

constexpr int kServers = 3;
constexpr int kCallers = 16;

class StoreService final : public Store::Service {
  Task<absl::Status> Put(verbena::ServerContext&, const PutRequest&, PutReply& reply) override {
    reply.set_pid(getpid());
    co_return absl::OkStatus();
  }
};

// --- The server's process.

// Says its address on standard output, and serves until its standard input ends.
int Serve(const std::string& address) {
  StoreService service;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << "\n", 1;
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(**runtime, {&service}, {.address = address});
  if (!server.ok()) return std::cerr << server.status() << "\n", 1;
  std::cout << (*server)->address() << std::endl;
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
  // Tells the clients, and lets their calls end.
  (void)(*server)->Shutdown(seconds(10));
  return 0;
}

class ServerProcess {
 public:
  // Returns when it listens. Empty address(): it did not start.
  explicit ServerProcess(const std::string& address) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    std::string program = "/proc/self/exe";
    std::string serve = "--serve";
    std::string where = address;
    char* arguments[] = {program.data(), serve.data(), where.data(), nullptr};
    if (posix_spawn(&pid_, program.c_str(), &files, nullptr, arguments, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&files);
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    char c;
    while (read(out[0], &c, 1) == 1 && c != '\n') address_.push_back(c);
    close(out[0]);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  // Stops it, and waits for its end.
  ~ServerProcess() {
    close(input_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }

  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

// --- The client. All of it runs on one executor, so nothing needs a lock.

struct Load {
  bool ends = false;
  uint64_t answered = 0;
  uint64_t failed = 0;
  std::map<int32_t, uint64_t> by_process;
};

Task<void> PutAgainAndAgain(Channel& channel, Load& load) {
  const Store::Stub store(channel);
  PutRequest request;
  request.set_key("key");
  request.set_value("value");
  while (!load.ends) {
    // A call that finds no server waits for one.
    const absl::StatusOr<PutReply> reply =
        co_await store.Put(request, {.deadline = seconds(30), .wait_for_ready = true});
    if (reply.ok()) {
      ++load.answered;
      ++load.by_process[reply->pid()];
    } else {
      ++load.failed;
      std::cerr << reply.status() << " ("
                << verbena::OutcomeName(verbena::OutcomeOf(reply.status())) << ")\n";
    }
  }
}

Task<void> RunLoad(Channel& channel, Load& load) {
  std::vector<Task<void>> callers;
  callers.reserve(kCallers);
  for (int i = 0; i < kCallers; ++i) callers.push_back(PutAgainAndAgain(channel, load));
  co_await verbena::WhenAll(std::move(callers));
}

// Waits until all servers are ready, as each change of their states is told.
Task<absl::Status> AwaitAll(Channel& channel) {
  uint64_t seen = 0;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel.ServersChanged(seen));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel.Servers());
    int ready = 0;
    for (const ChannelServer& each : servers) {
      if (each.state == ChannelServer::State::kReady) ++ready;
    }
    if (ready == kServers) co_return absl::OkStatus();
  }
}

Task<void> End(Load& load) {
  load.ends = true;
  co_return;
}

// Until each of them has answered calls.
Task<void> AwaitProcesses(Load& load, size_t processes) {
  while (load.by_process.size() < processes) {
    (void)co_await verbena::Sleep(std::chrono::milliseconds(1));
  }
}

// Restarts one after another, and returns how many processes have answered calls by then.
absl::StatusOr<size_t> RestartEach(Runtime& runtime, Channel& channel, Load& load,
                                   std::vector<std::unique_ptr<ServerProcess>>& servers) {
  size_t processes = servers.size();
  // A process that is gone before it has answered would be missing in the count for ever.
  runtime.BlockOn(AwaitProcesses(load, processes));
  for (size_t i = 0; i < servers.size(); ++i) {
    const std::string address = servers[i]->address();
    servers[i].reset();
    servers[i] = std::make_unique<ServerProcess>(address);
    if (servers[i]->address().empty()) return absl::InternalError("a server does not start again");
    // The next one only when this one takes calls again.
    VERBENA_RETURN_IF_ERROR(runtime.BlockOn(AwaitAll(channel)));
    runtime.BlockOn(AwaitProcesses(load, ++processes));
    std::cout << "server " << i + 1 << " of " << kServers << " restarted" << std::endl;
  }
  return processes;
}

int Restart() {
  std::vector<std::unique_ptr<ServerProcess>> servers;
  std::string target = "static:";
  for (int i = 0; i < kServers; ++i) {
    servers.push_back(std::make_unique<ServerProcess>("127.0.0.1:0"));
    if (servers.back()->address().empty()) return std::cerr << "a server does not start\n", 1;
    target += (i == 0 ? "" : ",") + servers.back()->address();
  }
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << "\n", 1;
  Channel channel(**runtime, target);
  if (absl::Status ready = (*runtime)->BlockOn(AwaitAll(channel)); !ready.ok()) {
    return std::cerr << ready << "\n", 1;
  }
  Load load;
  verbena::JoinHandle<void> runs = (*runtime)->Spawn(RunLoad(channel, load));
  const absl::StatusOr<size_t> processes = RestartEach(**runtime, channel, load, servers);
  // Also after an error: the callers use what is destroyed with this function.
  (*runtime)->BlockOn(End(load));
  runs.Join();
  if (!processes.ok()) return std::cerr << processes.status() << "\n", 1;
  std::cout << "calls: " << (load.answered > 0 ? "answered" : "none") << " by " << *processes
            << " processes, failed " << load.failed << std::endl;
  std::cerr << load.answered << " calls were answered\n";
  return load.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rolling_restart

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--serve") return rolling_restart::Serve(argv[2]);
  return rolling_restart::Restart();
}
