// The admin server says how its process is: ready or why not, also from the first moment of a
// shutdown, what it does and what it counts, also while an executor is held. Beyond loopback it
// says little.

#include "verbena/rpc/admin.h"
#include "verbena/rpc/log.h"

#include <gmock/gmock.h>

#include <atomic>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/admin/http_client.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/device/fragile_devices.h"
#include "verbena/rpc/naming/registrar.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {
namespace admin_test {

using internal::Ask;
using internal::Directory;
using internal::HttpAnswer;
using internal::HttpClient;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A directory of servers whose entries come and go as the test says.
class TestDirectory final : public Directory {
 public:
  static TestDirectory& Instance() {
    static auto* instance = [] {
      auto* made = new TestDirectory();
      Directory::Enter(*made);
      return made;
    }();
    return *instance;
  }

  std::shared_ptr<Resolver> MakeResolver(internal::EtcdTarget) const override { return nullptr; }
  std::unique_ptr<internal::Registrar> MakeRegistrar(internal::EtcdTarget, internal::ServerEntry,
                                                     Duration) const override {
    return std::make_unique<TestRegistrar>(*this);
  }

  std::atomic<bool> has_entry = false;
  std::function<void()> on_removal = [] {};  // on the server's first executor

 private:
  class TestRegistrar final : public internal::Registrar {
   public:
    explicit TestRegistrar(const TestDirectory& directory) : directory_(directory) {}
    Task<void> Run() override { (void)co_await SleepUntil(kNever); }
    Task<absl::Status> Remove() override {
      directory_.on_removal();
      co_return absl::OkStatus();
    }
    bool registered() const override { return directory_.has_entry; }

   private:
    const TestDirectory& directory_;
  };
};

class AdminTest : public RpcTest {
 protected:
  void StartAdmin(AdminOptions options = {}) {
    if (server_runtime_ == nullptr) server_runtime_ = StartRuntime({.executors = 2});
    options.socket = path_.text();
    absl::StatusOr<std::unique_ptr<Admin>> admin = Admin::Start(*server_runtime_, options);
    ASSERT_TRUE(admin.ok()) << admin.status();
    admin_ = *std::move(admin);
  }
  HttpClient Tcp() const { return HttpClient::OverTcp(admin_->address()); }
  HttpClient Socket() const { return HttpClient::OverSocket(path_.text()); }
  HttpAnswer Get(const std::string& target) const { return Ask(Tcp(), "GET", target); }
  void ExpectReady() const {
    const HttpAnswer answer = Get("/readyz");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.body, "ready\n");
  }
  // `why` is part of a line.
  void ExpectNotReady(const std::string& why) const {
    const HttpAnswer answer = Get("/readyz");
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_THAT(answer.body, StartsWith("not ready\nnot ready: "));
    EXPECT_THAT(answer.body, HasSubstr(why));
  }
  boost::json::value StatusOf() const { return boost::json::parse(Get("/status.json").body); }

  const internal::SocketPath path_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(AdminTest, APageForEachQuestion) {
  StartAdmin();
  Serve();
  EXPECT_EQ(Get("/healthz").body, "alive\n");
  ExpectReady();
  const HttpAnswer page = Get("/status");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.head, HasSubstr("Content-Type: text/html; charset=utf-8"));
  EXPECT_THAT(page.body, HasSubstr("<td>" + server_->address() + "</td>"));
  EXPECT_THAT(Get("/status.json").head, HasSubstr("Content-Type: application/json"));
  const HttpAnswer none = Get("/statu");
  EXPECT_EQ(none.status, 404);
  EXPECT_EQ(none.body,
            "there is no such page, only /healthz, /readyz, /metrics, /status, /status.json, "
            "/log\n");
}

TEST_F(AdminTest, StatusCountsWhatTheServersDid) {
  StartAdmin();
  Serve();
  StartClient();
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Run(EchoOnce(i, "text")), absl::OkStatus());
  const boost::json::value status = StatusOf();
  EXPECT_EQ(status.at("ready").as_bool(), true);
  const boost::json::value& server = status.at("servers").at(0);
  EXPECT_EQ(server.at("address").as_string(), server_->address().c_str());
  EXPECT_EQ(server.at("calls").to_number<int>(), 5);
  EXPECT_EQ(status.at("executors").as_array().size(), 2u);
  EXPECT_EQ(status.at("peers").at(0).at("source").as_string(), "127.0.0.1");
  int links = 0;
  for (const boost::json::value& device : status.at("devices").as_array()) {
    links += device.at("links").to_number<int>();
  }
  EXPECT_GE(links, 1);
  EXPECT_FALSE(status.at("memory").as_array().empty());
}

