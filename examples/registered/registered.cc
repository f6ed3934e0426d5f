// Servers that register in etcd, and a client that knows nothing but etcd's address: it finds those
// that come, and leaves those that go.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "examples/balanced/balanced.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace registered {
namespace {

using balanced::Members;
using balanced::WhoReply;
using balanced::WhoRequest;
using verbena::Channel;
using verbena::ChannelServer;
using verbena::EtcdClient;
using verbena::EtcdEntry;
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

struct Member {
  Member(Runtime& runtime, const std::string& target, const std::string& name) : service(name) {
    // The address is the one that the server listens at. Another host would need one of the
    // network's.
    absl::StatusOr<std::unique_ptr<Server>> started =
        Server::Start(runtime, {&service}, {.registration = {.target = target, .name = name}});
    if (!started.ok()) {
      std::cerr << "a server does not start: " << started.status() << "\n";
      std::exit(1);
    }
    server = *std::move(started);
  }

  MemberService service;
  std::unique_ptr<Server> server;
};

// How many of `calls` each server answered.
Task<std::map<std::string, int>> Ask(Channel& channel, int calls) {
  const Members::Stub members(channel);
  std::map<std::string, int> answers;
  for (int i = 0; i < calls; ++i) {
    const absl::StatusOr<WhoReply> reply = co_await members.Who(
        WhoRequest(), {.deadline = std::chrono::seconds(10), .wait_for_ready = true});
    ++answers[reply.ok() ? reply->server() : "failed"];
  }
  co_return answers;
}

// Waits until the channel knows `count` servers and is connected to each. Calls need not wait: they
// go to those that are. Here it makes the output the same each time.
Task<absl::Status> AwaitServers(Channel& channel, size_t count) {
  uint64_t seen = 0;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel.ServersChanged(seen));
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel.Servers());
    size_t ready = 0;
    for (const ChannelServer& each : servers) ready += each.state == ChannelServer::State::kReady;
    if (servers.size() == count && ready == count) co_return absl::OkStatus();
  }
}

void Show(Runtime& client, Channel& channel, size_t servers, const std::string& what) {
  (void)client.BlockOn(AwaitServers(channel, servers));
  std::cout << what << ": "
            << absl::StrJoin(client.BlockOn(Ask(channel, 6)), ", ", absl::PairFormatter(" "))
            << "\n";
}

// The same client of etcd serves programs that keep state of their own there.
void ShowKeys(Runtime& client, const std::string& address) {
  absl::StatusOr<std::unique_ptr<EtcdClient>> etcd = EtcdClient::Start({.endpoints = {address}});
  if (!etcd.ok()) return;
  const auto range = client.BlockOn((*etcd)->List("demo/members/"));
  if (!range.ok()) return;
  const auto append = [](std::string* out, const EtcdEntry& each) { out->append(each.key); };
  std::cout << "keys in etcd: " << absl::StrJoin(range->entries, ", ", append) << "\n";
}

int Main() {
  const char* etcd = std::getenv("VERBENA_ETCD");
  if (etcd == nullptr) {
    std::cerr << "VERBENA_ETCD has no address of an etcd: run ./dev demo registered, which starts "
                 "one\n";
    return 1;
  }
  const std::string target = std::string("etcd://") + etcd + "/demo/members";
  absl::StatusOr<std::unique_ptr<Runtime>> servers = Runtime::Start();
  absl::StatusOr<std::unique_ptr<Runtime>> client = Runtime::Start();
  if (!servers.ok() || !client.ok()) {
    std::cerr << servers.status() << " " << client.status() << "\n";
    return 1;
  }
  Channel channel(**client, target);
  Member a(**servers, target, "a");
  Show(**client, channel, 1, "a registers");
  Member b(**servers, target, "b");
  Member c(**servers, target, "c");
  Show(**client, channel, 3, "b and c register, too");
  ShowKeys(**client, etcd);
  a.server->Shutdown(std::chrono::seconds(1));
  Show(**client, channel, 2, "a shuts down");
  ShowKeys(**client, etcd);
  return 0;
}

}  // namespace
}  // namespace registered

int main() { return registered::Main(); }
