#include "tools/verbena/command_line.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "tools/verbena/bench.h"
#include "tools/verbena/doctor.h"
#include "tools/verbena/selftest.h"
#include "tools/verbena/stats.h"
#include "verbena/rpc/version.h"

namespace verbena::command {
namespace {

constexpr const char* kExits =
    "Exit status: 0; 2 for arguments or JSON that are wrong; 64 and the number of the status for "
    "a\n"
    "call that fails: 68 DEADLINE_EXCEEDED, 69 NOT_FOUND, 76 UNIMPLEMENTED, 78 UNAVAILABLE …";

void AddServer(CLI::App& command, ServerArguments& arguments) {
  command
      .add_option("TARGET", arguments.target,
                  "host:port of a server, or any other target of a Channel, such as "
                  "static:a:4000,b:4000")
      ->required();
  command
      .add_option("--deadline", arguments.deadline,
                  "of each call: a number and us, ms, s, m or h, or none")
      ->capture_default_str();
  command
      .add_option("--device", arguments.device, "RuntimeOptions::device: soft, soft:tcp, rdma:NAME")
      ->capture_default_str();
  command.footer(kExits);
}

void AddCall(CLI::App& command, CallArguments& arguments) {
  AddServer(command, arguments);
  command.add_option("METHOD", arguments.method, "package.Service/Method")->required();
  command
      .add_option("JSON", arguments.json,
                  "the request: JSON, - for standard input, or @FILE. One message a line if the "
                  "client streams. No JSON: an empty message")
      ->capture_default_str();
  command
      .add_option("--metadata,-m", arguments.metadata,
                  "KEY=VALUE, as often as needed; base64 for keys that end in -bin")
      ->allow_extra_args(false);
  command
      .add_option("--payload", arguments.payloads,
                  "a file with the request's payload; if the client streams, the next one is for "
                  "the next message")
      ->allow_extra_args(false);
  command.add_option("--payload-out", arguments.payload_out,
                     "a file for the reply's payload; those of a stream one after another");
  command.add_flag("--wait", arguments.wait, "wait for a server until the deadline");
  command.add_flag("--pretty", arguments.pretty, "replies in several lines");
  command.add_flag("--defaults", arguments.defaults, "also fields that have their default");
  command.add_flag("--verbose,-v", arguments.verbose,
                   "time, sizes and trailing metadata, on standard error");
}

void AddBench(CLI::App& command, BenchArguments& arguments) {
  AddServer(command, arguments);
  command.add_option("METHOD", arguments.method, "a unary method, package.Service/Method")
      ->required();
  command.add_option("JSON", arguments.json, "the request: JSON, - or @FILE")
      ->capture_default_str();
  command.add_option("--rate", arguments.rate, "calls a second, whatever the server does")
      ->check(CLI::Range(1.0, 1e7))
      ->capture_default_str();
  command.add_option("--seconds", arguments.seconds, "how long")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  command
      .add_option("--in-flight", arguments.in_flight,
                  "the most calls at once; later ones wait, and their latency counts from when "
                  "they were due")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
}

void AddAdmin(CLI::App& command, std::string& admin) {
  command
      .add_option("ADMIN", admin,
                  "an admin server: host:port of AdminOptions::address, or unix:PATH with the path "
                  "of AdminOptions::socket")
      ->required();
  command.footer(
      "It has 5 s to answer, the look-up of its host name among them.\n"
      "Exit status: 0; 1 if the admin server gives no answer; 2 for wrong arguments.");
}

// All commands, with their arguments.
struct Commands {
  Commands() {
    app.name("verbena");
    app.require_subcommand(0, 1);
    app.set_help_flag("--help,-h", "this text");
    app.add_flag("--version", version, "the version of Verbena");
    help = app.add_subcommand("help", "this text");
    doctor_command = app.add_subcommand(
        "doctor",
        "what this machine has for RDMA, which wire two processes of this host take, what is "
        "wrong, "
        "and the commands that mend it. Exit status 0: RDMA works, or there is no device and the "
        "soft device works. 1: a device is there that does not work, or nothing works");
    doctor_command->add_flag("--container", container,
                             "also what a container or unit takes from this process");
    selftest_command = app.add_subcommand(
        "selftest",
        "tries on an RDMA device what Verbena asks of it, and measures it for some seconds, "
        "without "
        "another host. Exit status 0: all works. 1: something does not. 2: it cannot be tested");
    selftest_command->add_option("DEVICE", selftest_device, "mlx5_0, eth0 or soft")->required();
    call_command = app.add_subcommand("call", "calls a method, with JSON for its messages");
    AddCall(*call_command, call);
    list_command = app.add_subcommand("list", "the services of a server");
    AddServer(*list_command, list);
    list_command->add_flag("--methods", list.methods, "their methods, as call takes them");
    describe_command =
        app.add_subcommand("describe", "what the .proto says of a service, method or message");
    AddServer(*describe_command, describe);
    describe_command
        ->add_option("NAME", describe.name, "package.Service, package.Service/Method, or a message")
        ->required();
    health_command = app.add_subcommand(
        "health", "whether a server serves: SERVING, or NOT_SERVING and exit status 1");
    AddServer(*health_command, health);
    health_command->add_option("SERVICE", health.name, "one service; otherwise the whole server");
    bench_command = app.add_subcommand(
        "bench",
        "calls a method at a fixed rate, and prints latencies from when each call was due");
    AddBench(*bench_command, bench);
    stats_command = app.add_subcommand(
        "stats",
        "what a process does, by its admin server, also while its calls hang: a line for each "
        "method, device and pool of memory");
    AddAdmin(*stats_command, stats.admin);
    stats_command->add_flag("--metrics", stats.metrics,
                            "its metrics instead, as Prometheus reads them");
    top_command = app.add_subcommand(
        "top",
        "the same each second until Ctrl-C, with the rates and times since the last one, the "
        "busiest methods first");
    AddAdmin(*top_command, top.admin);
    top_command
        ->add_option("--count", top.count,
                     "ends after so many tables, or lines that say why there is none; 0: "
                     "never")
        ->check(CLI::Range(0, 1'000'000'000))
        ->capture_default_str();
    app.failure_message([](const CLI::App*, const CLI::Error& error) {
      return fmt::format("verbena: {}; see verbena --help\n", error.what());
    });
  }

  CLI::App app{"The command of Verbena: calls servers, and looks at this machine."};
  bool version = false;
  CallArguments call;
  ListArguments list;
  NameArguments describe;
  NameArguments health;
  BenchArguments bench;
  StatsArguments stats;
  TopArguments top;
  bool container = false;
  std::string selftest_device;
  CLI::App* help = nullptr;
  CLI::App* doctor_command = nullptr;
  CLI::App* selftest_command = nullptr;
  CLI::App* call_command = nullptr;
  CLI::App* list_command = nullptr;
  CLI::App* describe_command = nullptr;
  CLI::App* health_command = nullptr;
  CLI::App* bench_command = nullptr;
  CLI::App* stats_command = nullptr;
  CLI::App* top_command = nullptr;
};

}  // namespace

int RunCommandLine(std::vector<std::string> arguments, Terminal& terminal) {
  Commands commands;
  CLI::App& app = commands.app;
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    const int exit = app.exit(error, terminal.output, terminal.error);
    return exit == 0 ? 0 : kMistake;
  }
  if (commands.version) {
    terminal.output << fmt::format("verbena {}.{}.{}", VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR,
                                   VERBENA_VERSION_PATCH)
                    << std::endl;
    return 0;
  }
  if (commands.help->parsed()) {
    // App::help() would be that of the subcommand help.
    terminal.output << app.get_formatter()->make_help(&app, app.get_name(),
                                                      CLI::AppFormatMode::Normal)
                    << std::flush;
    return 0;
  }
  if (commands.doctor_command->parsed()) return doctor::RunDoctor(commands.container);
  if (commands.selftest_command->parsed()) return doctor::RunSelftest(commands.selftest_device);
  if (commands.call_command->parsed()) return RunCall(commands.call, terminal);
  if (commands.list_command->parsed()) return RunList(commands.list, terminal);
  if (commands.describe_command->parsed()) return RunDescribe(commands.describe, terminal);
  if (commands.health_command->parsed()) return RunHealth(commands.health, terminal);
  if (commands.bench_command->parsed()) return RunBench(commands.bench, terminal);
  if (commands.stats_command->parsed()) return RunStats(commands.stats, terminal);
  if (commands.top_command->parsed()) return RunTop(commands.top, terminal);
  terminal.error << "verbena: which command?\n\n" << app.help() << std::flush;
  return kMistake;
}

}  // namespace verbena::command
