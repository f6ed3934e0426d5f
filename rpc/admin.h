// Admin: what whoever is on call asks a process over HTTP: whether it lives and is ready, what it
// does, and its metrics.
//
//   path           answer
//   /healthz       200: the process answers
//   /readyz        200 or 503 and why, a line each (AdminOptions)
//   /metrics       the metrics (metrics.h), as Prometheus or OpenMetrics by the Accept header
//   /status        a page for people: calls by method, servers, devices, memory, peers, executors
//   /status.json   the same for programs
//   /log           GET: the levels of the log. POST, on the Unix socket alone: sets them
//
// It listens at a TCP address, at a Unix socket, or at both. No GET or HEAD changes anything.
//
//   listens at                       serves
//   a loopback address               all but POST /log
//   any other address, or 0.0.0.0    /metrics, /healthz and /readyz alone
//   a Unix socket, of mode 0600      all
//
// Nothing is encrypted, and no client is authenticated: whoever reaches the address may ask. A
// request over TCP whose Host header is neither an IP address, nor localhost, nor one of
// AdminOptions::hosts is refused, so that no web page that a name leads to may ask (DNS rebinding).
//
// One thread serves all requests. It waits at most 100 ms for executors. If one is held for longer,
// the answer has that executor's last values, and says how old they are; counts of calls are those
// of now nevertheless, but /metrics is written four times a second at most. At most 64 connections
// are open: a further one takes the place of the one that has been idle for longest. A head is at
// most 8 KiB, and a body 4 KiB. A request that does not come or go within 10 s ends its connection.
//
// A program that names this class links Verbena::admin (CMake), verbena-admin (pkg-config) or
// @verbena//rpc:admin (Bazel).
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Admin> admin,
//                            Admin::Start(*runtime, {.address = "0.0.0.0:9180"}));
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(*runtime, {&store}));
//
//   precondition                              how it is checked      test
//   AdminOptions are complete                 INVALID_ARGUMENT       admin_test
//   the runtime outlives the admin server     a check aborts         admin_test
//   AdminOptions::check does not block        not checked

#ifndef VERBENA_RPC_ADMIN_H_
#define VERBENA_RPC_ADMIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/export.h"

namespace verbena {

// What else must be true for a process to be ready: OK if it is.
using AdminCheck = std::function<absl::Status()>;

// Owned by the caller of Admin::Start(), which copies it.
//
// /readyz answers 503 while one of these holds, and names it:
//   - fewer than `servers` servers of the runtime have started (a server that is being destroyed
//     does not count);
//   - a server shuts down: from the first moment of Server::Shutdown(), through
//     ServerOptions::drain_delay, until it is destroyed;
//   - a server has not been seen in its directory yet (ServerOptions::registration). One that has
//     left it since, as when etcd is down, is degraded;
//   - no device is in service;
//   - `check` returns an error;
//   - the process is degraded, and degraded_is_unready is true.
// A process is degraded while a device is lost, while links go over TCP although there is an RDMA
// device, or if its runtime does without something since it started. /readyz then has a line for
// each, also if it answers 200.
struct AdminOptions {
  // An IP address, or localhost, and a port; port 0 takes a free one. "": no TCP. Say so if
  // `socket` alone shall serve: every user of the host reaches /status at the default address.
  std::string address = "127.0.0.1:0";
  // The path of the Unix socket, at most 107 bytes: "/run/store/admin.sock". "": none. A socket
  // that a process which has died left there is replaced. Only this user may connect. The path is
  // removed when the admin server ends.
  std::string socket = "";
  // Names in Host headers that are taken, without ports, besides IP addresses and localhost:
  // "storage-7.example". A client that asks by a host name sends that name.
  std::vector<std::string> hosts = {};
  // How many servers the process has when it is ready. 0 for a process that only makes calls.
  uint32_t servers = 1;
  // Whether /readyz says 503 while the process is degraded.
  bool degraded_is_unready = false;
  // Called for each /readyz, /status and /status.json, on the thread that serves them, which does
  // nothing else meanwhile: it must not block, and must not destroy the Admin. An exception counts
  // as an error. nullptr: nothing else.
  AdminCheck check = nullptr;
};

// The admin server of one runtime. The program owns it, and destroys it before the runtime. Any
// thread.
class VERBENA_EXPORT Admin {
 public:
  // Listens when it returns.
  //   INVALID_ARGUMENT: the address is no IP address and port; the path is too long; or there is
  //     neither of them.
  //   FAILED_PRECONDITION: the port is taken; or a process listens at the path, or something there
  //     is no socket.
  //   PERMISSION_DENIED, NOT_FOUND: the system refuses the port, or the directory of the path.
  //   RESOURCE_EXHAUSTED: there is no thread or descriptor to be had.
  static absl::StatusOr<std::unique_ptr<Admin>> Start(Runtime& runtime,
                                                      const AdminOptions& options = {});
  // Closes all connections. Waits for a call of AdminOptions::check that is under way.
  ~Admin();
  Admin(const Admin&) = delete;
  Admin& operator=(const Admin&) = delete;

  // Where it listens, with the port that was bound: "127.0.0.1:9180". "": not over TCP.
  const std::string& address() const;

 private:
  class Impl;
  explicit Admin(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_ADMIN_H_
