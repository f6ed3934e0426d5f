// kv_demo: the command line of the demo.

#include <unistd.h>

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/help.h"
#include "examples/common/mode.h"
#include "examples/kv/corpus.h"
#include "examples/kv/demo.h"
#include "fmt/format.h"
#include "verbena/rpc/runtime.h"

ABSL_FLAG(int, in_flight, 64, "Calls that are under way at once.");
ABSL_FLAG(uint64_t, rounds, 1, "How often everything is put and read back.");
ABSL_FLAG(std::string, address, "127.0.0.1:0", "Where kv_server listens.");
ABSL_FLAG(int, executors, 1, "Threads of each process that make or serve calls.");
ABSL_FLAG(std::string, mode, "adaptive", "How they wait: busy, adaptive or event.");
ABSL_FLAG(uint64_t, max_bytes, uint64_t{1} << 30, "Memory of the server for entries.");
ABSL_FLAG(std::string, store, "memory", "The server's engine: memory or rocksdb.");
ABSL_FLAG(std::string, directory, "", "Where RocksDB has its files.");
ABSL_FLAG(bool, durable, true, "RocksDB syncs writes before they are acknowledged.");
ABSL_FLAG(std::string, server, "", "The path of kv_server.");

namespace kv {

using examples::AsksForHelp;
using examples::ParseMode;

namespace {

constexpr char kHelp[] =
    R"(usage: kv_demo [options] [FILE ...]

Starts kv_server, a key-value store in memory or on RocksDB, as a process of its own; puts every line of
the files into it, under the line's SHA-256; reads all back with many calls in flight; compares every byte;
scans the whole store; puts and gets the same in a store of its own, without calls; says which engine the
server uses; and prints a table of what that took. Without FILE it takes the licence texts and copyright
notices that every Debian has. A line of more than 4,096 bytes is stored in parts, under its SHA-256 and #0,
#1, and so on. Files may hold any bytes. Ctrl-C ends it, and the server.

  --in_flight=N        calls under way at once (default 64, at most 16384)
  --rounds=N           put and read everything this often (default 1)
  --executors=N        threads of each process that make or serve calls, 1 to 1024 (default 1)
  --mode=MODE          how they wait: busy (never sleeps), adaptive (default), event
  --store=ENGINE       memory (default) or rocksdb
  --directory=DIR      where the server's RocksDB has its files, which stay; default: a new directory in
                       TMPDIR or /var/tmp, removed at the end
  --durable=BOOL       true (default): RocksDB syncs writes to disk before they are acknowledged
  --max_bytes=BYTES    what the files, and the server's memory for entries, may take (default 1 GiB)
  --address=HOST:PORT  where the server listens (default 127.0.0.1:0, a free port)
  --server=PATH        the server (default: kv_server beside this program)
  --help               this text

Latencies are those of calls, from before a request is sent until its reply is there. Credit waits are requests
that waited for the server to have room for them.
)";

constexpr int kMaxInFlight = 16384;  // the default max_concurrent_calls of a server

// kv_server beside this program, wherever that was started from.
std::string DefaultServer() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, size > 0 ? static_cast<size_t>(size) : 0);
  return self.substr(0, self.rfind('/') + 1) + "kv_server";
}

absl::StatusOr<DemoOptions> OptionsFrom(const std::vector<char*>& words) {
  const absl::StatusOr<verbena::ExecutorMode> mode = ParseMode(absl::GetFlag(FLAGS_mode));
  if (!mode.ok()) return mode.status();
  DemoOptions options;
  options.paths.assign(words.begin() + 1, words.end());
  if (options.paths.empty()) options.paths = Corpus::DefaultPaths();
  if (options.paths.empty()) {
    return absl::InvalidArgumentError("this system has no licence texts; name some files");
  }
  options.server = absl::GetFlag(FLAGS_server);
  if (options.server.empty()) options.server = DefaultServer();
  options.address = absl::GetFlag(FLAGS_address);
  options.executors = absl::GetFlag(FLAGS_executors);
  options.mode = *mode;
  options.mode_name = absl::GetFlag(FLAGS_mode);
  options.store = {.engine = absl::GetFlag(FLAGS_store),
                   .directory = absl::GetFlag(FLAGS_directory),
                   .durable = absl::GetFlag(FLAGS_durable),
                   .max_bytes = absl::GetFlag(FLAGS_max_bytes)};
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.in_flight = absl::GetFlag(FLAGS_in_flight);
  if (options.in_flight < 1 || options.in_flight > kMaxInFlight) {
    return absl::InvalidArgumentError(
        fmt::format("--in_flight is {}, but must be 1 to {}", options.in_flight, kMaxInFlight));
  }
  return options;
}

int Main(int argc, char** argv) {
  if (AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const absl::StatusOr<DemoOptions> options = OptionsFrom(absl::ParseCommandLine(argc, argv));
  if (!options.ok()) {
    fmt::print(stderr, "kv_demo: {}\n", std::string(options.status().message()));
    return 1;
  }
  return RunDemo(*options);
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) { return kv::Main(argc, argv); }
