#include "benchmarks/floor/socket_pair.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "benchmarks/floor/tcp_pipe.h"

namespace verbena::benchmarks::internal {

absl::Status FloorError(const char* what) {
  return absl::UnavailableError(fmt::format("{} for the floor: {}", what, std::strerror(errno)));
}

absl::StatusOr<SocketPair> ConnectedPair() {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (listener.fd() < 0 || bind(listener.fd(), any, length) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), any, &length) != 0) {
    return FloorError("a listening socket");
  }
  Socket client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (client.fd() < 0 || connect(client.fd(), any, length) != 0) return FloorError("connect");
  Socket server(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (server.fd() < 0) return FloorError("accept");
  for (const int fd : {client.fd(), server.fd()}) {
    if (absl::Status status = MakePollable(fd); !status.ok()) return status;
  }
  return SocketPair{.client = std::move(client), .server = std::move(server)};
}

}  // namespace verbena::benchmarks::internal
