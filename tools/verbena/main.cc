// verbena: the command-line tool of a machine that runs Verbena.

#include <cstdio>
#include <string>

#include "fmt/format.h"
#include "tools/verbena/doctor.h"
#include "tools/verbena/selftest.h"
#include "verbena/rpc/version.h"

namespace {

constexpr const char* kUsage =
    "usage: verbena COMMAND\n"
    "\n"
    "commands:\n"
    "  doctor   what this machine has for RDMA, which wire two processes of this host take, what\n"
    "           is wrong, and the commands that mend it.\n"
    "           Exit status 0: RDMA works, or there is no device and the soft device works.\n"
    "           1: a device is there that does not work, or nothing works.\n"
    "           --container: also what a container or unit takes from this process\n"
    "  selftest DEVICE\n"
    "           tries on an RDMA device (\"mlx5_0\", \"eth0\"; \"soft\") what Verbena asks of it,\n"
    "           and measures it for some seconds, without another host.\n"
    "           Exit status 0: all works. 1: something does not. 2: it cannot be tested\n"
    "  help     this text\n"
    "\n"
    "options:\n"
    "  --version   the version of Verbena\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "help" || command == "--help" || command == "-h") return fmt::print(kUsage), 0;
  if (command == "--version") {
    fmt::print("verbena {}.{}.{}\n", VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR,
               VERBENA_VERSION_PATCH);
    return 0;
  }
  const std::string option = argc > 2 ? argv[2] : "";
  if (command == "doctor" && (option == "--help" || option == "-h")) return fmt::print(kUsage), 0;
  if (command == "doctor" && argc == 2) return verbena::doctor::RunDoctor();
  if (command == "doctor" && argc == 3 && option == "--container") {
    return verbena::doctor::RunDoctor(/*container=*/true);
  }
  if (command == "selftest" && argc == 3 && option != "--help" && option != "-h") {
    return verbena::doctor::RunSelftest(option);
  }
  if (command == "selftest") {
    fmt::print(stderr, "verbena: selftest takes one device; see verbena help\n");
  } else if (command == "doctor") {
    fmt::print(stderr, "verbena: doctor takes --container alone, but was given '{}'\n",
               argc > 3 ? argv[3] : option);
  } else if (command.empty()) {
    fmt::print(stderr, "verbena: which command?\n\n{}", kUsage);
  } else {
    fmt::print(stderr, "verbena: there is no command '{}'; see verbena help\n", command);
  }
  return 2;
}
