// A hostile client as a program of its own: handshake_flood HOST:PORT SOURCE TOTAL HELD.
//
// Opens TOTAL connections from the address SOURCE, and holds at most HELD at once (fewer if the
// process may not have as many descriptors), the oldest closed first. One third says nothing, one
// sends garbage, and one sends a valid Hello and never Ready. Ends when all were opened and its
// input is closed; prints "opened N" when it has opened them all.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>

#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace {

size_t RaiseDescriptors(size_t wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted + 64);
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(wanted, limit.rlim_cur - 64);
}

sockaddr_in AddressOf(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// A message as the bootstrap frames it.
std::string Framed(const std::string& message) {
  const auto bytes = static_cast<uint32_t>(message.size());
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + message;
}

// The offer of a client on this host, for a queue pair that does not exist.
std::string ValidHello(SoftDevice& device) {
  LinkParameters mine;
  mine.kind = LinkKind::kSoft;
  mine.wire_revision = device.capabilities().wire_revision;
  const ibv_gid gid = *device.QueryGid(1, 0);
  std::memcpy(mine.gid.data(), gid.raw, mine.gid.size());
  mine.qp_number = 0x1234;
  mine.initial_credits = 8;
  mine.runtime_id = RuntimeId::Random();
  return Framed(EncodeHello(mine, {}));
}

int Flood(const std::string& target, const std::string& source, int total, size_t held) {
  held = RaiseDescriptors(held);
  const auto device = *SoftDevice::Create({});
  const size_t colon = target.rfind(':');
  const sockaddr_in to = AddressOf(target.substr(0, colon), std::stoi(target.substr(colon + 1)));
  const sockaddr_in from = AddressOf(source, 0);
  std::deque<int> open;
  int opened = 0;
  for (int i = 0; i < total; ++i) {
    if (open.size() >= held) {
      close(open.front());
      open.pop_front();
    }
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int on = 1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) != 0 ||
        connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
      close(fd);
      continue;
    }
    open.push_back(fd);
    ++opened;
    std::string words;
    if (i % 3 == 1) words = Framed("this is no Hello");
    if (i % 3 == 2) words = ValidHello(*device);
    if (!words.empty()) (void)send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  std::cout << "opened " << opened << std::endl;
  char end = 0;
  (void)read(STDIN_FILENO, &end, 1);
  for (int fd : open) close(fd);
  return 0;
}

}  // namespace
}  // namespace verbena::internal

int main(int argc, char** argv) {
  if (argc != 5) return std::cerr << "usage: handshake_flood HOST:PORT SOURCE TOTAL HELD\n", 2;
  return verbena::internal::Flood(argv[1], argv[2], std::stoi(argv[3]), std::stoul(argv[4]));
}
