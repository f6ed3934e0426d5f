// Three servers behind one channel: calls in turns, a server that restarts, keys that stay with
// their servers, and a set that a file names.

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "examples/balanced/balanced.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace balanced {
namespace {

using verbena::Balancing;
using verbena::Channel;
using verbena::ChannelServer;
using verbena::Runtime;
using verbena::Server;
using verbena::Task;

class MemberService final : public Members::Service {
 public:
  explicit MemberService(std::string name) : name_(std::move(name)) {}

 private:
  Task<absl::Status> Who(verbena::ServerContext&, const WhoRequest&, WhoReply& reply) override {
    reply.set_server(name_);
    co_return absl::OkStatus();
  }

  const std::string name_;
};

// A server that can be stopped, and started again at the address that it had.
struct Member {
  Member(Runtime& runtime, std::string name) : service(std::move(name)) { Start(runtime); }
  void Start(Runtime& runtime) {
    absl::StatusOr<std::unique_ptr<Server>> started =
        Server::Start(runtime, {&service}, {.address = address});
    if (!started.ok()) {
      std::cerr << "a server does not start: " << started.status() << "\n";
      std::exit(1);
    }
    server = *std::move(started);
    address = server->address();
  }

  MemberService service;
  std::string address = "127.0.0.1:0";
  std::unique_ptr<Server> server;
};

// The servers that answered, with how many calls each; "failed" for those that none did.
Task<std::map<std::string, int>> Ask(Channel& channel, int calls,
                                     std::optional<uint64_t> key = {}) {
  const Members::Stub members(channel);
  std::map<std::string, int> answers;
  for (int i = 0; i < calls; ++i) {
    // A call that finds no server waits for one, at most 10 s.
    const absl::StatusOr<WhoReply> reply = co_await members.Who(
        WhoRequest(),
        {.deadline = std::chrono::seconds(10), .route_key = key, .wait_for_ready = true});
    ++answers[reply.ok() ? reply->server() : "failed"];
  }
  co_return answers;
}

// Waits until `count` servers of the channel are connected. Calls need not wait: they go to those
// that are. Here it makes the output the same each time.
Task<absl::Status> AwaitReady(Channel& channel, size_t count) {
  uint64_t seen = 0;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel.ServersChanged(seen));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel.Servers());
    size_t ready = 0;
    for (const ChannelServer& each : servers) ready += each.state == ChannelServer::State::kReady;
    if (ready == count) co_return absl::OkStatus();
  }
}

std::string Text(const std::map<std::string, int>& answers) {
  return absl::StrJoin(answers, ", ", absl::PairFormatter(" "));
}

void TakeTurns(Runtime& client, Runtime& servers, const std::string& target, Member& second) {
  Channel channel(client, target);
  (void)client.BlockOn(AwaitReady(channel, 3));
  std::cout << "in turns: " << Text(client.BlockOn(Ask(channel, 30))) << "\n";
  second.server.reset();
  std::cout << "without b: " << Text(client.BlockOn(Ask(channel, 30))) << "\n";
  second.Start(servers);
  (void)client.BlockOn(AwaitReady(channel, 3));
  std::cout << "b is back: " << Text(client.BlockOn(Ask(channel, 30))) << "\n";
}

void FollowKeys(Runtime& client, const std::string& target) {
  Channel channel(client, target, {.balancing = Balancing::kRouteKey});
  (void)client.BlockOn(AwaitReady(channel, 3));
  int settled = 0;
  for (uint64_t key = 1; key <= 100; ++key) {
    if (client.BlockOn(Ask(channel, 3, key)).size() == 1) ++settled;
  }
  std::cout << "keys with a server of their own: " << settled << " of 100\n";
}

// As configuration management does it: a new file takes the place of the old one.
void WriteList(const std::string& path, const std::string& lines) {
  std::ofstream(path + ".new") << lines;
  std::rename((path + ".new").c_str(), path.c_str());
}

void FollowFile(Runtime& client, const Member& a, const Member& b) {
  const char* folder = std::getenv("TMPDIR");
  const std::string path =
      std::string(folder == nullptr ? "/tmp" : folder) + "/balanced." + std::to_string(getpid());
  WriteList(path, a.address + "\n");
  Channel channel(client, "file://" + path, {.balancing = Balancing::kWeighted});
  std::cout << "the file names a: " << Text(client.BlockOn(Ask(channel, 4))) << "\n";
  WriteList(path, a.address + " weight=1\n" + b.address + " weight=3\n");
  (void)client.BlockOn(AwaitReady(channel, 2));
  std::cout << "the file names b, too: " << Text(client.BlockOn(Ask(channel, 4))) << "\n";
  std::remove(path.c_str());
}

int Main() {
  absl::StatusOr<std::unique_ptr<Runtime>> servers = Runtime::Start();
  absl::StatusOr<std::unique_ptr<Runtime>> client = Runtime::Start();
  if (!servers.ok() || !client.ok()) {
    std::cerr << servers.status() << " " << client.status() << "\n";
    return 1;
  }
  std::vector<std::unique_ptr<Member>> members;
  for (const char* name : {"a", "b", "c"}) {
    members.push_back(std::make_unique<Member>(**servers, name));
  }
  const std::string target =
      "static:" + members[0]->address + "," + members[1]->address + "," + members[2]->address;
  TakeTurns(**client, **servers, target, *members[1]);
  FollowKeys(**client, target);
  FollowFile(**client, *members[0], *members[1]);
  return 0;
}

}  // namespace
}  // namespace balanced

int main() { return balanced::Main(); }
