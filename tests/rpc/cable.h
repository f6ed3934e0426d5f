// A process in a network namespace of its own, with a cable to the namespace from which it came: a
// veth pair, as between a pod and its host. The namespaces of two such processes reach each other
// through the first one, which routes.
//
// Cables are numbered by the test from 1 on, and no number comes twice. A cable has the addresses
// 10.98.0.0 + 4 * number + 1 (its near end) and + 2 (its far end).

#ifndef VERBENA_TESTS_RPC_CABLE_H_
#define VERBENA_TESTS_RPC_CABLE_H_

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace verbena::internal {

// LinkRequest: a message to the kernel about a network interface (rtnetlink(7)).
class LinkRequest {
 public:
  LinkRequest(uint16_t type, int flags) {
    Header().nlmsg_type = type;
    Header().nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
    used_ = NLMSG_LENGTH(sizeof(ifinfomsg));
  }

  void Add(uint16_t type, const void* data, size_t bytes) {
    rtattr* const attribute = Open(type);
    std::memcpy(RTA_DATA(attribute), data, bytes);
    used_ += RTA_ALIGN(bytes);
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
  }
  void Add(uint16_t type, const std::string& text) { Add(type, text.c_str(), text.size() + 1); }
  // Attributes that are added until Close() lie inside the new one.
  rtattr* Open(uint16_t type) {
    auto* const attribute = reinterpret_cast<rtattr*>(bytes_ + used_);
    attribute->rta_type = type;
    used_ += RTA_LENGTH(0);
    return attribute;
  }
  void AddEmptyLink() { used_ += sizeof(ifinfomsg); }
  void Close(rtattr* attribute) {
    attribute->rta_len =
        static_cast<uint16_t>(bytes_ + used_ - reinterpret_cast<const std::byte*>(attribute));
  }

  // An errno, or 0. `netlink` is a socket, whose network namespace is asked.
  int Ask(int netlink) {
    Header().nlmsg_len = static_cast<uint32_t>(used_);
    if (send(netlink, bytes_, used_, 0) < 0) return errno;
    alignas(nlmsghdr) std::byte answer[1024];
    if (recv(netlink, answer, sizeof(answer), 0) < 0) return errno;
    const auto* const header = reinterpret_cast<const nlmsghdr*>(answer);
    return -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
  }

 private:
  nlmsghdr& Header() { return *reinterpret_cast<nlmsghdr*>(bytes_); }

  alignas(nlmsghdr) std::byte bytes_[512] = {};
  size_t used_ = 0;
};

inline uint32_t NearAddress(int cable) {
  return 0x0a620000 + static_cast<uint32_t>(cable) * 4 + 1;  // 10.98.0.0
}
inline uint32_t FarAddress(int cable) { return NearAddress(cable) + 1; }

inline std::string TextOfAddress(uint32_t address) {
  const in_addr in{.s_addr = htonl(address)};
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &in, text, sizeof(text));
}

// Gives the interface an address, unless that is 0, and turns it on. `socket` says in which network
// namespace.
inline bool TurnOn(int socket, const std::string& name, uint32_t address) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  auto& in = reinterpret_cast<sockaddr_in&>(request.ifr_addr);
  if (address != 0) {
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(address);
    if (ioctl(socket, SIOCSIFADDR, &request) != 0) return false;
    in.sin_addr.s_addr = htonl(0xfffffffc);
    if (ioctl(socket, SIOCSIFNETMASK, &request) != 0) return false;
  }
  if (ioctl(socket, SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP;
  return ioctl(socket, SIOCSIFFLAGS, &request) == 0;
}

inline std::string NameOfCable(int cable) { return "cable" + std::to_string(cable); }

// Makes a veth pair, whose far end belongs to the network of `far_process`, or, if that is 0, to
// the same as its near end. An errno, or 0.
inline int MakeVethPair(int netlink, const std::string& near, const std::string& far,
                        pid_t far_process) {
  LinkRequest make(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
  make.Add(IFLA_IFNAME, near);
  rtattr* const info = make.Open(IFLA_LINKINFO);
  make.Add(IFLA_INFO_KIND, std::string("veth"));
  rtattr* const data = make.Open(IFLA_INFO_DATA);
  rtattr* const peer = make.Open(VETH_INFO_PEER);
  make.AddEmptyLink();
  make.Add(IFLA_IFNAME, far);
  const auto pid = static_cast<uint32_t>(far_process);
  if (pid != 0) make.Add(IFLA_NET_NS_PID, &pid, sizeof(pid));
  make.Close(peer);
  make.Close(data);
  make.Close(info);
  return make.Ask(netlink);
}

// In a new network namespace: makes it one from which cables lead, and which routes between them.
// Its own address is that of the near end of cable 0, which leads nowhere: a device that starts
// before the first cable is there has a name by which others reach it.
inline bool MakeHub() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int netlink = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  errno = MakeVethPair(netlink, NameOfCable(0), "nowhere", 0);
  const bool on = errno == 0 && TurnOn(socket, "lo", 0) && TurnOn(socket, "nowhere", 0) &&
                  TurnOn(socket, NameOfCable(0), NearAddress(0));
  close(socket);
  close(netlink);
  std::ofstream forward("/proc/sys/net/ipv4/ip_forward");
  forward << 1 << std::flush;
  const bool done = on && static_cast<bool>(forward);
  if (!done) std::perror("a network that routes");
  return done;
}

// Enters a new network namespace, at the far end of that cable, which ends with the process. False
// if something of that fails, and standard error says what.
inline bool EnterByCable(int cable) {
  // These stay in the namespace that we leave.
  const int near = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (unshare(CLONE_NEWNET) != 0) {
    std::perror("unshare");
    return false;
  }
  errno = MakeVethPair(netlink, NameOfCable(cable), "cable", getpid());
  if (errno != 0) {
    std::perror("a veth pair");
    return false;
  }
  const int far = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  rtentry route{};
  route.rt_dst.sa_family = route.rt_genmask.sa_family = AF_INET;
  auto& gateway = reinterpret_cast<sockaddr_in&>(route.rt_gateway);
  gateway.sin_family = AF_INET;
  gateway.sin_addr.s_addr = htonl(NearAddress(cable));
  route.rt_flags = RTF_UP | RTF_GATEWAY;
  const bool connected = TurnOn(near, NameOfCable(cable), NearAddress(cable)) &&
                         TurnOn(far, "lo", 0) && TurnOn(far, "cable", FarAddress(cable)) &&
                         ioctl(far, SIOCADDRT, &route) == 0;
  if (!connected) std::perror("the ends of a veth pair");
  for (const int fd : {near, netlink, far}) close(fd);
  return connected;
}

// Takes the cable away at once: the kernel is late to end a namespace whose processes are gone.
inline void RemoveCable(int cable) {
  LinkRequest remove(RTM_DELLINK, 0);
  remove.Add(IFLA_IFNAME, NameOfCable(cable));
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  (void)remove.Ask(netlink);  // ENODEV if it is gone
  close(netlink);
}

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_CABLE_H_
