#include "tests/rpc/server_set.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/status.h"

namespace verbena {

Task<FakeResolver::Answer> FakeResolver::Next() {
  VERBENA_CO_RETURN_IF_ERROR(co_await changed_.Wait());
  changed_.Reset();
  ++asked;
  co_return answer_;
}

void FakeResolver::Tell(Runtime& runtime, Answer answer) {
  EXPECT_EQ(runtime.BlockOn(Set(std::move(answer))), absl::OkStatus());
}

Task<absl::Status> FakeResolver::Set(Answer answer) {
  answer_ = std::move(answer);
  changed_.Set();
  co_return absl::OkStatus();
}

ServerSetTest::~ServerSetTest() {
  for (const auto& each : members_) each->service.let_go = true;
}

void ServerSetTest::StartServers(int count, RuntimeOptions runtime) {
  server_runtime_ = StartRuntime(std::move(runtime));
  for (int i = 0; i < count; ++i) {
    members_.push_back(std::make_unique<Member>());
    StartServer(i);
  }
}

void ServerSetTest::StartServer(int index) {
  Member& member = *members_[index];
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      *server_runtime_, {&member.service, &member.streams}, {.address = member.port.address()});
  ASSERT_TRUE(server.ok()) << server.status();
  member.server = *std::move(server);
}

ResolvedServer ServerSetTest::Resolved(int index, uint32_t weight, std::string zone) const {
  return {.addresses = {Address(index)}, .weight = weight, .zone = std::move(zone)};
}

std::vector<ResolvedServer> ServerSetTest::ResolvedAll() const {
  std::vector<ResolvedServer> all;
  for (size_t i = 0; i < members_.size(); ++i) all.push_back(Resolved(static_cast<int>(i)));
  return all;
}

std::string ServerSetTest::StaticTarget() const {
  std::string target;
  for (const auto& each : members_) {
    target += (target.empty() ? "static:" : ",") + each->port.address();
  }
  return target;
}

void ServerSetTest::StartClient(std::string target, ChannelOptions options,
                                RuntimeOptions runtime) {
  if (client_runtime_ == nullptr) client_runtime_ = StartRuntime(std::move(runtime));
  channel_ = std::make_unique<Channel>(*client_runtime_, std::move(target), std::move(options));
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  streams_ = std::make_unique<testing::Streaming::Stub>(*channel_);
}

void ServerSetTest::StartResolved(std::vector<ResolvedServer> servers, ChannelOptions options,
                                  RuntimeOptions runtime) {
  resolver_ = std::make_shared<FakeResolver>();
  options.resolver = resolver_;
  StartClient("the set", std::move(options), std::move(runtime));
  resolver_->Tell(*client_runtime_, std::move(servers));
}

Task<absl::Status> ServerSetTest::Echo(CallOptions options) {
  testing::EchoRequest request;
  request.set_number(7);
  co_return (co_await stub_->Echo(request, std::move(options))).status();
}

void ServerSetTest::EchoOften(int calls, std::optional<uint64_t> route_key) {
  for (int i = 0; i < calls; ++i) {
    ASSERT_EQ(Run(Echo({.route_key = route_key})), absl::OkStatus());
  }
}

size_t ServerSetTest::CountOf(ChannelServer::State state,
                              const std::vector<ChannelServer>& servers) {
  return static_cast<size_t>(
      std::count_if(servers.begin(), servers.end(),
                    [state](const ChannelServer& each) { return each.state == state; }));
}

void ServerSetTest::AwaitReady(size_t count, int executor) {
  AwaitServers(
      [count](const std::vector<ChannelServer>& servers) {
        return CountOf(ChannelServer::State::kReady, servers) == count;
      },
      executor);
}

std::vector<uint64_t> ServerSetTest::TakeEchoes() {
  std::vector<uint64_t> since;
  seen_.resize(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    const uint64_t now = members_[i]->service.echoes();
    since.push_back(now - std::exchange(seen_[i], now));
  }
  return since;
}

Task<absl::StatusOr<std::vector<ChannelServer>>> ServerSetTest::ServersHere() {
  co_return channel_->Servers();
}

}  // namespace verbena
