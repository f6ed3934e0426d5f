// InProcess: a server with a user's service, and a channel to it, in one process and in three
// lines.
//
//   InProcess<BlockService> blocks;
//   v1::Blocks::Stub stub(blocks.channel());
//   EXPECT_THAT(blocks.Run(stub.Stat(request)), StatusIs(absl::StatusCode::kNotFound));
//
// Calls go through links of the software device, as real messages; no hardware is needed. Server
// and client share one runtime. Its clock is the machine's, or a FakeClock. Each fixture stands
// alone, so tests may make several, which reach each other by their addresses. A fixture belongs to
// one thread, which runs no executor. If the parts do not start, a check aborts and says why.
//
// A service that needs the runtime, or several services, take an InProcessServer:
//
//   InProcessServer fixture({.runtime = {.executors = 2}});
//   Store store(fixture.runtime());
//   StoreService service(store);
//   fixture.Serve({&service});
//   ...
//   fixture.Stop();   // before the service is destroyed
//
//   precondition                                how it is checked   test
//   the options' runtime and server start       a check aborts      in_process_test
//   fake_clock without a clock in its runtime   a check aborts      in_process_test
//   Stop() before another Serve()               a check aborts      in_process_test
//   Advance() only with fake_clock              a check aborts      in_process_test

#ifndef VERBENA_RPC_TESTING_IN_PROCESS_H_
#define VERBENA_RPC_TESTING_IN_PROCESS_H_

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/task.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/export.h"

namespace verbena::testing {

struct InProcessOptions {
  // The device "auto" is what the environment variable VERBENA_DEVICE says, so that tests run over
  // RDMA, too, and otherwise the software device.
  RuntimeOptions runtime = {};
  ServerOptions server = {};
  ChannelOptions channel = {};
  // True: time stands still until Advance(). Unless `runtime.limits` says otherwise, links
  // then send no PINGs, do not close for want of use, and have any time to connect.
  bool fake_clock = false;
};

class VERBENA_EXPORT InProcessServer {
 public:
  // Starts the runtime.
  explicit InProcessServer(InProcessOptions options = {});
  // Calls Stop().
  ~InProcessServer();
  InProcessServer(const InProcessServer&) = delete;
  InProcessServer& operator=(const InProcessServer&) = delete;

  // Starts a server with `services`, and makes the channel. The services must live until Stop().
  // After that it may be called again, as if the server were started anew.
  void Serve(const std::vector<Service*>& services);
  // Destroys the channel and the server. Handlers that still run are cancelled. The runtime stays.
  // Calls of the test must have ended. Does nothing the second time.
  void Stop();

  Runtime& runtime() { return *runtime_; }
  // server() and channel() are valid between Serve() and Stop().
  Server& server() { return *server_; }
  Channel& channel() { return *channel_; }

  // Runs a Task or a stub's call on an executor, and waits for its result.
  template <typename T>
  T Run(Task<T> task, int executor = 0) {
    return runtime_->BlockOn(std::move(task), executor);
  }
  template <typename Call>
    requires requires(Call call) { std::move(call).AsTask(); }
  typename Call::value_type Run(Call call, int executor = 0) {
    return Run(std::move(call).AsTask(), executor);
  }

  // Lets `by` pass (fake_clock.h). A check aborts without InProcessOptions::fake_clock.
  void Advance(Duration by);

 private:
  InProcessOptions options_;
  std::unique_ptr<FakeClock> clock_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Channel> channel_;
};

// `S` is an implementation of one service.
template <typename S>
class InProcess : public InProcessServer {
 public:
  InProcess() : InProcess(InProcessOptions()) {}
  // `arguments` are those of the service's constructor.
  template <typename... Arguments>
  explicit InProcess(InProcessOptions options, Arguments&&... arguments)
      : InProcessServer(std::move(options)),
        service_(std::make_unique<S>(std::forward<Arguments>(arguments)...)) {
    Serve({service_.get()});
  }
  ~InProcess() { Stop(); }

  // Its handlers run on the server's executors.
  S& service() { return *service_; }

 private:
  std::unique_ptr<S> service_;
};

}  // namespace verbena::testing

#endif  // VERBENA_RPC_TESTING_IN_PROCESS_H_
