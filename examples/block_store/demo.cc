#include "examples/block_store/demo.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/cable_addresses.h"
#include "examples/block_store/comparison.h"
#include "examples/block_store/local_tree.h"
#include "examples/common/amounts.h"
#include "examples/common/phase.h"
#include "examples/common/server_process.h"
#include "examples/common/sha256.h"
#include "examples/common/signals.h"
#include "fmt/format.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::Counted;
using examples::PhaseReport;
using examples::ServerProcess;
using examples::Sized;
using examples::StopSignals;

namespace {

constexpr char kVolume[] = "demo";
constexpr char kIp[] = "/usr/sbin/ip";
constexpr char kNsenter[] = "/usr/bin/nsenter";
// memcpy is over too soon to be measured on a small tree.
constexpr uint64_t kLeastMemcpyBytes = uint64_t{256} << 20;

// A directory that its destructor removes with all its content.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(const std::string& parent) {
    std::string path = parent + "/verbena-block-store-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return absl::ErrnoToStatus(errno, "a directory in " + parent);
    }
    return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path)));
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    if (error) fmt::print(stderr, "{} stays: {}\n", path_, error.message());
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

struct Row {
  PhaseReport report;
  const char* what;
};

std::string Latency(const PhaseReport& report, double percentile) {
  if (report.calls == 0) return "-";
  return fmt::format("{:.1f}", report.latencies.PercentileNs(percentile) / 1e3);
}

std::string Table(const std::vector<Row>& rows) {
  std::string table =
      fmt::format("{:<8} {:>8} {:>9} {:>10} {:>10}\n", "", "calls", "MB/s", "p50 us", "p99 us");
  for (const auto& [report, what] : rows) {
    const double seconds = report.elapsed.count();
    const double rate = seconds > 0 ? static_cast<double>(report.bytes) / seconds / 1e6 : 0;
    table += fmt::format("{:<8} {:>8} {:>9.1f} {:>10} {:>10}  {}\n", report.name,
                         report.calls == 0 ? "-" : examples::Grouped(report.calls), rate,
                         Latency(report, 50), Latency(report, 99), what);
  }
  return table;
}

class Demo {
 public:
  Demo(const DemoOptions& options, LocalTree& local, StopSignals& signals)
      : options_(options), local_(local), signals_(signals) {}

  absl::Status Run() {
    VERBENA_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Make(options_.directory));
    VERBENA_RETURN_IF_ERROR(StartServer());
    absl::Status worked = Work();
    if (absl::Status running = server_->CheckRunning(); !running.ok()) return running;
    absl::Status stopped = server_->Stop(signals_);
    return worked.ok() ? stopped : worked;
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  absl::Status StartServer() {
    const std::string volumes = directory_->path() + "/volumes";
    std::error_code error;
    std::filesystem::create_directory(volumes, error);
    if (error) return absl::ErrnoToStatus(error.value(), volumes);
    const bool own_network = (options_.server_namespaces & CLONE_NEWNET) != 0;
    VERBENA_ASSIGN_OR_RETURN(
        server_,
        ServerProcess::Start(
            options_.server,
            {fmt::format("--address={}", own_network ? "0.0.0.0:0" : options_.address),
             fmt::format("--directory={}", volumes), fmt::format("--mode={}", options_.mode_name)},
            options_.server_namespaces));
    VERBENA_RETURN_IF_ERROR(server_->WaitUntilReady(signals_));
    address_ = server_->address();
    if (own_network) VERBENA_RETURN_IF_ERROR(JoinNetworks());
    fmt::print(stderr,
               "block_store_server is process {}, listening on {}, with its volumes in {}\n",
               server_->pid(), address_, volumes);
    return absl::OkStatus();
  }

  // A cable between the server's network and ours, of two interfaces that end with the server.
  absl::Status JoinNetworks() {
    VERBENA_ASSIGN_OR_RETURN(cable_, CableAddresses::Claim());
    const std::string pid = fmt::format("{}", server_->pid());
    const std::string ours = "verbena" + pid;
    const std::vector<std::vector<std::string>> commands = {
        {kIp, "link", "add", ours, "type", "veth", "peer", "name", "verbena", "netns", pid},
        {kIp, "address", "add", cable_->near() + "/30", "dev", ours},
        {kIp, "link", "set", ours, "up"},
        {kNsenter, "-t", pid, "-n", kIp, "address", "add", cable_->far() + "/30", "dev", "verbena"},
        {kNsenter, "-t", pid, "-n", kIp, "link", "set", "verbena", "up"},
    };
    for (const std::vector<std::string>& command : commands) {
      VERBENA_ASSIGN_OR_RETURN(
          std::unique_ptr<ServerProcess> step,
          ServerProcess::Start(command[0], {command.begin() + 1, command.end()}));
      VERBENA_RETURN_IF_ERROR(step->WaitForEnd(signals_));
    }
    address_ = cable_->far() + address_.substr(address_.rfind(':'));
    return absl::OkStatus();
  }

