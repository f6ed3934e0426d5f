// block_copy: copies files and directory trees into volumes of a block store, and out of them.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/copy_flags.h"
#include "examples/block_store/local_tree.h"
#include "examples/block_store/tree_copy.h"
#include "examples/block_store/volume_client.h"
#include "examples/common/amounts.h"
#include "examples/common/help.h"
#include "examples/common/mode.h"
#include "examples/common/phase.h"
#include "examples/common/signals.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(std::string, server, "127.0.0.1:4001", "Where block_store_server listens.");
ABSL_FLAG(std::string, mode, "adaptive", "How it waits: busy, adaptive or event.");

namespace block_store {
namespace {

using examples::Counted;
using examples::PhaseReport;
using examples::Sized;

constexpr char kHelp[] =
    R"(usage: block_copy [options] put PATH VOLUME       stores a file, or a directory and all below
       block_copy [options] get VOLUME DIRECTORY  copies what is stored into a directory
       block_copy [options] verify VOLUME         reads what is stored, and compares
       block_copy [options] list                  lists the volumes

put makes the volume, and is done when all is durable; symbolic links and special files are named
and left out. get makes the directory if it is not there, and replaces no file. get and verify
compare the SHA-256 of each file with the one that it had when it was stored. Permissions are kept, owners and
times are not. An interrupted put may be repeated.

  --server=HOST:PORT    where block_store_server listens (default 127.0.0.1:4001)
  --in_flight=N         requests under way at once (default 16, at most 1024, and 64 MiB together)
  --request_bytes=N     what one moves at most: a multiple of 4096 (default 262144, at most 16777216)
  --mode=MODE           how it waits: busy (never sleeps), adaptive (default), event
  --help                this text
)";

void Tell(const char* done, const Tree& tree, const PhaseReport& report) {
  const double seconds = report.elapsed.count();
  fmt::print("{} {}, {}, in {:.2f} s\n", done, Counted(tree.files.size(), "file"),
             Sized(tree.bytes()), seconds);
}

class BlockCopy {
 public:
  BlockCopy(verbena::Runtime& runtime, verbena::Channel& channel, examples::StopSignals& signals,
            const CopyOptions& options)
      : runtime_(runtime), channel_(channel), copy_(runtime, channel, signals, options) {}

  absl::Status Run(const std::vector<std::string>& words) {
    const std::string command = words.empty() ? "" : words[0];
    if (command == "put" && words.size() == 3) return Put(words[1], words[2]);
    if (command == "get" && words.size() == 3) return Get(words[1], words[2]);
    if (command == "verify" && words.size() == 2) return Verify(words[1]);
    if (command == "list" && words.size() == 1) return List();
    return absl::InvalidArgumentError(
        "say what to do: put PATH VOLUME, get VOLUME DIRECTORY, verify VOLUME or list; see "
        "block_copy --help");
  }

 private:
  absl::Status Put(const std::string& path, const std::string& volume) {
    VERBENA_ASSIGN_OR_RETURN(LocalTree local, WalkTree(path));
    for (const LocalTree::Skipped& skipped : local.skipped) {
      fmt::print(stderr, "left out: {} ({})\n", skipped.path, skipped.what);
    }
    PhaseReport report;
    VERBENA_RETURN_IF_ERROR(copy_.Store(local, volume, report));
    Tell("stored", local.tree, report);
    return absl::OkStatus();
  }

  absl::Status Get(const std::string& volume, const std::string& directory) {
    VERBENA_ASSIGN_OR_RETURN(const Tree tree, copy_.ReadIndex(volume));
    VERBENA_RETURN_IF_ERROR(MakeTree(directory, tree));
    PhaseReport report;
    VERBENA_RETURN_IF_ERROR(copy_.Read(volume, tree, ReadInto::kFiles, directory, report));
    VERBENA_RETURN_IF_ERROR(SetModes(directory, tree));
    Tell("copied", tree, report);
    return absl::OkStatus();
  }

  absl::Status Verify(const std::string& volume) {
    VERBENA_ASSIGN_OR_RETURN(const Tree tree, copy_.ReadIndex(volume));
    PhaseReport report;
    VERBENA_RETURN_IF_ERROR(copy_.Read(volume, tree, ReadInto::kComparison, "", report));
    Tell("verified", tree, report);
    return absl::OkStatus();
  }

  absl::Status List() {
    VERBENA_ASSIGN_OR_RETURN(const std::vector<v1::VolumeEntry> volumes,
                             runtime_.BlockOn(ListVolumes(channel_)));
    for (const v1::VolumeEntry& entry : volumes) {
      fmt::print("{:<32} {:>14} blocks\n", entry.volume(), examples::Grouped(entry.blocks()));
    }
    return absl::OkStatus();
  }

  verbena::Runtime& runtime_;
  verbena::Channel& channel_;
  TreeCopy copy_;
};

absl::Status RunCommand(const std::vector<std::string>& words, examples::StopSignals& signals) {
  VERBENA_ASSIGN_OR_RETURN(const CopyOptions options, CopyOptionsFromFlags());
  VERBENA_ASSIGN_OR_RETURN(const verbena::ExecutorMode mode,
                           examples::ParseMode(absl::GetFlag(FLAGS_mode)));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<verbena::Runtime> runtime,
                           verbena::Runtime::Start({.mode = mode}));
  verbena::Channel channel(*runtime, absl::GetFlag(FLAGS_server));
  return BlockCopy(*runtime, channel, signals, options).Run(words);
}

int Main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) {
    fmt::print("{}", kHelp);
    return 0;
  }
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  // Before there are other threads.
  absl::StatusOr<std::unique_ptr<examples::StopSignals>> signals = examples::StopSignals::Block();
  const absl::Status status =
      signals.ok() ? RunCommand({words.begin() + 1, words.end()}, **signals) : signals.status();
  if (status.ok()) return 0;
  fmt::print(stderr, "block_copy: {}\n", std::string(status.message()));
  return signals.ok() && (*signals)->received() != 0 ? 128 + (*signals)->received() : 1;
}

}  // namespace
}  // namespace block_store

int main(int argc, char** argv) { return block_store::Main(argc, argv); }
