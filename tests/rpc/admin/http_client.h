// HttpClient: one connection to an admin server, on which a test writes bytes as it likes and reads
// what comes back. HttpAnswer: an answer taken apart.

#ifndef VERBENA_TESTS_RPC_ADMIN_HTTP_CLIENT_H_
#define VERBENA_TESTS_RPC_ADMIN_HTTP_CLIENT_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {

// A path for a Unix socket, in a directory of its own. Test directories have longer paths than
// sockets may have.
class SocketPath {
 public:
  SocketPath() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  SocketPath(const SocketPath&) = delete;
  SocketPath& operator=(const SocketPath&) = delete;
  ~SocketPath() { std::filesystem::remove_all(directory_); }
  std::string text() const { return directory_ + "/admin.sock"; }

 private:
  std::string directory_ = "/tmp/verbena-admin.XXXXXX";
};

struct HttpAnswer {
  int status = 0;  // 0: the connection ended without an answer
  std::string head = {};
  std::string body = {};
};

class HttpClient {
 public:
  // At "127.0.0.1:9180".
  static HttpClient OverTcp(const std::string& address) {
    const HostPort at = *ParseHostPort(address);
    SocketAddress to(*ParseIp(at.host == "0.0.0.0" ? "127.0.0.1" : at.host), at.port);
    return HttpClient(to.family(), to.get(), to.size());
  }
  static HttpClient OverSocket(const std::string& path) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, path.data(), path.size());
    return HttpClient(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }

  // A server that has ended the connection meanwhile takes nothing, which is no failure.
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void SendRequest(std::string_view method, std::string_view target,
                   std::string_view host = "localhost", std::string_view body = "") {
    Send(fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{}", method, target,
                     host, body.size(), body));
  }

  void EndSending() { shutdown(fd_.get(), SHUT_WR); }

  // The next answer; of one to HEAD, the body that is announced does not come.
  HttpAnswer Read(bool head_only = false) {
    size_t end = 0;
    while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
      if (!ReadSome()) return {.body = std::exchange(read_, {})};
    }
    HttpAnswer answer{.status = std::atoi(read_.c_str() + std::strlen("HTTP/1.1 ")),
                      .head = read_.substr(0, end + 2)};
    read_.erase(0, end + 4);
    const size_t at = answer.head.find("Content-Length: ");
    const bool has_length = at != std::string::npos && !head_only;
    const size_t length =
        has_length
            ? std::strtoul(answer.head.c_str() + at + std::strlen("Content-Length: "), nullptr, 10)
            : 0;
    while (read_.size() < length && ReadSome()) {
    }
    answer.body = read_.substr(0, length);
    read_.erase(0, length);
    return answer;
  }
  // Takes at least so many bytes, which ReadAll() returns, too.
  void Take(size_t bytes) {
    while (read_.size() < bytes && ReadSome()) {
    }
  }
  // All that comes until the server ends the connection.
  std::string ReadAll() {
    while (ReadSome()) {
    }
    return std::exchange(read_, {});
  }
  // Waits until the server has ended the connection, and reads nothing.
  void AwaitEnd() {
    pollfd waits{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
    while (poll(&waits, 1, -1) < 0) {
    }
  }
  // Whether the server has ended the connection by now. Reads nothing.
  bool ended() {
    pollfd looks{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&looks, 1, 0) > 0;
  }

 private:
  HttpClient(int family, const sockaddr* to, socklen_t bytes)
      : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(connect(fd_.get(), to, bytes), 0) << std::strerror(errno);
  }

  // False if there is nothing more.
  bool ReadSome() {
    char bytes[4096];
    const ssize_t got = recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    read_.append(bytes, static_cast<size_t>(got));
    return true;
  }

  UniqueFd fd_;
  std::string read_;
};

// One request over a connection of its own.
inline HttpAnswer Ask(HttpClient client, std::string_view method, std::string_view target,
                      std::string_view host = "localhost", std::string_view body = "") {
  client.SendRequest(method, target, host, body);
  return client.Read(method == "HEAD");
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_ADMIN_HTTP_CLIENT_H_
