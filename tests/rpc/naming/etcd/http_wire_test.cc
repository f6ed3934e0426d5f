// A client of etcd speaks HTTP and TLS, goes on to the next endpoint when one is gone or slow, says
// whether a request may have reached etcd, and takes bounded memory whatever a server sends.

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/naming/etcd/canned_server.h"
#include "tests/support/full_listener.h"
#include "tests/support/held_port.h"
#include "tests/transport/connect/waiting_scheduler.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/client.h"
#include "verbena/rpc/naming/etcd/http.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {
namespace http_wire_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kEmptyRange = R"({"header":{"revision":"7"}})";

// Waits for the thread of all clients; the scheduler's time stands still.
template <typename T>
T AwaitOn(WaitingScheduler& scheduler, Task<T> task) {
  class Done final : public TaskListener {
   public:
    bool done = false;

   private:
    void OnTaskDone() override { done = true; }
  } completion;
  task.StartLater(scheduler, nullptr, &completion);
  scheduler.RunUntil([&completion] { return completion.done; });
  return task.TakeResult();
}

class HttpWireTest : public ::testing::Test {
 protected:
  static std::unique_ptr<EtcdClient> Client(std::vector<std::string> endpoints,
                                            Duration timeout = seconds(20)) {
    auto client = EtcdClient::Start({.endpoints = std::move(endpoints), .timeout = timeout});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  template <typename T>
  T Await(Task<T> task) {
    return AwaitOn(scheduler_, std::move(task));
  }

  WaitingScheduler scheduler_{WaitingScheduler::Time::kStanding};
};

TEST_F(HttpWireTest, PostsJsonAndDemandsALeader) {
  std::string seen;
  CannedServer server([&](CannedServer::Connection& connection, const std::string& request) {
    seen = request;
    connection.Answer(kEmptyRange);
  });
  const auto range = Await(Client({server.address()})->Get("a"));
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(range->revision, 7);
  EXPECT_TRUE(seen.starts_with("POST /v3/kv/range HTTP/1.1\r\n")) << seen;
  EXPECT_NE(seen.find("Grpc-Metadata-hasleader: true\r\n"), std::string::npos) << seen;
  EXPECT_NE(seen.find("Host: " + server.address()), std::string::npos) << seen;
  EXPECT_TRUE(seen.ends_with(R"({"key":"YQ=="})")) << seen;
}

TEST_F(HttpWireTest, SendsTheTokenOfALogin) {
  const std::string path = ::testing::TempDir() + "/password.wire." + std::to_string(getpid());
  std::ofstream(path) << "secret\n";
  std::vector<std::string> seen;
  CannedServer server([&](CannedServer::Connection& connection, const std::string& request) {
    seen.push_back(request);
    connection.Answer(R"({"header":{"revision":"7"},"token":"abc.12"})");
  });
  const auto client = EtcdClient::Start({.endpoints = {server.address()},
                                         .timeout = seconds(20),
                                         .user = "me",
                                         .password_file = path});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(Await((*client)->Get("a")).ok());
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_TRUE(seen[0].ends_with(R"({"name":"me","password":"secret"})")) << seen[0];
  EXPECT_EQ(seen[0].find("Authorization"), std::string::npos) << seen[0];
  EXPECT_NE(seen[1].find("Authorization: abc.12\r\n"), std::string::npos) << seen[1];
  std::remove(path.c_str());
}

TEST_F(HttpWireTest, AnEndpointMayBeTheNameOfAHost) {
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  });
  const std::string port = server.address().substr(server.address().rfind(':'));
  EXPECT_TRUE(Await(Client({"localhost" + port})->Get("a")).ok());
  // Longer than a label may be, so that nobody is asked.
  const absl::Status unknown = Await(Client({std::string(64, 'h') + port})->Get("a")).status();
  EXPECT_NE(unknown.message().find("cannot resolve its name"), std::string::npos) << unknown;
  EXPECT_EQ(OutcomeOf(unknown), Outcome::kNotExecuted);
}

TEST_F(HttpWireTest, GoesOnToTheNextEndpoint) {
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  });
  const HeldPort nobody, nobody_else;
  const auto client = Client({nobody.address(), nobody_else.address(), server.address()});
  EXPECT_TRUE(Await(client->Get("a")).ok());
  EXPECT_TRUE(Await(client->Get("a")).ok());
  EXPECT_EQ(server.requests(), 2);
}