  absl::Status Work() {
    // This also brings the files into the page cache for every comparison.
    VERBENA_ASSIGN_OR_RETURN(const std::vector<examples::Digest> digests,
                             DigestsOfFiles(local_.root, local_.tree, signals_));
    verbena::RuntimeOptions of_client{.mode = options_.mode};
    // Our device has the address from which we connect: a server believes no other. The variable
    // names the devices of both sides.
    if (cable_ != nullptr && std::getenv("VERBENA_DEVICE") == nullptr) {
      of_client.device = "soft:tcp:" + cable_->near() + ":0";
    }
    VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<verbena::Runtime> runtime,
                             verbena::Runtime::Start(std::move(of_client)));
    verbena::Channel channel(*runtime, address_);
    TreeCopy copy(*runtime, channel, signals_, options_.copy);
    VERBENA_RETURN_IF_ERROR(Store(copy));
    VERBENA_RETURN_IF_ERROR(ReadBack(copy, digests));
    return Compare();
  }

  absl::Status Store(TreeCopy& copy) {
    PhaseReport stored;
    VERBENA_RETURN_IF_ERROR(copy.Store(local_, kVolume, stored));
    rows_.push_back({std::move(stored), "into the volume, then flushed"});
    return absl::OkStatus();
  }

  absl::Status ReadBack(TreeCopy& copy, const std::vector<examples::Digest>& digests) {
    VERBENA_ASSIGN_OR_RETURN(const Tree tree, copy.ReadIndex(kVolume));
    for (size_t i = 0; i < tree.files.size(); ++i) {
      if (i < digests.size() && tree.files[i].sha256 == digests[i]) continue;
      return absl::DataLossError(
          fmt::format("'{}' was stored with another SHA-256 than it has", tree.files[i].path));
    }
    PhaseReport read;
    VERBENA_RETURN_IF_ERROR(copy.Read(kVolume, tree, ReadInto::kNothing, "", read));
    rows_.push_back({std::move(read), "from the volume into memory"});
    PhaseReport verified;
    VERBENA_RETURN_IF_ERROR(copy.Read(kVolume, tree, ReadInto::kComparison, "", verified));
    rows_.push_back({std::move(verified), "the same, and each file's SHA-256 compared"});
    fmt::print("{} came back with the SHA-256 that {} had\n", Counted(tree.files.size(), "file"),
               tree.files.size() == 1 ? "it" : "each");
    return absl::OkStatus();
  }

  absl::Status Compare() {
    const std::string copied = directory_->path() + "/copy";
    VERBENA_ASSIGN_OR_RETURN(PhaseReport cp,
                             CopyByCp(options_.path, copied, local_.tree, signals_));
    rows_.push_back({std::move(cp), "cp -r on the same disk, then synced"});
    const bool is_directory = std::filesystem::is_directory(copied);
    if (is_directory) {
      VERBENA_ASSIGN_OR_RETURN(
          PhaseReport read, ReadFiles(copied, local_.tree, options_.copy.request_bytes, signals_));
      rows_.push_back({std::move(read), "what cp copied, one file after the other"});
    }
    rows_.push_back({CopyInMemory(std::max(local_.tree.bytes(), kLeastMemcpyBytes),
                                  options_.copy.request_bytes),
                     "within this process, of requests' size"});
    return absl::OkStatus();
  }

  const DemoOptions& options_;
  LocalTree& local_;
  StopSignals& signals_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<CableAddresses> cable_;
  std::unique_ptr<ServerProcess> server_;
  std::string address_;  // by which we reach it
  std::vector<Row> rows_;
};

int Complain(const absl::Status& status) {
  // Without a message, the server has said it already.
  if (!status.message().empty()) {
    fmt::print(stderr, "block_store_demo: {}\n", std::string(status.message()));
  }
  return 1;
}

void PrintInventory(const std::string& path, const LocalTree& local) {
  fmt::print("{}: {}, {} in all\n", path, Counted(local.tree.files.size(), "file"),
             Sized(local.tree.bytes()));
  for (const LocalTree::Skipped& skipped : local.skipped) {
    fmt::print("left out: {} ({})\n", skipped.path, skipped.what);
  }
  std::fflush(stdout);
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  absl::StatusOr<LocalTree> local = WalkTree(options.path);
  if (!local.ok()) return Complain(local.status());
  PrintInventory(options.path, *local);
  const absl::StatusOr<std::unique_ptr<StopSignals>> signals = StopSignals::Block();
  if (!signals.ok()) return Complain(signals.status());
  Demo demo(options, *local, **signals);
  const absl::Status status = demo.Run();
  if (!demo.rows().empty()) fmt::print("{}", Table(demo.rows()));
  if ((*signals)->received() != 0) {
    fmt::print(stderr, "block_store_demo: interrupted\n");
    return 128 + (*signals)->received();
  }
  return status.ok() ? 0 : Complain(status);
}

}  // namespace block_store
