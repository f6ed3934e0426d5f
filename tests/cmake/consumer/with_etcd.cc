// A program with Verbena's client of etcd, which is entered into programs by their links alone. It
// asks an etcd that is not there for servers, and says how that failed.

#include <chrono>
#include <iostream>

#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

verbena::Task<absl::Status> Connect(verbena::Channel& channel) {
  co_return co_await channel.Connect({.deadline = std::chrono::seconds(1)});
}

int main() {
  auto runtime = verbena::Runtime::Start({.device = "soft"});
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  verbena::Channel channel(**runtime, "etcd://127.0.0.1:1/servers");
  std::cout << (*runtime)->BlockOn(Connect(channel)) << std::endl;
  return 0;
}
