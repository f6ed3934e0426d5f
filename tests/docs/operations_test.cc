// The code of docs/operations.md that tells systemd of the program's state does so.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace blocks {
namespace {

// Tells systemd of `state`, "READY=1" or "STOPPING=1". Returns false if it could not; true, too, if
// nobody asked for it.
bool TellSystemd(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return true;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length == 0 || length >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name that is in no file system
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  const ssize_t sent = sendto(socket, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address),
                              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
  close(socket);
  return sent == static_cast<ssize_t>(state.size());
}

class TellSystemdTest : public ::testing::Test {
 protected:
  ~TellSystemdTest() override {
    unsetenv("NOTIFY_SOCKET");
    if (manager_ >= 0) close(manager_);
  }

  // The kernel chooses a name that is in no file system, as systemd has in some versions.
  void StartManager() {
    manager_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_EQ(
        bind(manager_, reinterpret_cast<const sockaddr*>(&address), sizeof(address.sun_family)), 0);
    socklen_t length = sizeof(address);
    ASSERT_EQ(getsockname(manager_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    const std::string name(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
  }
  std::string Heard() {
    char text[64];
    const ssize_t size = recv(manager_, text, sizeof(text), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  int manager_ = -1;
};

TEST_F(TellSystemdTest, SendsTheStateToTheSocketThatTheEnvironmentNames) {
  StartManager();
  EXPECT_TRUE(TellSystemd("READY=1"));
  EXPECT_TRUE(TellSystemd("STOPPING=1"));
  EXPECT_EQ(Heard(), "READY=1");
  EXPECT_EQ(Heard(), "STOPPING=1");
}

TEST_F(TellSystemdTest, DoesNothingIfNobodyAsked) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(TellSystemd("READY=1"));
}

TEST_F(TellSystemdTest, FailsIfNobodyListensOrTheNameIsTooLong) {
  setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  EXPECT_FALSE(TellSystemd("READY=1"));
  setenv("NOTIFY_SOCKET", std::string(200, 'a').c_str(), 1);
  EXPECT_FALSE(TellSystemd("READY=1"));
}

}  // namespace
}  // namespace blocks
