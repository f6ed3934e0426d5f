// ServerProcess: a server of one service, as a process of its own.

#ifndef VERBENA_TESTS_RPC_SERVER_PROCESS_H_
#define VERBENA_TESTS_RPC_SERVER_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "verbena/rpc/runtime.h"
#include "verbena/rpc/service.h"

namespace verbena {

namespace internal {
struct TestDevice;  // verbena/rpc/shard/runtime.h
}  // namespace internal

// The part of a ServerProcess that knows no service's type. The destructor kills the process.
class ForkedServer {
 public:
  ForkedServer(const ForkedServer&) = delete;
  ForkedServer& operator=(const ForkedServer&) = delete;
  ~ForkedServer() { Kill(); }

  const std::string& address() const { return address_; }
  void Signal(int number) const;
  // Whether the process has died; waits for nothing.
  bool HasEnded();
  void Kill();

 protected:
  // Called in the server's process before the server starts.
  using MakeService = std::function<std::unique_ptr<Service>(RuntimeOptions& options,
                                                             internal::TestDevice& device)>;

  ForkedServer(const std::string& address, const MakeService& make);

 private:
  [[noreturn]] static void Serve(const std::string& address, const MakeService& make,
                                 int out) noexcept;

  pid_t pid_ = -1;
  std::string address_;
};

// The constructor forks, so it must run while the test has no threads. It returns when the server
// listens.
template <typename TestService>
class ServerProcess final : public ForkedServer {
 public:
  // Called in the server's process before the server starts.
  using Prepare = std::function<void(TestService& service, RuntimeOptions& options,
                                     internal::TestDevice& device)>;

  explicit ServerProcess(const std::string& address, const Prepare& prepare = {})
      : ForkedServer(address, [&](RuntimeOptions& options, internal::TestDevice& device) {
          auto service = std::make_unique<TestService>();
          if (prepare) prepare(*service, options, device);
          return service;
        }) {}
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_SERVER_PROCESS_H_
