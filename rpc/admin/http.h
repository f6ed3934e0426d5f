// AdminHttp: a small HTTP/1.1 server on one thread, with AdminRequest and AdminAnswer. Asio and
// Beast stay inside.
//
// It bounds what peers may take (AdminHttpLimits) and refuses what it can judge without knowing the
// pages: heads and bodies that are too long, foreign Host headers. The rest goes to a handler, on
// the thread. Owned by an Admin.

#ifndef VERBENA_RPC_ADMIN_HTTP_H_
#define VERBENA_RPC_ADMIN_HTTP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

// How a request came.
enum class AdminDoor : uint8_t {
  kSocket,    // over the Unix socket
  kLoopback,  // over TCP, at a loopback address
  kNetwork,   // over TCP, at another address
};

struct AdminRequest {
  AdminDoor door = AdminDoor::kSocket;
  std::string method = {};  // "GET" for HEAD, too
  std::string path = {};    // without the query
  std::string accept = {};  // the values of all Accept headers, with commas between them
  std::string body = {};
};

struct AdminAnswer {
  int status = 200;
  std::string body = {};
  // In place of `body`: a text that other answers have, too. Null: none.
  std::shared_ptr<const std::string> shared = {};
  std::string type = "text/plain; charset=utf-8";
  std::string allow = {};  // of 405
};

// A line of text.
AdminAnswer AdminLine(int status, std::string line);

// What peers may take. Numbers are constants of the product; tests have others.
struct AdminHttpLimits {
  size_t connections = 64;
  uint32_t head_bytes = 8192;
  uint64_t body_bytes = 4096;
  // From a request's first byte to its last, and as long again for its answer.
  Duration patience = std::chrono::seconds(10);
  // How long a connection may be open without a request.
  Duration idle = std::chrono::minutes(2);
};

struct AdminHttpOptions {
  std::string address = {};  // as AdminOptions
  std::string socket = {};
  std::vector<std::string> hosts = {};
  AdminHttpLimits limits = {};
};

class AdminHttp {
 public:
  // Called once for each request, on the thread; later calls do nothing.
  using Reply = std::function<void(AdminAnswer)>;
  // On the thread. It, or somebody later on the thread, calls `reply`. If nobody does so within
  // AdminHttpLimits::patience, the connection closes.
  using Handler = std::function<void(const AdminRequest& request, Reply reply)>;

  // Errors as Admin::Start(). Nobody is served before Serve().
  static absl::StatusOr<std::unique_ptr<AdminHttp>> Listen(const AdminHttpOptions& options);
  // Starts the thread. Once at most.
  absl::Status Serve(Handler handler);
  // Ends the thread: no handler and no function is called any more. A second call does nothing.
  void Stop();
  ~AdminHttp();

  const std::string& address() const;
  // Any thread: runs `function` on the thread, unless that has ended.
  void Post(absl::AnyInvocable<void()> function);
  // On the thread: runs `function` there in `delay`.
  void After(Duration delay, absl::AnyInvocable<void()> function);

 private:
  class Impl;
  explicit AdminHttp(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// Whether a request over TCP may have this Host header: an IP address, localhost or one of `hosts`,
// with or without a port.
bool IsOwnHost(std::string_view host, const std::vector<std::string>& hosts);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_ADMIN_HTTP_H_
