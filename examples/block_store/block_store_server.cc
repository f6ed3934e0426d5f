// block_store_server: serves block_store.v1.BlockStore out of a directory, until SIGINT or SIGTERM.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/block_service.h"
#include "examples/block_store/volume_store.h"
#include "examples/common/admin.h"
#include "examples/common/help.h"
#include "examples/common/mode.h"
#include "examples/common/signals.h"
#include "fmt/format.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(std::string, directory, "", "Where the volumes lie.");
ABSL_FLAG(std::string, address, "127.0.0.1:4001", "Host and port to listen at.");
ABSL_FLAG(std::string, admin, "", "Host and port of the admin server.");
ABSL_FLAG(int, executors, 1, "Threads that serve.");
ABSL_FLAG(std::string, mode, "adaptive", "How they wait: busy, adaptive or event.");
ABSL_FLAG(int, grace_s, 5, "Seconds that running calls have to end.");

namespace block_store {
namespace {

constexpr char kHelp[] =
    R"(usage: block_store_server --directory=DIRECTORY [options]

Serves block_store.v1.BlockStore (examples/block_store/block_store.proto): volumes of 4 KiB blocks, each a file
NAME.volume in the directory. Prints "listening on ADDRESS" once it does. SIGINT (Ctrl-C) or SIGTERM ends it:
running calls have --grace_s seconds to end; a second signal ends it at once. However it ends, nothing that
was flushed is lost.

  --directory=DIRECTORY  where the volumes lie; it must exist, and serves one server at a time
  --address=HOST:PORT    where to listen (default 127.0.0.1:4001); port 0 takes a free one
  --admin=HOST:PORT      where to serve /status, /readyz and the like over HTTP (default: nowhere); port 0
                         takes a free one, and the server prints "status at URL"
  --executors=N          threads that serve (default 1), one per core that it should use
  --mode=MODE            how they wait: busy (never sleeps), adaptive (default), event
  --grace_s=SECONDS      time for running calls when it is ended (default 5)
  --help                 this text
)";

absl::Status Serve() {
  if (absl::GetFlag(FLAGS_directory).empty()) {
    return absl::InvalidArgumentError("name a directory for the volumes: --directory=DIRECTORY");
  }
  VERBENA_ASSIGN_OR_RETURN(const verbena::ExecutorMode mode,
                           examples::ParseMode(absl::GetFlag(FLAGS_mode)));
  // Before there are other threads, so that none of them takes the signal.
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<examples::StopSignals> signals,
                           examples::StopSignals::Block());
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<verbena::Runtime> runtime,
      verbena::Runtime::Start({.executors = absl::GetFlag(FLAGS_executors), .mode = mode}));
  VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<verbena::Admin> admin,
                           examples::StartAdmin(*runtime, absl::GetFlag(FLAGS_admin)));
  std::vector<verbena::Executor*> executors;
  executors.reserve(runtime->executors());
  for (int i = 0; i < runtime->executors(); ++i) executors.push_back(&runtime->executor(i));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<VolumeStore> store,
                           VolumeStore::Open(absl::GetFlag(FLAGS_directory), executors));
  BlockService service(*store);
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<verbena::Server> server,
      verbena::Server::Start(*runtime, {&service}, {.address = absl::GetFlag(FLAGS_address)}));

  examples::PrintAddresses(server->address(), admin.get());
  signals->WaitForLast();
  server->Shutdown(std::chrono::seconds(absl::GetFlag(FLAGS_grace_s)));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    fmt::print(stderr, "block_store_server: '{}' is not an option; see block_store_server --help\n",
               words[1]);
    return 1;
  }
  const absl::Status status = Serve();
  if (!status.ok()) {
    fmt::print(stderr, "block_store_server: {}\n", std::string(status.message()));
  }
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace block_store

int main(int argc, char** argv) { return block_store::Main(argc, argv); }
