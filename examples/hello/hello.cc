// A service, a server and a client in one program, over the in-process wire of the soft device.

#include <chrono>
#include <iostream>

#include "examples/hello/hello.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"

class Greeter final : public hello::Greeter::Service {
  verbena::Task<absl::Status> Hello(verbena::ServerContext&, const hello::HelloRequest& request,
                                    hello::HelloReply& reply) override {
    reply.set_text("Hello, " + request.name() + "!");
    co_return absl::OkStatus();
  }
};

verbena::Task<absl::Status> Greet(verbena::Channel& channel) {
  hello::Greeter::Stub greeter(channel);
  hello::HelloRequest request;
  request.set_name("storage");
  auto reply = co_await greeter.Hello(request, {.deadline = std::chrono::seconds(1)});
  if (reply.ok()) std::cout << reply->text() << std::endl;
  co_return reply.status();
}

int main() {
  auto runtime = verbena::Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  Greeter service;
  auto server = verbena::Server::Start(**runtime, {&service});
  if (!server.ok()) return std::cerr << server.status() << std::endl, 1;
  verbena::Channel channel(**runtime, (*server)->address());
  absl::Status status = (*runtime)->BlockOn(Greet(channel));
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
