// The admin server's HTTP bounds what peers take, refuses what is wrong in one line each, and goes
// on serving the others.

#include "verbena/rpc/admin/http.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/admin/http_client.h"

namespace verbena::internal {
namespace http_test {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kLargeBytes = size_t{8} << 20;

class AdminHttpTest : public ::testing::Test {
 protected:
  // At a Unix socket and a loopback address.
  void Serve(AdminHttpLimits limits = {}) {
    absl::StatusOr<std::unique_ptr<AdminHttp>> http = AdminHttp::Listen(
        {.address = "127.0.0.1:0", .socket = path_, .hosts = {"storage-7"}, .limits = limits});
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
    ASSERT_EQ(http_->Serve([this](const AdminRequest& request, AdminHttp::Reply reply) {
      Answer(request, std::move(reply));
    }),
              absl::OkStatus());
  }

  // On the server's thread.
  void Answer(const AdminRequest& request, AdminHttp::Reply reply) {
    if (request.path == "/held") {
      held_reply_ = std::move(reply);
      held = true;
      held.notify_all();
      return;
    }
    if (request.path == "/large") return reply({.body = std::string(kLargeBytes, 'x')});
    reply(AdminLine(200, fmt::format("{} {} body={}", request.method, request.path, request.body)));
  }

  HttpClient Socket() const { return HttpClient::OverSocket(path_); }
  HttpClient Tcp() const { return HttpClient::OverTcp(http_->address()); }
  // A connection of which the server has seen a request.
  HttpClient Used() const {
    HttpClient client = Socket();
    client.SendRequest("GET", "/x");
    EXPECT_EQ(client.Read().status, 200);
    return client;
  }
  static absl::Status Refusal(AdminHttpOptions options) {
    return AdminHttp::Listen(std::move(options)).status();
  }