TEST_F(AdminTest, StatusTellsTheCallsOfEachMethod) {
  StartAdmin({.servers = 0});
  Serve();
  StartClient();
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Run(EchoOnce(i, "text")), absl::OkStatus());
  // A call is counted once its response is posted, perhaps after the client has it.
  Eventually([&] { return StatusOf().at("methods").at(0).at("ended").to_number<int>() == 5; },
             "the calls are counted");
  const boost::json::value method = StatusOf().at("methods").at(0);
  EXPECT_EQ(method.at("method").as_string(), "verbena.testing.Testing/Echo");
  EXPECT_EQ(method.at("side").as_string(), "server");
  EXPECT_EQ(method.at("begun").to_number<int>(), 5);
  EXPECT_GT(method.at("p99_seconds").as_double(), 0);
  EXPECT_THAT(Get("/status").body, HasSubstr("<td>verbena.testing.Testing/Echo</td>"));
}

TEST_F(AdminTest, MetricsAreThoseOfNow) {
  StartAdmin();
  Serve();
  StartClient();
  EXPECT_EQ(Run(EchoOnce(1, "text")), absl::OkStatus());
  const HttpAnswer answer = Get("/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer.body, HasSubstr("verbena_server_calls_begun_total{rpc_method="
                                     "\"verbena.testing.Testing/Echo\"} 1\n"));
  // A scrape asks the executors, and has the client's link if they answer in time.
  const std::regex link("verbena_links\\{[^}]*\\} [1-9]");
  Eventually([&] { return std::regex_search(Get("/metrics").body, link); }, "the link is there");
  const HttpAnswer head = Ask(Tcp(), "HEAD", "/metrics");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST_F(AdminTest, AScraperMayAskForOpenMetrics) {
  StartAdmin();
  HttpClient client = Tcp();
  // Two headers are one.
  client.Send(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain;q=0.5\r\n"
      "Accept: application/openmetrics-text;version=1.0.0\r\n\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/openmetrics-text; version=1.0.0; "
                                     "charset=utf-8\r\n"));
  EXPECT_THAT(answer.body, ::testing::EndsWith("# EOF\n"));
}

TEST_F(AdminTest, BeyondLoopbackOnlyProbesAndMetricsAreServed) {
  StartAdmin({.address = "0.0.0.0:0"});
  Serve();
  // Kubernetes probes a pod by its address.
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_EQ(Ask(Tcp(), "GET", path, "10.1.2.3:9180").status, 200) << path;
  }
  for (const char* path : {"/status", "/status.json", "/log"}) {
    const HttpAnswer answer = Get(path);
    EXPECT_EQ(answer.status, 403) << path;
    EXPECT_THAT(answer.body, HasSubstr("ask its Unix socket"));
    EXPECT_NE(Ask(Socket(), "GET", path).status, 403) << path;
  }
  EXPECT_EQ(Get("/nothing").body, "there is no such page, only /healthz, /readyz, /metrics\n");
}

TEST_F(AdminTest, OnlyTheSocketTakesChanges) {
  StartAdmin();
  const HttpAnswer over_tcp = Ask(Tcp(), "POST", "/log", "localhost", "info");
  EXPECT_EQ(over_tcp.status, 403);
  EXPECT_THAT(over_tcp.body, HasSubstr("POST /log is taken on the Unix socket alone"));
  const HttpAnswer over_socket = Ask(Socket(), "POST", "/log", "localhost", "info");
  EXPECT_EQ(over_socket.status, 200) << over_socket.body;
  EXPECT_EQ(SetLogLevels("warning"), absl::OkStatus());
}

