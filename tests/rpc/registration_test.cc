// A server enters itself into the directory that its options name, and leaves it before it ends the
// calls that it has; options that are wrong fail its start. The directory is the test's own.

#include "verbena/rpc/resolver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/server_set.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace registration_test {

using internal::Directory;
using internal::EtcdTarget;
using internal::Registrar;
using internal::ServerEntry;
using std::chrono::seconds;

// Remembers what it was told; process-wide, as directories are.
class TestDirectory final : public Directory {
 public:
  std::shared_ptr<Resolver> MakeResolver(EtcdTarget target) const override {
    last_target = std::move(target);
    auto resolver = std::make_shared<FakeResolver>();
    last_resolver = resolver;
    return resolver;
  }
  std::unique_ptr<Registrar> MakeRegistrar(EtcdTarget target, ServerEntry entry,
                                           Duration ttl) const override {
    last_target = std::move(target);
    last_entry = std::move(entry);
    last_ttl = ttl;
    return std::make_unique<TestRegistrar>(*this);
  }
  void Reset() {
    runs = removals = 0;
    removal_hangs = false;
    on_removal = nullptr;
  }

  mutable EtcdTarget last_target;
  mutable ServerEntry last_entry;
  mutable Duration last_ttl = Duration::zero();
  mutable std::shared_ptr<FakeResolver> last_resolver;
  mutable std::atomic<int> runs = 0;
  mutable std::atomic<int> removals = 0;
  mutable bool removal_hangs = false;
  mutable std::function<void()> on_removal;

 private:
  class TestRegistrar final : public Registrar {
   public:
    explicit TestRegistrar(const TestDirectory& directory) : directory_(directory) {}
    Task<void> Run() override {
      ++directory_.runs;
      registered_ = true;
      (void)co_await SleepUntil(kNever);
    }
    Task<absl::Status> Remove() override {
      ++directory_.removals;
      registered_ = false;
      if (directory_.on_removal != nullptr) directory_.on_removal();
      if (directory_.removal_hangs) co_return co_await SleepUntil(kNever);
      co_return absl::OkStatus();
    }
    bool registered() const override { return registered_; }

   private:
    const TestDirectory& directory_;
    std::atomic<bool> registered_ = false;
  };
};

TestDirectory& directory() {
  static auto* instance = new TestDirectory();
  return *instance;
}

// The first case sees a program that links no directory; the others have one.
class RegistrationTest : public ServerSetTest {
 protected:
  void SetUp() override {
    if (!Directory::Etcd().ok()) {
      CheckWithoutDirectory();
      Directory::Enter(directory());
    }
    directory().Reset();
    if (server_runtime_ == nullptr) server_runtime_ = StartRuntime({.executors = 2});
  }

  void CheckWithoutDirectory() {
    server_runtime_ = StartRuntime({.executors = 2});
    const absl::Status server = Start({.target = kTarget}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(server)) << server;
    for (const char* named : {"Verbena::etcd", "verbena-etcd", "@verbena//rpc:etcd"}) {
      EXPECT_NE(server.message().find(named), std::string::npos) << server;
    }
    StartClient(kTarget);
    const absl::Status call = Run(Echo());
    EXPECT_NE(call.message().find("@verbena//rpc:etcd"), std::string::npos) << call;
    EXPECT_EQ(OutcomeOf(call), Outcome::kNotExecuted);
  }

  absl::StatusOr<std::unique_ptr<Server>> Start(RegistrationOptions registration,
                                                std::string address = "127.0.0.1:0") {
    return Server::Start(*server_runtime_, {&service_},
                         {.address = std::move(address), .registration = std::move(registration)});
  }

  static constexpr const char* kTarget = "etcd://e:2379/storage";
  TestingService service_;
};

TEST_F(RegistrationTest, AServerRegistersAsItsOptionsSay) {
  const auto server = Start({.target = kTarget,
                             .name = "storage-7",
                             .addresses = {"10.0.0.7:4000", "10.1.0.7:4000"},
                             .zone = "a",
                             .weight = 3,
                             .ttl = seconds(5)});
  ASSERT_TRUE(server.ok()) << server.status();
  Eventually([&] { return (*server)->stats().registered; }, "the server is registered");
  const ServerEntry& entry = directory().last_entry;
  EXPECT_EQ(entry.server.name, "storage-7");
  EXPECT_EQ(entry.server.addresses, (std::vector<std::string>{"10.0.0.7:4000", "10.1.0.7:4000"}));
  EXPECT_EQ(entry.server.zone, "a");
  EXPECT_EQ(entry.server.weight, 3u);
  EXPECT_EQ(entry.devices, server_runtime_->device_names());
  EXPECT_EQ(entry.executors, 2u);
  EXPECT_EQ(directory().last_target.prefix, "storage/");
  EXPECT_EQ(directory().last_ttl, Duration(seconds(5)));
}

