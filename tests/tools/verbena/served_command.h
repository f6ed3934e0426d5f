// ServedCommand: a fixture with a server of many services, and the command verbena against it, all
// in this process.

#ifndef VERBENA_TESTS_TOOLS_VERBENA_SERVED_COMMAND_H_
#define VERBENA_TESTS_TOOLS_VERBENA_SERVED_COMMAND_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/reflection/served.h"
#include "tests/rpc/stream_payload_service.h"
#include "tests/rpc/stream_service.h"
#include "tests/rpc/testing_service.h"
#include "tools/verbena/command_line.h"
#include "verbena/rpc/reflection.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

namespace verbena::command {

class ServedCommand : public ::testing::Test {
 protected:
  // What a command leaves.
  struct Result {
    int exit = -1;
    std::string output;
    std::string error;
  };

  // All services, or those that are given.
  void Serve(std::vector<Service*> services = {}) {
    if (services.empty()) {
      services = {&testing_, &streams_, &payloads_,   &payload_streams_,
                  &partly_,  &lite_,    &reflection_, &health_};
    }
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*runtime_, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~ServedCommand() override {
    server_.reset();
    runtime_.reset();
  }

  const std::string& address() const { return server_->address(); }

  // Runs `verbena` with these arguments; `input` is its standard input.
  static Result Run(std::vector<std::string> arguments, const std::string& input = "") {
    const std::string path = Path("standard_input");
    std::ofstream(path) << input;
    const int fd = open(path.c_str(), O_RDONLY);
    Result result = RunFrom(fd, std::move(arguments));
    close(fd);
    return result;
  }
  // The same with the descriptor of the standard input.
  static Result RunFrom(int fd, std::vector<std::string> arguments) {
    std::ostringstream output;
    std::ostringstream error;
    Terminal terminal{.input = fd, .output = output, .error = error};
    Result result;
    result.exit = RunCommandLine(std::move(arguments), terminal);
    result.output = output.str();
    result.error = error.str();
    return result;
  }
  // `verbena call` of a method of package verbena.testing, with further arguments.
  Result Call(const std::string& method, std::vector<std::string> others,
              const std::string& input = "") {
    others.insert(others.begin(), {"call", address(), "verbena.testing." + method});
    return Run(std::move(others), input);
  }

  static std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }
  static std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(Path(name)) << content;
    return Path(name);
  }
  static std::string Read(const std::string& name) {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::unique_ptr<Runtime> runtime_;
  TestingService testing_;
  StreamingService streams_;
  internal::PayloadService payloads_;
  PayloadStreamsService payload_streams_;
  PartlyService partly_;
  LiteService lite_;
  ReflectionService reflection_;
  HealthService health_;
  std::unique_ptr<Server> server_;
};

}  // namespace verbena::command

#endif  // VERBENA_TESTS_TOOLS_VERBENA_SERVED_COMMAND_H_