TEST_F(AdminTest, LevelsOfTheLogAreShownAndSet) {
  StartAdmin();
  const std::string before = LogLevels();
  EXPECT_EQ(Ask(Socket(), "POST", "/log", "localhost", "error,link=debug\n").body,
            LogLevels() + "\n");
  EXPECT_THAT(Get("/log").body, HasSubstr("link=debug"));
  const HttpAnswer wrong = Ask(Socket(), "POST", "/log", "localhost", "lnik=debug");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("lnik"));
  EXPECT_THAT(Get("/log").body, HasSubstr("link=debug"));
  EXPECT_EQ(SetLogLevels(before), absl::OkStatus());
}

TEST_F(AdminTest, OtherMethodsAreRefused) {
  StartAdmin();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"}) {
    const HttpAnswer answer = Ask(Socket(), method, "/readyz");
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_EQ(answer.body, "/readyz takes GET and HEAD alone\n");
    EXPECT_THAT(answer.head, HasSubstr("Allow: GET, HEAD\r\n"));
  }
  EXPECT_THAT(Ask(Socket(), "PUT", "/log").head, HasSubstr("Allow: GET, HEAD, POST\r\n"));
  EXPECT_EQ(Ask(Socket(), "HEAD", "/healthz").status, 200);
}

TEST_F(AdminTest, AProcessIsReadyWhileItsServersServe) {
  StartAdmin({.servers = 2});
  ExpectNotReady("0 of 2 servers have started (AdminOptions::servers");
  Serve();
  ExpectNotReady("1 of 2 servers have started");
  std::unique_ptr<Server> second = *Server::Start(*server_runtime_, {});
  ExpectReady();
  second->Shutdown(Duration::zero());
  ExpectNotReady("the server " + second->address() + " shuts down");
  second.reset();
  ExpectNotReady("1 of 2 servers have started");
}

TEST_F(AdminTest, AProcessThatOnlyCallsNeedsNoServer) {
  StartAdmin({.servers = 0});
  ExpectReady();
}

TEST_F(AdminTest, AServerThatDrainsServesOnAndIsNotReady) {
  testing::FakeClock clock;
  server_runtime_ = StartRuntime({.executors = 2, .clock = &clock});
  StartAdmin();
  Serve({.drain_delay = std::chrono::seconds(5)});
  ExpectReady();
  StartClient();
  std::atomic<bool> ended = false;
  std::thread shutdown([&] {
    server_->Shutdown(std::chrono::seconds(1));
    ended = true;
  });
  Eventually([this] { return Get("/readyz").status == 503; }, "the server is not ready");
  ExpectNotReady("the server " + server_->address() + " shuts down");
  // The client's first call: a new link, too.
  EXPECT_EQ(Run(EchoOnce(1, "served")), absl::OkStatus());
  EXPECT_FALSE(ended);
  clock.Run();
  clock.Advance(*server_runtime_, std::chrono::seconds(5));
  shutdown.join();
  EXPECT_FALSE(Run(EchoOnce(2, "refused")).ok());
  admin_.reset();
  StopAll();
}

TEST_F(AdminTest, ANegativeDrainDelayIsRefused) {
  server_runtime_ = StartRuntime();
  const absl::Status server =
      Server::Start(*server_runtime_, {&service_}, {.drain_delay = Duration(-1)}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(server)) << server;
  EXPECT_THAT(server.message(), HasSubstr("ServerOptions::drain_delay is -1 ns"));
}

TEST_F(AdminTest, AServerIsReadyOnceItsDirectoryHasIt) {
  TestDirectory& directory = TestDirectory::Instance();
  directory.has_entry = false;
  StartAdmin();
  Serve({.registration = {.target = "etcd://e:2379/storage"}});
  ExpectNotReady("is not registered in its directory yet");
  directory.has_entry = true;
  ExpectReady();
  directory.has_entry = false;
  const HttpAnswer lost = Get("/readyz");
  EXPECT_EQ(lost.status, 200) << "clients keep the servers that they know";
  EXPECT_EQ(lost.body, "ready\ndegraded: the server " + server_->address() +
                           " is no longer registered in its directory\n");
}

TEST_F(AdminTest, AShutdownIsKnownBeforeTheDirectoryIs) {
  TestDirectory& directory = TestDirectory::Instance();
  directory.has_entry = true;
  StartAdmin();
  Serve({.registration = {.target = "etcd://e:2379/storage"}});
  ExpectReady();
  // Executor 0 is held meanwhile, too.
  bool known = false;
  directory.on_removal = [&] {
    ExpectNotReady("shuts down");
    known = true;
  };
  server_->Shutdown(Duration::zero());
  directory.on_removal = [] {};
  EXPECT_TRUE(known);
}

