// ServerSetTest: a fixture with several servers in one process, a client whose channel stands for
// the set, and a resolver that says what the test tells it to.

#ifndef VERBENA_TESTS_RPC_SERVER_SET_H_
#define VERBENA_TESTS_RPC_SERVER_SET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_service.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/held_port.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sync.h"

namespace verbena {

// Used on the executor that resolves, which is the client's first; Tell() comes from the test.
class FakeResolver final : public Resolver {
 public:
  using Answer = absl::StatusOr<std::vector<ResolvedServer>>;

  Task<Answer> Next() override {
    VERBENA_CO_RETURN_IF_ERROR(co_await changed_.Wait());
    changed_.Reset();
    ++asked;
    co_return answer_;
  }
  void Refresh() override { ++refreshed; }

  void Tell(Runtime& runtime, Answer answer) {
    EXPECT_EQ(runtime.BlockOn(Set(std::move(answer))), absl::OkStatus());
  }

  std::atomic<int> asked{0};
  std::atomic<int> refreshed{0};

 private:
  Task<absl::Status> Set(Answer answer) {
    answer_ = std::move(answer);
    changed_.Set();
    co_return absl::OkStatus();
  }

  Answer answer_;
  Event changed_;
};

class ServerSetTest : public RuntimePair {
 protected:
  struct Member {
    TestingService service;
    StreamingService streams;
    HeldPort port;
    std::unique_ptr<Server> server;
  };

  ~ServerSetTest() override {
    for (const auto& each : members_) each->service.let_go = true;
  }

  void StartServers(int count, RuntimeOptions runtime = {}) {
    server_runtime_ = StartRuntime(std::move(runtime));
    for (int i = 0; i < count; ++i) {
      members_.push_back(std::make_unique<Member>());
      StartServer(i);
    }
  }
  // Also again, at the address that it had.
  void StartServer(int index) {
    Member& member = *members_[index];
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
        *server_runtime_, {&member.service, &member.streams}, {.address = member.port.address()});
    ASSERT_TRUE(server.ok()) << server.status();
    member.server = *std::move(server);
  }
  void StopServer(int index) { members_[index]->server.reset(); }

  std::string Address(int index) const { return members_[index]->port.address(); }
  ResolvedServer Resolved(int index, uint32_t weight = 1, std::string zone = "") const {
    return {.addresses = {Address(index)}, .weight = weight, .zone = std::move(zone)};
  }
  std::vector<ResolvedServer> ResolvedAll() const {
    std::vector<ResolvedServer> all;
    for (size_t i = 0; i < members_.size(); ++i) all.push_back(Resolved(static_cast<int>(i)));
    return all;
  }
  // "static:" and all of them.
  std::string StaticTarget() const {
    std::string target;
    for (const auto& each : members_) {
      target += (target.empty() ? "static:" : ",") + each->port.address();
    }
    return target;
  }

  void StartClient(std::string target, ChannelOptions options = {}, RuntimeOptions runtime = {}) {
    if (client_runtime_ == nullptr) client_runtime_ = StartRuntime(std::move(runtime));
    channel_ = std::make_unique<Channel>(*client_runtime_, std::move(target), std::move(options));
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    streams_ = std::make_unique<testing::Streaming::Stub>(*channel_);
  }
  // With a channel that hears of its servers from resolver_.
  void StartResolved(std::vector<ResolvedServer> servers, ChannelOptions options = {},
                     RuntimeOptions runtime = {}) {
    resolver_ = std::make_shared<FakeResolver>();
    options.resolver = resolver_;
    StartClient("the set", std::move(options), std::move(runtime));
    resolver_->Tell(*client_runtime_, std::move(servers));
  }

  Task<absl::Status> Echo(CallOptions options = {}) {
    testing::EchoRequest request;
    request.set_number(7);
    co_return (co_await stub_->Echo(request, std::move(options))).status();
  }
  void EchoOften(int calls, std::optional<uint64_t> route_key = {}) {
    for (int i = 0; i < calls; ++i) {
      ASSERT_EQ(Run(Echo({.route_key = route_key})), absl::OkStatus());
    }
  }
  std::vector<ChannelServer> Servers(int executor = 0) { return *Run(ServersHere(), executor); }
  static size_t CountOf(ChannelServer::State state, const std::vector<ChannelServer>& servers) {
    return static_cast<size_t>(
        std::count_if(servers.begin(), servers.end(),
                      [state](const ChannelServer& each) { return each.state == state; }));
  }
  // Waits until `holds` says yes of the channel's servers. The channel tells of each change.
  template <typename Condition>
  void AwaitServers(Condition holds, int executor = 0) {
    ASSERT_EQ(Run(UntilServers(std::move(holds)), executor), absl::OkStatus());
  }
  void AwaitReady(size_t count, int executor = 0) {
    AwaitServers(
        [count](const std::vector<ChannelServer>& servers) {
          return CountOf(ChannelServer::State::kReady, servers) == count;
        },
        executor);
  }
  // The handlers of Echo that have run since the last call, by server.
  std::vector<uint64_t> TakeEchoes() {
    std::vector<uint64_t> since;
    seen_.resize(members_.size());
    for (size_t i = 0; i < members_.size(); ++i) {
      const uint64_t now = members_[i]->service.echoes();
      since.push_back(now - std::exchange(seen_[i], now));
    }
    return since;
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::shared_ptr<FakeResolver> resolver_;
  std::unique_ptr<testing::Testing::Stub> stub_;
  std::unique_ptr<testing::Streaming::Stub> streams_;

 private:
  Task<absl::StatusOr<std::vector<ChannelServer>>> ServersHere() { co_return channel_->Servers(); }
  template <typename Condition>
  Task<absl::Status> UntilServers(Condition holds) {
    for (uint64_t seen = 0;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel_->ServersChanged(seen));
      VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel_->Servers());
      if (holds(servers)) co_return absl::OkStatus();
    }
  }

  std::vector<uint64_t> seen_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_SERVER_SET_H_
