// An admin server is asked at its address, at a name, or at its socket. Why there is no answer is
// one line that names whom was asked.

#include "tools/verbena/admin_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "tests/rpc/admin/http_client.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/name_lookup.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"

namespace verbena::command {
namespace admin_client_test {

using ::testing::HasSubstr;

// Listens, and accepts nobody by itself.
class Listener {
 public:
  Listener() {
    const internal::SocketAddress any(*internal::ParseIp("127.0.0.1"), 0);
    fd_ = internal::UniqueFd(socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(0, bind(fd_.get(), any.get(), any.size()));
    EXPECT_EQ(0, listen(fd_.get(), 1));
  }
  std::string address() const { return internal::SocketAddress::OfSocket(fd_.get()).text(); }
  // Answers one connection with `bytes`, whatever it asks, and ends it.
  void Answer(const std::string& bytes) {
    const internal::UniqueFd peer(accept(fd_.get(), nullptr, nullptr));
    char request[4096];
    (void)recv(peer.get(), request, sizeof(request), 0);
    (void)send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

 private:
  internal::UniqueFd fd_;
};

void ExpectFailure(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  const std::string message(status.message().data(), status.message().size());
  EXPECT_EQ(code, status.code()) << status;
  EXPECT_THAT(message, HasSubstr(text));
  EXPECT_EQ(0, std::count(message.begin(), message.end(), '\n')) << message;
}

// What AskAdmin() makes of a server that answers with `bytes`.
absl::Status FailureAfter(const std::string& bytes, const AdminLimits& limits = {}) {
  Listener listener;
  std::thread server([&] { listener.Answer(bytes); });
  const absl::Status status = AskAdmin(listener.address(), "/status.json", limits).status();
  server.join();
  return status;
}

class AdminClientTest : public ::testing::Test {
 protected:
  AdminClientTest() {
    runtime_ = *Runtime::Start({.device = "soft"});
    admin_ = *Admin::Start(*runtime_, {.socket = path_.text()});
  }

  const internal::SocketPath path_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(AdminClientTest, AsksAtEachOfItsAddresses) {
  const std::string port = admin_->address().substr(admin_->address().rfind(':'));
  for (const std::string& admin : {admin_->address(), "localhost" + port, "unix:" + path_.text()}) {
    const absl::StatusOr<std::string> answer = AskAdmin(admin, "/healthz");
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ("alive\n", *answer);
  }
}

TEST_F(AdminClientTest, ARefusalIsNoAnswer) {
  ExpectFailure(AskAdmin(admin_->address(), "/statu").status(),
                absl::StatusCode::kFailedPrecondition, "refuses /statu: 404 there is no such page");
}

TEST_F(AdminClientTest, AnAnswerThatIsTooLargeIsRefused) {
  ExpectFailure(AskAdmin(admin_->address(), "/metrics", {.max_bytes = 10}).status(),
                absl::StatusCode::kResourceExhausted, "more than 10 bytes");
}

TEST_F(AdminClientTest, NobodyListensThere) {
  const std::string gone = admin_->address();
  admin_.reset();
  ExpectFailure(AskAdmin(gone, "/healthz").status(), absl::StatusCode::kUnavailable, gone);
  ExpectFailure(AskAdmin("unix:/no/such/socket", "/healthz").status(),
                absl::StatusCode::kUnavailable, "unix:/no/such/socket");
}

TEST(AskAdminTest, WhatIsNoAddressIsNamed) {
  for (const std::string admin : {"9180", "", "/run/store/admin.sock", "host:port"}) {
    ExpectFailure(AskAdmin(admin, "/healthz").status(), absl::StatusCode::kInvalidArgument,
                  "'" + admin + "' is no admin server: give host:port");
  }
  ExpectFailure(AskAdmin("unix:/" + std::string(200, 'a'), "/healthz").status(),
                absl::StatusCode::kInvalidArgument, "this one has 201");
}

TEST(AskAdminTest, WhoSpeaksOtherwiseIsNoAdminServer) {
  ExpectFailure(FailureAfter("VRBN\1\2\3\n"), absl::StatusCode::kFailedPrecondition,
                "does not answer as an admin server does");
  ExpectFailure(FailureAfter(""), absl::StatusCode::kFailedPrecondition,
                "does not answer as an admin server does");
  ExpectFailure(FailureAfter("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnone\n"),
                absl::StatusCode::kFailedPrecondition, "refuses /status.json: 404 none");
}

TEST(AskAdminTest, AServerThatSaysNothingIsGivenUp) {
  const Listener silent;
  ExpectFailure(
      AskAdmin(silent.address(), "/healthz", {.timeout = std::chrono::milliseconds(1)}).status(),
      absl::StatusCode::kDeadlineExceeded, silent.address());
}

TEST(AskAdminTest, ANameThatTakesLongToLookUpIsGivenUp) {
  absl::Notification given_up;
  absl::Notification over;
  internal::NameLookups lookups([&](const std::string& name) {
    given_up.WaitForNotification();
    over.Notify();
    return internal::NameAnswer{.code = absl::StatusCode::kNotFound, .why = name};
  });
  ExpectFailure(
      AskAdmin("storage-7:9180", "/healthz", {.timeout = std::chrono::milliseconds(1)}, lookups)
          .status(),
      absl::StatusCode::kDeadlineExceeded, "looking up storage-7 takes too long");
  given_up.Notify();
  over.WaitForNotification();
}

TEST(AskAdminTest, ANameThatThereIsNotIsNamed) {
  internal::NameLookups lookups([](const std::string&) {
    return internal::NameAnswer{.code = absl::StatusCode::kNotFound, .why = "no such name"};
  });
  ExpectFailure(AskAdmin("storage-7:9180", "/healthz", {}, lookups).status(),
                absl::StatusCode::kUnavailable, "host storage-7 has no address (no such name)");
}

}  // namespace admin_client_test
}  // namespace verbena::command
