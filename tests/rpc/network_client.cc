// A client of the test service as a program of its own: network_client HOST:PORT. Each line of its
// input is a task, which it answers by one line; it ends with its input.
//
//   calls COUNT BYTES MS   COUNT echo calls at once, of BYTES each, with a deadline in MS
//                          milliseconds: prints "ok N", and " CODE N" for each code of a failure
//   devices                prints the names of the devices that carry links, and their kinds

#include <chrono>
#include <cstddef>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/testing.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {
namespace {

class NetworkClient {
 public:
  NetworkClient(Runtime& runtime, const std::string& address)
      : runtime_(runtime), channel_(runtime, address), stub_(channel_) {}

  void Calls(size_t count, size_t bytes, Duration patience) {
    std::vector<absl::Status> ended(count, absl::UnknownError("not ended"));
    runtime_.BlockOn(CallAll(bytes, patience, ended));
    size_t good = 0;
    std::map<std::string, size_t> failures;
    for (const absl::Status& status : ended) {
      if (status.ok()) {
        ++good;
      } else {
        ++failures[absl::StatusCodeToString(status.code())];
        std::cerr << status << std::endl;
      }
    }
    std::cout << "ok " << good;
    for (const auto& [code, number] : failures) std::cout << " " << code << " " << number;
    std::cout << std::endl;
  }

  void Devices() {
    for (const DeviceStats& each : runtime_.device_stats(0)) {
      if (each.endpoint.links > 0) std::cout << each.device << " (" << each.kind << ") ";
    }
    std::cout << std::endl;
  }

 private:
  Task<void> CallAll(size_t bytes, Duration patience, std::vector<absl::Status>& ended) {
    TaskScope scope(runtime_.executor(0));
    for (size_t i = 0; i < ended.size(); ++i) {
      scope.Spawn(CallOnce(i, bytes, patience, ended[i]));
    }
    co_await scope.Join();
  }

  Task<void> CallOnce(size_t number, size_t bytes, Duration patience, absl::Status& ended) {
    testing::EchoRequest request;
    request.set_number(number);
    std::string& data = *request.mutable_data();
    data.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(number * 31 + i / 7);
    const absl::StatusOr<testing::EchoReply> reply =
        co_await stub_.Echo(request, {.deadline = patience, .wait_for_ready = true});
    ended = reply.status();
    if (!reply.ok()) co_return;
    if (reply->number() != number || reply->data() != data) {
      ended = absl::DataLossError("a reply is not its request's");
    }
  }

  Runtime& runtime_;
  Channel channel_;
  testing::Testing::Stub stub_;
};

int Main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: network_client HOST:PORT" << std::endl, 2;
  auto runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  NetworkClient client(**runtime, argv[1]);
  for (std::string task; std::cin >> task;) {
    if (task == "devices") {
      client.Devices();
      continue;
    }
    size_t count = 0;
    size_t bytes = 0;
    int milliseconds = 0;
    if (task != "calls" || !(std::cin >> count >> bytes >> milliseconds)) {
      return std::cerr << "no such task: " << task << std::endl, 2;
    }
    client.Calls(count, bytes, std::chrono::milliseconds(milliseconds));
  }
  return 0;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) { return verbena::Main(argc, argv); }
