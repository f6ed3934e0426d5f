// ServerSetTest: a fixture with several servers in one process, a client whose channel stands for
// the set, and a resolver that says what the test tells it to.

#ifndef VERBENA_TESTS_RPC_SERVER_SET_H_
#define VERBENA_TESTS_RPC_SERVER_SET_H_

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
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/server.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sync.h"

namespace verbena {

// Used on the executor that resolves, which is the client's first; Tell() comes from the test.
class FakeResolver final : public Resolver {
 public:
  using Answer = absl::StatusOr<std::vector<ResolvedServer>>;

  Task<Answer> Next() override;
  void Refresh() override { ++refreshed; }

  void Tell(Runtime& runtime, Answer answer);

  std::atomic<int> asked{0};
  std::atomic<int> refreshed{0};

 private:
  Task<absl::Status> Set(Answer answer);

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

  ~ServerSetTest() override;

  void StartServers(int count, RuntimeOptions runtime = {});
  // Also again, at the address that it had.
  void StartServer(int index);
  void StopServer(int index) { members_[index]->server.reset(); }

  std::string Address(int index) const { return members_[index]->port.address(); }
  ResolvedServer Resolved(int index, uint32_t weight = 1, std::string zone = "") const;
  std::vector<ResolvedServer> ResolvedAll() const;
  // "static:" and all of them.
  std::string StaticTarget() const;

  void StartClient(std::string target, ChannelOptions options = {}, RuntimeOptions runtime = {});
  // With a channel that hears of its servers from resolver_.
  void StartResolved(std::vector<ResolvedServer> servers, ChannelOptions options = {},
                     RuntimeOptions runtime = {});

  Task<absl::Status> Echo(CallOptions options = {});
  void EchoOften(int calls, std::optional<uint64_t> route_key = {});
  std::vector<ChannelServer> Servers(int executor = 0) { return *Run(ServersHere(), executor); }
  static size_t CountOf(ChannelServer::State state, const std::vector<ChannelServer>& servers);
  // Waits until `holds` says yes of the channel's servers. The channel tells of each change.
  template <typename Condition>
  void AwaitServers(Condition holds, int executor = 0) {
    ASSERT_EQ(Run(UntilServers(std::move(holds)), executor), absl::OkStatus());
  }
  void AwaitReady(size_t count, int executor = 0);
  // The handlers of Echo that have run since the last call, by server.
  std::vector<uint64_t> TakeEchoes();

  std::vector<std::unique_ptr<Member>> members_;
  std::shared_ptr<FakeResolver> resolver_;
  std::unique_ptr<testing::Testing::Stub> stub_;
  std::unique_ptr<testing::Streaming::Stub> streams_;

 private:
  Task<absl::StatusOr<std::vector<ChannelServer>>> ServersHere();
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
