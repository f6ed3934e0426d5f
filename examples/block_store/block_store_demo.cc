// block_store_demo: the command line of the demo.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "examples/block_store/copy_flags.h"
#include "examples/block_store/demo.h"
#include "examples/common/help.h"
#include "examples/common/mode.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(std::string, directory, "/var/tmp", "Where the volume lies while the demo runs.");
ABSL_FLAG(std::string, address, "127.0.0.1:0", "Where block_store_server listens.");
ABSL_FLAG(std::string, mode, "adaptive", "How both wait: busy, adaptive or event.");
ABSL_FLAG(std::string, server, "", "The path of block_store_server.");
ABSL_FLAG(std::string, server_in, "", "Namespaces of the server's own: pid, user, net, …");

namespace block_store {
namespace {

constexpr char kHelp[] =
    R"(usage: block_store_demo [options] [PATH]

Starts block_store_server as a process of its own; stores the directory tree PATH in a volume; reads it
back with many reads in flight; compares the SHA-256 of every file with that of the original; and prints what
that took, beside cp through the same disk and memcpy. Without PATH it takes one that every Debian with the build's
packages has (/usr/lib/python3.11, 54 MB). Symbolic links and special files are named and left out. What it makes on
the disk, twice the tree's size, is removed at its end; Ctrl-C ends it, and the server.

  --in_flight=N          requests under way at once (default 16, at most 1024, and 64 MiB together)
  --request_bytes=N      what one moves at most: a multiple of 4096 (default 262144, at most 16777216)
  --directory=DIRECTORY  on the disk to be used (default /var/tmp)
  --mode=MODE            how both processes wait: busy (never sleeps), adaptive (default), event
  --address=HOST:PORT    where the server listens (default 127.0.0.1:0, a free port)
  --server=PATH          the server (default: block_store_server beside this program)
  --server_in=LIST       new namespaces for the server, as in a container: any of pid, user, net, ipc, mount, uts,
                         with commas between. net takes root, ip and nsenter: a cable joins the two networks
  --help                 this text

Latencies are those of calls, from before a request is sent until its reply and its payload are there. store, read
and verify go through the server, which goes past the page cache where the file system lets it; cp and read(2)
go through the page cache.
)";

// block_store_server beside this program, wherever that was started from.
std::string DefaultServer() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, size > 0 ? static_cast<size_t>(size) : 0);
  return self.substr(0, self.rfind('/') + 1) + "block_store_server";
}

// The first readable directory among those that the build's packages bring.
std::string DefaultPath() {
  for (const char* path : {"/usr/lib/python3.11", "/usr/lib/python3", "/usr/include/boost"}) {
    if (access(path, R_OK | X_OK) == 0) return path;
  }
  return "";
}

absl::StatusOr<int> NamespacesFrom(const std::string& list) {
  static constexpr std::pair<absl::string_view, int> kNames[] = {
      {"pid", CLONE_NEWPID}, {"user", CLONE_NEWUSER}, {"net", CLONE_NEWNET},
      {"ipc", CLONE_NEWIPC}, {"mount", CLONE_NEWNS},  {"uts", CLONE_NEWUTS}};
  int namespaces = 0;
  for (const absl::string_view name : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                     [name](const auto& each) { return each.first == name; });
    if (found == std::end(kNames)) {
      return absl::InvalidArgumentError(
          fmt::format("--server_in={}: there is no namespace '{}'; name some of pid, user, net, "
                      "ipc, mount, uts",
                      list, std::string(name)));
    }
    namespaces |= found->second;
  }
  return namespaces;
}

absl::StatusOr<DemoOptions> OptionsFrom(const std::vector<char*>& words) {
  if (words.size() > 2) return absl::InvalidArgumentError("one PATH at a time");
  DemoOptions options;
  options.path = words.size() == 2 ? words[1] : DefaultPath();
  if (options.path.empty()) {
    return absl::InvalidArgumentError("this system lacks the usual directories; name one");
  }
  VERBENA_ASSIGN_OR_RETURN(options.mode, examples::ParseMode(absl::GetFlag(FLAGS_mode)));
  VERBENA_ASSIGN_OR_RETURN(options.copy, CopyOptionsFromFlags());
  VERBENA_ASSIGN_OR_RETURN(options.server_namespaces,
                           NamespacesFrom(absl::GetFlag(FLAGS_server_in)));
  options.mode_name = absl::GetFlag(FLAGS_mode);
  options.directory = absl::GetFlag(FLAGS_directory);
  options.address = absl::GetFlag(FLAGS_address);
  options.server = absl::GetFlag(FLAGS_server);
  if (options.server.empty()) options.server = DefaultServer();
  return options;
}

int Main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const absl::StatusOr<DemoOptions> options = OptionsFrom(absl::ParseCommandLine(argc, argv));
  if (!options.ok()) {
    fmt::print(stderr, "block_store_demo: {}\n", std::string(options.status().message()));
    return 1;
  }
  return RunDemo(*options);
}

}  // namespace
}  // namespace block_store

int main(int argc, char** argv) { return block_store::Main(argc, argv); }
