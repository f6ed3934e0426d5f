// A server of the test service as a program of its own: testing_server HOST:PORT. Runs until it is
// killed.

#include <unistd.h>

#include <iostream>

#include "tests/rpc/testing_service.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: testing_server HOST:PORT" << std::endl, 2;
  auto runtime = verbena::Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  verbena::TestingService service;
  auto server = verbena::Server::Start(**runtime, {&service}, {.address = argv[1]});
  if (!server.ok()) return std::cerr << server.status() << std::endl, 1;
  while (true) pause();
}