TEST_F(AdminTest, TheApplicationMaySayThatItIsNotReady) {
  std::atomic<int> state = 0;
  StartAdmin({.check = [&state]() -> absl::Status {
    if (state == 1) return absl::UnavailableError("the volume\nis replayed");
    if (state == 2) throw std::runtime_error("no disk");
    return absl::OkStatus();
  }});
  Serve();
  ExpectReady();
  state = 1;
  ExpectNotReady("AdminOptions::check: UNAVAILABLE: the volume\\nis replayed\n");
  state = 2;
  ExpectNotReady("AdminOptions::check: INTERNAL: it threw: no disk\n");
  EXPECT_EQ(Get("/healthz").status, 200);
}

TEST_F(AdminTest, WithoutADeviceAProcessIsNotReady) {
  internal::FragileDevices devices("fragile");
  const RuntimeOptions options{
      .reopen = {.first = std::chrono::milliseconds(1), .longest = std::chrono::milliseconds(4)}};
  server_runtime_ = StartRuntime(options, {.open = [&devices] { return devices.Open(); }});
  StartAdmin();
  Serve();
  ExpectReady();
  client_runtime_ = StartRuntime();
  devices.Refuse(1'000'000);
  devices.Fail();
  Eventually([this] { return Get("/readyz").status == 503; }, "the device is lost");
  ExpectNotReady("no device is in service");
  EXPECT_THAT(Get("/readyz").body, HasSubstr("degraded: fragile has failed"));
  devices.Refuse(0);
  Eventually([this] { return Get("/readyz").status == 200; }, "the device is open again");
  admin_.reset();
  StopAll();
}

TEST_F(AdminTest, AHeldExecutorIsShownAndHoldsUpNoAnswer) {
  // They outlive the executors, one of which waits in them.
  std::latch held(1);
  std::latch let_go(1);
  StartAdmin();
  Serve();
  const auto hold = [&]() -> Task<void> {
    held.count_down();
    let_go.wait();
    co_return;
  };
  server_runtime_->Spawn(hold(), 1);
  held.wait();
  const boost::json::value status = StatusOf();
  EXPECT_TRUE(status.at("executors").at(0).at("age_seconds").is_double());
  EXPECT_TRUE(status.at("executors").at(1).at("age_seconds").is_null()) << "it never answered";
  EXPECT_THAT(Get("/status").body, HasSubstr("executor 1 has not answered yet"));
  EXPECT_EQ(Get("/healthz").status, 200);
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("# TYPE verbena_server_calls_begun_total counter\n"));
  EXPECT_THAT(metrics, HasSubstr("verbena_executor_report_age_seconds{executor=\"1\"} "))
      << "its age is that of the question";
  ExpectReady();
  let_go.count_down();
  client_runtime_ = StartRuntime();
  Eventually([this] { return StatusOf().at("executors").at(1).at("age_seconds").is_double(); },
             "the executor answers again");
}

TEST_F(AdminTest, WhatTheRuntimeDoesWithoutIsDegraded) {
  StartAdmin({.degraded_is_unready = true});
  Serve();
  ExpectReady();
  internal::CoreOf(*server_runtime_).NoteDegraded("mlx5_0 is not used: no memory");
  const HttpAnswer answer = Get("/readyz");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body,
            "not ready\nnot ready: the process is degraded (AdminOptions::degraded_is_unready)\n"
            "degraded: mlx5_0 is not used: no memory\n");
}

TEST_F(AdminTest, OptionsThatAreWrongAreRefused) {
  server_runtime_ = StartRuntime();
  const absl::Status neither = Admin::Start(*server_runtime_, {.address = ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(neither)) << neither;
  const absl::Status name = Admin::Start(*server_runtime_, {.address = "storage:1"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(name)) << name;
}

TEST(AdminDeathTest, ARuntimeThatEndsBeforeItsAdminAborts) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto runtime = *Runtime::Start({.device = "soft"});
        auto admin = *Admin::Start(*runtime);
        runtime.reset();
      },
      "a Runtime is destroyed before its Admin");
}

}  // namespace admin_test
}  // namespace verbena