  const SocketPath socket_path_;
  const std::string path_ = socket_path_.text();
  std::atomic<bool> held = false;
  AdminHttp::Reply held_reply_;      // on the server's thread
  std::unique_ptr<AdminHttp> http_;  // its thread uses the others
};

TEST_F(AdminHttpTest, RequestsFollowEachOtherOnOneConnection) {
  Serve();
  HttpClient client = Tcp();
  client.SendRequest("GET", "/a?b=c");
  EXPECT_EQ(client.Read().body, "GET /a body=\n");
  client.SendRequest("POST", "/d", "localhost", "text");
  EXPECT_EQ(client.Read().body, "POST /d body=text\n");
  client.Send(
      "GET /e HTTP/1.1\r\nHost: localhost\r\n\r\nGET /f HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /e body=\n");
  EXPECT_EQ(client.Read().body, "GET /f body=\n") << "it came with the one before";
}

TEST_F(AdminHttpTest, HeadTellsTheLengthOfABodyThatDoesNotCome) {
  Serve();
  HttpClient client = Socket();
  client.SendRequest("HEAD", "/a");
  EXPECT_THAT(client.Read(/*head_only=*/true).head, HasSubstr("Content-Length: 13\r\n"));
  client.SendRequest("GET", "/b");
  EXPECT_EQ(client.Read().body, "GET /b body=\n") << "nothing lay between";
}

TEST_F(AdminHttpTest, PagesMayLoadNothingAndAreNotKept) {
  Serve();
  const HttpAnswer answer = Ask(Tcp(), "GET", "/a");
  EXPECT_THAT(answer.head, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(answer.head, HasSubstr("Cache-Control: no-store"));
  EXPECT_THAT(answer.head, HasSubstr("X-Content-Type-Options: nosniff"));
}

TEST_F(AdminHttpTest, AConnectionEndsIfItsRequestSaysSo) {
  Serve();
  HttpClient client = Tcp();
  client.Send("GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("GET /a"));
}

TEST_F(AdminHttpTest, AHeadOfNineKibibytesIsRefused) {
  Serve();
  HttpClient client = Tcp();
  client.Send("GET /a HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(9 << 10, 'x') + "\r\n\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 431);
  EXPECT_EQ(answer.body, "the head has more than 8192 bytes\n");
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(AdminHttpTest, ABodyThatIsTooLongIsRefused) {
  Serve();
  const HttpAnswer answer = Ask(Socket(), "POST", "/log", "localhost", std::string(5000, 'x'));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.body, "the body has more than 4096 bytes\n");
}

TEST_F(AdminHttpTest, WhatIsNoHttpIsRefused) {
  Serve();
  for (const char* text : {"\r\n\r\n\r\n", "GET\r\n\r\n", "GET /a HTTP/9.9\r\n\r\n",
                           "\x16\x03\x01\x02", "GET a HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           "GET /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n"}) {
    HttpClient client = Tcp();
    client.Send(text);
    client.EndSending();
    const HttpAnswer answer = client.Read();
    EXPECT_TRUE(answer.status == 400 || answer.status == 0) << text << ": " << answer.status;
  }
  HttpClient client = Tcp();
  client.Send("GET /a HTTP/9.9\r\n\r\n");
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("this is no request of HTTP/1.1"));
  EXPECT_EQ(Ask(Tcp(), "GET", "/a").status, 200) << "others are served";
}

TEST_F(AdminHttpTest, AHalfHeadHoldsUpNobody) {
  Serve();
  HttpClient slow = Tcp();
  slow.Send("GET /slow HTTP/1.1\r\nHo");
  EXPECT_EQ(Ask(Tcp(), "GET", "/a").status, 200);
  slow.Send("st: localhost\r\n\r\n");
  EXPECT_THAT(slow.Read().body, HasSubstr("/slow"));
}

TEST_F(AdminHttpTest, AHalfHeadThatDoesNotGoOnIsRefused) {
  Serve({.patience = milliseconds(1)});
  HttpClient slow = Tcp();
  slow.Send("GET /slow HTTP/1.1\r\nHo");
  const HttpAnswer answer = slow.Read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_THAT(answer.body, HasSubstr("the request did not come within"));
  EXPECT_EQ(slow.ReadAll(), "");
}

TEST_F(AdminHttpTest, AConnectionWithoutARequestEndsInTime) {
  Serve({.idle = milliseconds(1)});
  EXPECT_EQ(Tcp().ReadAll(), "");
}

TEST_F(AdminHttpTest, AnAnswerThatNobodyTakesEndsItsConnection) {
  Serve({.patience = milliseconds(1)});
  HttpClient hangs = Socket();
  hangs.SendRequest("GET", "/large");
  hangs.AwaitEnd();
  EXPECT_LT(hangs.ReadAll().size(), kLargeBytes);
}

TEST_F(AdminHttpTest, AClientThatHangsHoldsUpNobody) {
  Serve();
  HttpClient hangs = Socket();
  hangs.SendRequest("GET", "/large");
  EXPECT_EQ(Ask(Socket(), "GET", "/a").status, 200);
  EXPECT_FALSE(hangs.ended());
}

TEST_F(AdminHttpTest, AnAnswerThatDoesNotComeEndsItsConnection) {
  Serve({.patience = milliseconds(1)});
  HttpClient client = Socket();
  client.SendRequest("GET", "/held");
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(AdminHttpTest, TheConnectionThatIsIdleForLongestMakesWay) {
  Serve({.connections = 3});
  HttpClient first = Used();
  HttpClient second = Used();
  HttpClient third = Used();
  first.SendRequest("GET", "/again");
  EXPECT_EQ(first.Read().status, 200) << "now the second is the oldest";
  HttpClient fourth = Used();
  EXPECT_THAT(second.ReadAll(), HasSubstr("this one was idle for longest\n"));
  for (HttpClient* open : {&first, &third, &fourth}) {
    open->SendRequest("GET", "/again");
    EXPECT_EQ(open->Read().status, 200);
  }
}

TEST_F(AdminHttpTest, AConnectionWhoseAnswerIsBeingMadeDoesNotMakeWay) {
  Serve({.connections = 2});
  HttpClient busy = Socket();
  busy.SendRequest("GET", "/held");
  held.wait(false);
  HttpClient idle = Used();
  HttpClient further = Used();
  EXPECT_THAT(idle.ReadAll(), HasSubstr("this one was idle for longest"));
  http_->Post([this] { held_reply_(AdminLine(200, "at last")); });
  EXPECT_EQ(busy.Read().body, "at last\n");
}

TEST_F(AdminHttpTest, NothingIsWrittenIntoAnAnswerThatIsCutShort) {
  constexpr size_t kTaken = size_t{64} << 10;  // room for a refusal, but not for the answer
  Serve({.connections = 2});
  HttpClient writing = Socket();
  writing.SendRequest("GET", "/large");
  writing.Take(1);
  HttpClient busy = Used();
  busy.SendRequest("GET", "/held");
  held.wait(false);
  writing.Take(kTaken);
  HttpClient further = Used();
  EXPECT_THAT(writing.ReadAll(), Not(HasSubstr("too many connections")));
}

TEST_F(AdminHttpTest, OfTenThousandConnectionsTheLastSixtyFourStay) {
  constexpr size_t kKept = 100;
  Serve();
  std::vector<HttpClient> last;
  for (int i = 0; i < 10'000; ++i) {
    if (last.size() == kKept) last.erase(last.begin());
    last.push_back(Socket());
  }
  EXPECT_EQ(Ask(Socket(), "GET", "/a").status, 200) << "it came behind all of them";
  size_t open = 0;
  for (HttpClient& client : last) open += client.ended() ? 0 : 1;
  EXPECT_EQ(open, 63u) << "besides the one that asked";
}

TEST_F(AdminHttpTest, AReplyToAConnectionThatIsGoneIsDropped) {
  Serve();
  {
    HttpClient gone = Socket();
    gone.SendRequest("GET", "/held");
    held.wait(false);
  }
  http_->Post([this] {
    held_reply_(AdminLine(200, "too late"));
    held_reply_(AdminLine(200, "twice"));
  });
  EXPECT_EQ(Ask(Socket(), "GET", "/a").status, 200);
}

TEST_F(AdminHttpTest, AForeignHostIsRefusedOverTcp) {
  Serve();
  for (const char* host : {"localhost", "LOCALHOST:9180", "127.0.0.1", "10.2.3.4:9180", "[::1]:80",
                           "[2001:db8::7]", "storage-7", "Storage-7:9180"}) {
    EXPECT_EQ(Ask(Tcp(), "GET", "/a", host).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:9180", "localhost.evil.example", "",
                           "127.0.0.1.evil.example", "[::1", "localhost:x", "storage-77", "1"}) {
    const HttpAnswer answer = Ask(Tcp(), "GET", "/a", host);
    EXPECT_EQ(answer.status, 403) << host;
    EXPECT_THAT(answer.body, HasSubstr("AdminOptions::hosts"));
  }
  EXPECT_EQ(Ask(Socket(), "GET", "/a", "evil.example").status, 200) << "no web page gets there";
}

TEST_F(AdminHttpTest, OneHostIsRequiredExceptOfHttp10) {
  Serve();
  HttpClient none = Tcp();
  none.Send("GET /a HTTP/1.1\r\n\r\n");
  EXPECT_EQ(none.Read().status, 400);
  HttpClient two = Tcp();
  two.Send("GET /a HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(two.Read().status, 400);
  HttpClient old = Tcp();
  old.Send("GET /a HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().status, 200) << "load balancers probe so";
}

TEST_F(AdminHttpTest, OnlyItsUserMayUseTheSocket) {
  const mode_t before = umask(0);
  Serve();
  umask(before);
  struct stat made = {};
  ASSERT_EQ(stat(path_.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode, mode_t{S_IFSOCK | 0600});
  http_.reset();
  EXPECT_NE(stat(path_.c_str(), &made), 0) << "it takes the path with it";
}

TEST_F(AdminHttpTest, ASocketThatADeadProcessLeftIsReplaced) {
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, path_.size());
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(left);
  Serve();
  EXPECT_EQ(Ask(Socket(), "GET", "/a").status, 200);
}

TEST_F(AdminHttpTest, APathThatIsInUseIsLeftAlone) {
  Serve();
  const absl::Status taken = Refusal({.socket = path_});
  EXPECT_TRUE(absl::IsFailedPrecondition(taken)) << taken;
  EXPECT_THAT(taken.message(), HasSubstr("another process listens at " + path_));
  EXPECT_EQ(Ask(Socket(), "GET", "/a").status, 200) << "the first one goes on";
  http_.reset();
  std::ofstream(path_) << "a file";
  const absl::Status file = Refusal({.socket = path_});
  EXPECT_TRUE(absl::IsFailedPrecondition(file)) << file;
  EXPECT_THAT(file.message(), HasSubstr("is no socket"));
}

TEST_F(AdminHttpTest, APathThatCannotBeIsRefused) {
  const absl::Status longer = Refusal({.socket = std::string(108, 'x')});
  EXPECT_TRUE(absl::IsInvalidArgument(longer)) << longer;
  EXPECT_THAT(longer.message(), HasSubstr("has 108 bytes, but a socket's path has at most 107"));
  const absl::Status nowhere = Refusal({.socket = "/nonexistent/admin.sock"});
  EXPECT_TRUE(absl::IsNotFound(nowhere)) << nowhere;
  EXPECT_THAT(nowhere.message(), HasSubstr("the directory of /nonexistent/admin.sock"));
}

TEST_F(AdminHttpTest, AnAddressThatCannotBeIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal({})));
  const absl::Status name = Refusal({.address = "storage-7:9180"});
  EXPECT_TRUE(absl::IsInvalidArgument(name)) << name;
  EXPECT_THAT(name.message(), HasSubstr("its host must be an IP address"));
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal({.address = "127.0.0.1"})));
  Serve();
  const absl::Status taken = Refusal({.address = http_->address()});
  EXPECT_TRUE(absl::IsFailedPrecondition(taken)) << taken;
  EXPECT_THAT(taken.message(), HasSubstr("the port is taken"));
}

}  // namespace http_test
}  // namespace verbena::internal