TEST_F(HttpWireTest, ARequestThatNoEndpointTookDidNotRun) {
  const HeldPort nobody, nobody_else;
  const auto client = Client({nobody.address(), nobody_else.address()});
  const absl::Status status = Await(client->Commit(EtcdTxn().Put("a", "1"))).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_NE(status.message().find("etcd at 127.0.0.1:"), std::string::npos) << status;
}

TEST_F(HttpWireTest, ARequestWithoutAnAnswerMayHaveRun) {
  CannedServer server([](CannedServer::Connection&, const std::string&) {});
  const auto client = Client({server.address()});
  const absl::Status status = Await(client->Commit(EtcdTxn().Put("a", "1"))).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_EQ(server.requests(), 1) << "nothing is sent twice";
}

TEST_F(HttpWireTest, AnEndpointThatDoesNotAnswerIsLeftForAnother) {
  CannedServer slow(
      [](CannedServer::Connection& connection, const std::string&) { connection.AwaitClose(); });
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  });
  // On a busy machine connecting may take too long, or the other server's answer. So several
  // clients try.
  absl::Status first, second;
  const auto is_left = [&] {
    const auto client = Client({slow.address(), server.address()}, milliseconds(300));
    first = Await(client->Get("a")).status();
    second = Await(client->Get("a")).status();
    return absl::IsUnavailable(first) &&
           first.message().find("no answer within 300 ms") != std::string::npos && second.ok();
  };
  bool left = false;
  for (int i = 0; i < 20 && !left; ++i) left = is_left();
  EXPECT_TRUE(left) << first << ", then " << second;
}

// The descriptors of this process.
ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST_F(HttpWireTest, ASilentAddressOfAnEndpointHidesNoOther) {
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  });
  const HostPort at = *ParseHostPort(server.address());
  const FullListener silent("127.0.0.2", at.port);
  NameLookups lookups([&at](const std::string&) {
    return NameAnswer{.addresses = {SocketAddress(*ParseIp("127.0.0.2"), 0),
                                    SocketAddress(*ParseIp(at.host), 0)}};
  });
  // The kernel tries the silent one for 25 s.
  const EtcdOptions options{.endpoints = {FormatHostPort("etcd", at.port)}, .timeout = seconds(10)};
  auto wire = StartHttpWire(
      options,
      {.answer_bytes = EtcdClient::kMaxAnswerBytes, .endpoints = EtcdClient::kMaxEndpoints},
      lookups);
  ASSERT_TRUE(wire.ok()) << wire.status();
  const auto client = EtcdCore::MakeClient(*std::move(wire), options);
  const absl::Status answered = Await(client->Get("a")).status();
  EXPECT_TRUE(answered.ok()) << answered;
}

TEST_F(HttpWireTest, AnAttemptThatIsGivenUpConnectsNoMore) {
  const FullListener full;
  const auto client = Client({full.address()}, milliseconds(20));
  const auto give_up = [&] {
    const absl::Status status = Await(client->Get("a")).status();
    EXPECT_NE(status.message().find("no connection within 20 ms"), std::string::npos) << status;
  };
  give_up();  // opens what all later ones share
  const ptrdiff_t before = OpenDescriptors();
  for (int i = 0; i < 3; ++i) give_up();
  // The kernel would try for two minutes.
  const TimePoint limit = Clock::Real().Now() + seconds(20);
  while (OpenDescriptors() > before && Clock::Real().Now() < limit) std::this_thread::yield();
  EXPECT_LE(OpenDescriptors(), before);
}

TEST_F(HttpWireTest, AMemberThatAnswersUnavailableIsLeftForAnother) {
  CannedServer lost([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(R"({"message":"etcdserver: no leader","code":14})", 503);
  });
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  });
  // Some clients begin with the other one.
  while (lost.requests() == 0) {
    const auto client = Client({lost.address(), server.address()});
    const absl::Status first = Await(client->Get("a")).status();
    if (lost.requests() > 0) {
      EXPECT_NE(first.message().find("no leader"), std::string::npos) << first;
    }
    EXPECT_TRUE(Await(client->Get("a")).ok());
  }
  EXPECT_EQ(lost.requests(), 1);
}

TEST_F(HttpWireTest, ClientsBeginWithDifferentMembers) {
  const auto answer = [](CannedServer::Connection& connection, const std::string&) {
    connection.Answer(kEmptyRange);
  };
  CannedServer first(answer), second(answer), third(answer);
  const auto all_were_asked = [&] {
    return first.requests() > 0 && second.requests() > 0 && third.requests() > 0;
  };
  for (int i = 0; i < 200 && !all_were_asked(); ++i) {
    const auto client = Client({first.address(), second.address(), third.address()});
    EXPECT_TRUE(Await(client->Get("a")).ok());
  }
  EXPECT_TRUE(all_were_asked());
}

