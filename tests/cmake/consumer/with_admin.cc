// A program with Verbena's admin server. It says where it listens.

#include "verbena/rpc/admin.h"

#include <iostream>

#include "verbena/rpc/runtime.h"

int main() {
  auto runtime = verbena::Runtime::Start({.device = "soft"});
  if (!runtime.ok()) return std::cerr << runtime.status() << std::endl, 1;
  auto admin = verbena::Admin::Start(**runtime);
  if (!admin.ok()) return std::cerr << admin.status() << std::endl, 1;
  std::cout << "listens at " << (*admin)->address() << std::endl;
  return 0;
}