TEST_F(RegistrationTest, ItsNameAndAddressAreThoseThatItListensAt) {
  const auto server = Start({.target = kTarget});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(directory().last_entry.server.name, (*server)->address());
  EXPECT_EQ(directory().last_entry.server.addresses,
            std::vector<std::string>{(*server)->address()});
}

TEST_F(RegistrationTest, AServerWithoutATargetDoesNotRegister) {
  const auto server = Start({.name = "storage-7"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_FALSE((*server)->stats().registered);
  EXPECT_EQ(directory().runs, 0);
}

TEST_F(RegistrationTest, AServerThatShutsDownLeavesTheDirectoryBeforeItEndsCalls) {
  auto server = Start({.target = kTarget});
  ASSERT_TRUE(server.ok()) << server.status();
  StartClient((*server)->address());
  JoinHandle<absl::Status> waits =
      client_runtime_->Spawn([](testing::Testing::Stub& stub) -> Task<absl::Status> {
        co_return (co_await stub.Wait(testing::WaitRequest())).status();
      }(*stub_));
  EXPECT_EQ(Run(service_.waiting.Until(1)), absl::OkStatus()) << "the handler runs";
  int cancelled_before = -1;
  directory().on_removal = [&] { cancelled_before = service_.cancelled; };
  EXPECT_TRUE((*server)->Shutdown(Duration::zero()).empty());
  EXPECT_EQ(directory().removals, 1);
  EXPECT_EQ(cancelled_before, 0) << "the handler still ran";
  EXPECT_EQ(service_.cancelled, 1);
  EXPECT_FALSE(waits.Join().ok());
  EXPECT_FALSE((*server)->stats().registered);
  server->reset();
  EXPECT_EQ(directory().removals, 1) << "once";
}

TEST_F(RegistrationTest, ADirectoryThatDoesNotAnswerDelaysNoShutdownForLong) {
  const auto server = Start({.target = kTarget});
  ASSERT_TRUE(server.ok()) << server.status();
  directory().removal_hangs = true;
  EXPECT_TRUE((*server)->Shutdown(Duration::zero()).empty());
  EXPECT_EQ(directory().removals, 1);
}

TEST_F(RegistrationTest, OptionsThatAreWrongFailTheStart) {
  const struct {
    RegistrationOptions options;
    const char* says;
    const char* address = "127.0.0.1:0";
  } kCases[] = {
      {{.target = "static:a:1"}, "none that a server can register at"},
      {{.target = "storage-7:4000"}, "none that a server can register at"},
      {{.target = "etcd://e/s"}, "position 9: the port is missing"},
      {{.target = kTarget, .name = "a b"}, "a server's name"},
      {{.target = kTarget, .zone = "\n"}, "a server's zone"},
      {{.target = kTarget, .addresses = {""}}, "address of the server is empty"},
      {{.target = kTarget, .addresses = std::vector<std::string>(9, "a:1")}, "9 addresses"},
      {{.target = kTarget, .weight = 0}, "weight is 0"},
      {{.target = kTarget, .weight = 1001}, "weight is 1001"},
      {{.target = kTarget, .ttl = std::chrono::milliseconds(1999)}, "ttl is 1999 ms"},
      {{.target = kTarget, .ttl = seconds(601)}, "ttl is 601000 ms"},
      {{.target = kTarget}, "set addresses", "0.0.0.0:0"},
  };
  for (const auto& each : kCases) {
    const absl::Status status = Start(each.options, each.address).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << each.says << ": " << status;
    EXPECT_NE(status.message().find(each.says), std::string::npos) << each.says << ": " << status;
  }
}

TEST_F(RegistrationTest, AChannelAsksTheDirectoryForItsServers) {
  members_.push_back(std::make_unique<Member>());
  StartServer(0);
  StartClient("etcds://e:1,[::1]:2/storage?ca=/ca.pem");
  EXPECT_EQ(directory().last_target.endpoints, (std::vector<std::string>{"e:1", "[::1]:2"}));
  EXPECT_TRUE(directory().last_target.tls);
  EXPECT_EQ(directory().last_target.ca_file, "/ca.pem");
  directory().last_resolver->Tell(*client_runtime_, ResolvedAll());
  EXPECT_EQ(Run(Echo({.wait_for_ready = true})), absl::OkStatus());
}

}  // namespace registration_test
}  // namespace verbena