TEST_F(HttpWireTest, WhateverIsNoHttpIsAnError) {
  for (const char* bytes : {"garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    CannedServer server([bytes](CannedServer::Connection& connection, const std::string&) {
      connection.Write(bytes);
    });
    const absl::Status status = Await(Client({server.address()})->Get("a")).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << bytes << ": " << status;
    EXPECT_NE(status.message().find(server.address()), std::string::npos) << status;
  }
}

TEST_F(HttpWireTest, AnAnswerIsBounded) {
  const std::string large(EtcdClient::kMaxAnswerBytes + 1, ' ');
  for (const bool chunked : {false, true}) {
    CannedServer server([&](CannedServer::Connection& connection, const std::string&) {
      if (!chunked) return connection.Answer(large);
      connection.BeginChunks();
      connection.Chunk(large);
      connection.AwaitClose();
    });
    const absl::Status status = Await(Client({server.address()})->Get("a")).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("more than 4194304 bytes"), std::string::npos) << status;
  }
}

TEST_F(HttpWireTest, AWatchGivesLinesHoweverTheyAreCut) {
  const std::string line = R"({"result":{"header":{"revision":"8"},"events":[)"
                           R"({"kv":{"key":"YQ==","value":"Yg==","mod_revision":"8"}}]}})"
                           "\n";
  CannedServer server([&](CannedServer::Connection& connection, const std::string&) {
    connection.BeginChunks();
    connection.Chunk(R"({"result":{"header":{"revision":"7"},"created":true}})"
                     "\n");
    connection.Chunk(line.substr(0, 9));
    connection.Chunk(line.substr(9) + line + line.substr(0, 5));
    connection.Chunk(line.substr(5));
    connection.Write("0\r\n\r\n");
  });
  const auto client = Client({server.address()});
  const auto watch = client->Watch("a", 8);
  for (int i = 0; i < 3; ++i) {
    const auto changes = Await(watch->Next());
    ASSERT_TRUE(changes.ok()) << changes.status();
    ASSERT_EQ(changes->events.size(), 1u);
    EXPECT_EQ(changes->events[0].entry.value, "b");
  }
  EXPECT_TRUE(absl::IsUnavailable(Await(watch->Next()).status()));
}

TEST_F(HttpWireTest, ALineOfAWatchIsBounded) {
  CannedServer server([](CannedServer::Connection& connection, const std::string&) {
    connection.BeginChunks();
    connection.Chunk(std::string(EtcdClient::kMaxAnswerBytes + 1, ' '));
    connection.AwaitClose();
  });
  const auto client = Client({server.address()});
  const absl::Status status = Await(client->Watch("a", 8)->Next()).status();
  EXPECT_NE(status.message().find("more than 4194304 bytes"), std::string::npos) << status;
}

TEST_F(HttpWireTest, TheLengthThatAWatchClaimsTakesNoMemory) {
  // The second one is no address space's.
  for (const char* length : {"4194305", "4611686018427387904"}) {
    CannedServer server([length](CannedServer::Connection& connection, const std::string&) {
      connection.Write("HTTP/1.1 200 OK\r\nContent-Length: " + std::string(length) + "\r\n\r\n{");
      connection.AwaitClose();
    });
    const auto client = Client({server.address()});
    const absl::Status status = Await(client->Watch("a", 8)->Next()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("more than 4194304 bytes"), std::string::npos) << status;
  }
}

TEST_F(HttpWireTest, AWatchThatIsGivenUpCloses) {
  std::atomic<bool> closed = false;
  {
    CannedServer server([&](CannedServer::Connection& connection, const std::string&) {
      connection.BeginChunks();
      connection.Chunk("\n");
      connection.AwaitClose();
      closed = true;
      closed.notify_all();
    });
    const auto client = Client({server.address()});
    auto watch = client->Watch("a", 8);
    server.AwaitRequest();
    watch.reset();
    closed.wait(false);
  }
}

TEST_F(HttpWireTest, TlsIsSpokenWithThoseWhoseCertificateIsSigned) {
  const TestCertificate certificate;
  CannedServer server([](CannedServer::Connection& connection,
                         const std::string&) { connection.Answer(kEmptyRange); },
                      &certificate);
  const auto trusting = EtcdClient::Start({.endpoints = {server.address()},
                                           .timeout = seconds(20),
                                           .tls = true,
                                           .ca_file = certificate.path(),
                                           .certificate_file = certificate.path(),
                                           .key_file = certificate.key_path()});
  ASSERT_TRUE(trusting.ok()) << trusting.status();
  const absl::Status answered = Await((*trusting)->Get("a")).status();
  EXPECT_TRUE(answered.ok()) << answered;
  // The system's authorities have not signed it.
  const auto strict =
      EtcdClient::Start({.endpoints = {server.address()}, .timeout = seconds(20), .tls = true});
  ASSERT_TRUE(strict.ok()) << strict.status();
  const absl::Status refused = Await((*strict)->Get("a")).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
  EXPECT_NE(refused.message().find("TLS"), std::string::npos) << refused;
}

