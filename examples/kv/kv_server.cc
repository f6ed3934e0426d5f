// kv_server: serves kv.v1.KeyValue out of memory or RocksDB, until SIGINT or SIGTERM.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/admin.h"
#include "examples/common/help.h"
#include "examples/common/mode.h"
#include "examples/common/signals.h"
#include "examples/kv/dedupe_records.h"
#include "examples/kv/kv_service.h"
#include "examples/kv/open_store.h"
#include "examples/kv/store.h"
#include "fmt/format.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/reflection.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"

ABSL_FLAG(std::string, address, "127.0.0.1:4000", "Host and port to listen at.");
ABSL_FLAG(std::string, admin, "", "Host and port of the admin server.");
ABSL_FLAG(int, executors, 1, "Threads that serve.");
ABSL_FLAG(std::string, mode, "adaptive", "How they wait: busy, adaptive or event.");
ABSL_FLAG(std::string, store, "memory", "The engine: memory or rocksdb.");
ABSL_FLAG(std::string, directory, "", "Where RocksDB has its files.");
ABSL_FLAG(bool, durable, true, "RocksDB syncs writes before they are acknowledged.");
ABSL_FLAG(uint64_t, max_bytes, uint64_t{1} << 30, "Memory for entries.");
ABSL_FLAG(int, grace_s, 2, "Seconds that running calls have to end.");

namespace kv {

using examples::AsksForHelp;
using examples::ParseMode;
using examples::StopSignals;

namespace {

constexpr char kHelp[] =
    R"(usage: kv_server [options]

Serves kv.v1.KeyValue, a key-value store in memory or on RocksDB (examples/kv/kv.proto). Prints
"listening on ADDRESS" once it does. SIGINT (Ctrl-C) or SIGTERM ends it: running calls have
--grace_s seconds to end; a second signal ends it at once.

  --address=HOST:PORT  where to listen (default 127.0.0.1:4000); port 0 takes a free one
  --admin=HOST:PORT    where to serve /status, /readyz and the like over HTTP (default: nowhere); port 0 takes
                       a free one, and the server prints "status at URL"
  --executors=N        threads that serve, 1 to 1024 (default 1): one per core that it should use
  --mode=MODE          how they wait: busy (never sleeps), adaptive (default), event
  --store=ENGINE       memory (default; lost when the server ends) or rocksdb
  --directory=DIR      with --store=rocksdb, which needs it: where its files are; made if it does not exist
  --durable=BOOL       true (default): RocksDB syncs writes to disk before they are acknowledged, many
                       at once; false: a power cut may lose the latest, a kill does not
  --max_bytes=BYTES    with --store=memory: memory for entries (default 1 GiB), counting 128 bytes for
                       each besides its key and value; a Put beyond it is refused
  --grace_s=SECONDS    time for running calls when it is ended (default 2)
  --help               this text
)";

absl::Status Serve() {
  absl::StatusOr<verbena::ExecutorMode> mode = ParseMode(absl::GetFlag(FLAGS_mode));
  if (!mode.ok()) return mode.status();
  // Before there are other threads, so that none of them takes the signal.
  absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Block();
  if (!signals.ok()) return signals.status();

  absl::StatusOr<std::unique_ptr<verbena::Runtime>> runtime =
      verbena::Runtime::Start({.executors = absl::GetFlag(FLAGS_executors), .mode = *mode});
  if (!runtime.ok()) return runtime.status();
  absl::StatusOr<std::unique_ptr<verbena::Admin>> admin =
      examples::StartAdmin(**runtime, absl::GetFlag(FLAGS_admin));
  if (!admin.ok()) return admin.status();
  absl::StatusOr<std::unique_ptr<Store>> store =
      OpenStore({.engine = absl::GetFlag(FLAGS_store),
                 .directory = absl::GetFlag(FLAGS_directory),
                 .durable = absl::GetFlag(FLAGS_durable),
                 .max_bytes = absl::GetFlag(FLAGS_max_bytes)});
  if (!store.ok()) return store.status();
  DedupeRecords records(**store);
  absl::Status loaded = (*runtime)->BlockOn(records.Load());
  if (!loaded.ok()) return loaded;
  KvService service(**store, records);
  // For `verbena list`, `call` and `health`.
  verbena::ReflectionService reflection;
  verbena::HealthService health;
  absl::StatusOr<std::unique_ptr<verbena::Server>> server = verbena::Server::Start(
      **runtime, {&service, &reflection, &health},
      {.address = absl::GetFlag(FLAGS_address), .dedupe = {.store = &records}});
  if (!server.ok()) return server.status();

  examples::PrintAddresses((*server)->address(), admin->get());
  (*signals)->WaitForLast();
  (*server)->Shutdown(std::chrono::seconds(absl::GetFlag(FLAGS_grace_s)));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    fmt::print(stderr, "kv_server: '{}' is not an option; see kv_server --help\n", words[1]);
    return 1;
  }
  const absl::Status status = Serve();
  if (!status.ok()) fmt::print(stderr, "kv_server: {}\n", std::string(status.message()));
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) { return kv::Main(argc, argv); }
