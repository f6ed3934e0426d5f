// RegistrationOptions: a server's entry in a directory, where channels find it.
//
// A wrong field fails Server::Start() with INVALID_ARGUMENT. etcd that cannot be reached does not:
// the server registers when it can (ServerStats::registered).
//
//   Server::Start(*runtime, {&store},
//                 {.address = "10.0.0.7:4000",
//                  .registration = {.target = "etcd://10.0.0.1:2379/storage",
//                                   .name = "storage-7"}});

#ifndef VERBENA_RPC_REGISTRATION_H_
#define VERBENA_RPC_REGISTRATION_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "verbena/transport/base/clock.h"

namespace verbena {

struct RegistrationOptions {
  // "etcd://host:port[,host:port]/prefix", as for a Channel: the server writes the key prefix/name,
  // and the program depends on @verbena//rpc:etcd. "", the default: the server does not register.
  std::string target = "";
  // The server's identity (ResolvedServer::name): unique below the prefix, and the same after a
  // restart. "": the first address.
  std::string name = "";
  // Ways by which clients reach it, at most ResolvedServer::kMaxAddresses. Empty:
  // Server::address(), which must then name a host, not a wildcard such as 0.0.0.0.
  std::vector<std::string> addresses = {};
  // As ResolvedServer::zone, "" for none, and ResolvedServer::weight, 1 to
  // ResolvedServer::kMaxWeight.
  std::string zone = "";
  uint32_t weight = 1;
  // How long the entry outlives a server that dies: 2 s to 10 min, in whole seconds. The server
  // says three times in this time that it lives.
  Duration ttl = std::chrono::seconds(10);
};

}  // namespace verbena

#endif  // VERBENA_RPC_REGISTRATION_H_