TEST_F(HttpWireTest, CertificatesAreReadAgainAfterAFailure) {
  const TestCertificate old;
  CannedServer server([](CannedServer::Connection& connection,
                         const std::string&) { connection.Answer(kEmptyRange); },
                      &old);
  const auto client = EtcdClient::Start({.endpoints = {server.address()},
                                         .timeout = seconds(20),
                                         .tls = true,
                                         .ca_file = old.path(),
                                         .certificate_file = old.path(),
                                         .key_file = old.key_path()});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(Await((*client)->Get("a")).ok());
  // The authority, the endpoint's certificate and the client's, all at once.
  const TestCertificate fresh;
  server.Use(fresh);
  const absl::Status refused = Await((*client)->Get("a")).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(OutcomeOf(refused), Outcome::kNotExecuted);
  const absl::Status answered = Await((*client)->Get("a")).status();
  EXPECT_TRUE(answered.ok()) << answered;
}

TEST_F(HttpWireTest, FilesThatCannotBeReadAgainLeaveTheOldCertificates) {
  const TestCertificate certificate;
  std::atomic<bool> answers = true;
  CannedServer server(
      [&answers](CannedServer::Connection& connection, const std::string&) {
        if (answers) connection.Answer(kEmptyRange);
      },
      &certificate);
  const auto client = EtcdClient::Start({.endpoints = {server.address()},
                                         .timeout = seconds(20),
                                         .tls = true,
                                         .ca_file = certificate.path(),
                                         .certificate_file = certificate.path(),
                                         .key_file = certificate.key_path()});
  ASSERT_TRUE(client.ok()) << client.status();
  std::remove(certificate.key_path().c_str());
  answers = false;
  EXPECT_FALSE(Await((*client)->Get("a")).ok());
  answers = true;
  const absl::Status answered = Await((*client)->Get("a")).status();
  EXPECT_TRUE(answered.ok()) << answered;
}

EtcdClient* g_client_at_exit = nullptr;

// The thread that all clients share is at rest: a call ends at once, and no client begins.
void ExpectRestAtExit() {
  if (EtcdClient::Start({.endpoints = {"127.0.0.1:1"}}).ok()) _exit(1);
  WaitingScheduler scheduler(WaitingScheduler::Time::kStanding);
  if (!absl::IsUnavailable(AwaitOn(scheduler, g_client_at_exit->Get("a")).status())) _exit(2);
}

void ExitWithTlsInUse() {
  // Registered ahead of all that TLS registers, and so called behind it.
  std::atexit(&ExpectRestAtExit);
  auto client = EtcdClient::Start({.endpoints = {"127.0.0.1:1"}, .tls = true});
  if (!client.ok()) _exit(3);
  g_client_at_exit = client->release();
  std::exit(0);
}

TEST_F(HttpWireTest, OpenSslIsAtRestWhenTheProcessExits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExitWithTlsInUse(), ::testing::ExitedWithCode(0), "");
}

TEST(EtcdOptionsTest, OptionsOutOfTheirRangeAreRefused) {
  const EtcdOptions kWrong[] = {
      {},
      {.endpoints = std::vector<std::string>(17, "a:1")},
      {.endpoints = {"a"}},
      {.endpoints = {"a:0x"}},
      {.endpoints = {"a:1"}, .timeout = milliseconds(9)},
      {.endpoints = {"a:1"}, .timeout = seconds(61)},
      {.endpoints = {"a:1"}, .ca_file = "/ca.pem"},
      {.endpoints = {"a:1"}, .tls = true, .ca_file = "/there/is/none"},
      {.endpoints = {"a:1"}, .tls = true, .key_file = "/key.pem"},
      {.endpoints = {"a:1"}, .user = "me"},
      {.endpoints = {"a:1"}, .password_file = "/password"},
      {.endpoints = {"a:1"}, .user = "me", .password_file = "/there/is/none"},
  };
  for (const EtcdOptions& wrong : kWrong) {
    const absl::Status status = EtcdClient::Start(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

}  // namespace http_wire_test
}  // namespace verbena::internal
