// stream_demo: copies a volume of the block store by streams while calls go on.
//
// Starts block_store_server as a process, fills a volume, and copies it to a second one: Export is
// a stream of the server's, Import one of the client's, and each part that comes is written on.
// Meanwhile other coroutines read single blocks over the same link. Then the copy is damaged, and
// repaired by Sync, a stream of both sides. At last all blocks of both volumes are compared.

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/volume_client.h"
#include "examples/common/help.h"
#include "examples/common/server_process.h"
#include "examples/common/sha256.h"
#include "examples/common/signals.h"
#include "fmt/format.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(uint64_t, megabytes, 64, "The size of the volume, 1 to 4096.");
ABSL_FLAG(int, readers, 8, "Coroutines that read single blocks meanwhile, 0 to 256.");
ABSL_FLAG(std::string, directory, "/var/tmp", "Where the volumes lie while the demo runs.");
ABSL_FLAG(std::string, server, "", "The path of block_store_server.");

namespace {

namespace v1 = block_store::v1;
using block_store::kBlockBytes;
using block_store::kExportPartBytes;
using block_store::VolumeClient;
using verbena::Buffer;
using verbena::Task;
using Seconds = std::chrono::duration<double>;

constexpr char kHelp[] =
    R"(usage: stream_demo [options]

Starts block_store_server as a process of its own, fills a volume, and copies it to a second one by two streams,
while coroutines read single blocks over the same link. Damages the copy, and repairs it by a stream of both sides.
Compares both volumes byte by byte, and prints what that took.

  --megabytes=N          the volume's size (default 64, at most 4096)
  --readers=N            coroutines that read blocks meanwhile (default 8, at most 256)
  --directory=DIRECTORY  on the disk to be used (default /var/tmp)
  --server=PATH          the server (default: block_store_server of examples/block_store)
  --help                 this text
)";

struct Row {
  const char* what;
  uint64_t count = 0;
  uint64_t bytes = 0;
  Seconds elapsed{};
};

void Print(const Row& row) {
  const double seconds = std::max(row.elapsed.count(), 1e-9);
  fmt::print("{:<34} {:>9} {:>12.0f} {:>10.1f}\n", row.what, row.count,
             static_cast<double>(row.count) / seconds,
             static_cast<double>(row.bytes) / seconds / 1e6);
}

// Bytes that tell which block they belong to.
void FillBlock(char* to, uint64_t block) {
  uint64_t word = block * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < kBlockBytes; i += sizeof(word)) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    std::memcpy(to + i, &word, sizeof(word));
  }
}

class Demo {
 public:
  Demo(verbena::Channel& channel, uint64_t bytes, int readers)
      : channel_(channel),
        stub_(channel),
        source_(channel, "source"),
        copy_(channel, "copy"),
        bytes_(bytes),
        readers_(readers) {}

  Task<absl::Status> Run() {
    const uint64_t blocks = bytes_ / kBlockBytes;
    VERBENA_CO_RETURN_IF_ERROR(co_await source_.Create(blocks));
    VERBENA_CO_RETURN_IF_ERROR(co_await copy_.Create(blocks));
    VERBENA_CO_RETURN_IF_ERROR(co_await Fill());
    std::vector<Task<absl::Status>> tasks;
    tasks.push_back(Copy());
    for (int i = 0; i < readers_; ++i) tasks.push_back(ReadBlocks(static_cast<uint64_t>(i)));
    for (const absl::Status& status : co_await verbena::WhenAll(std::move(tasks))) {
      VERBENA_CO_RETURN_IF_ERROR(status);
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await Damage());
    VERBENA_CO_RETURN_IF_ERROR(co_await Repair());
    co_return co_await Compare();
  }

  void PrintTable() const {
    fmt::print("{:<34} {:>9} {:>12} {:>10}\n", "", "count", "per second", "MB/s");
    for (const Row& row : {filled_, copied_, read_, repaired_, compared_}) Print(row);
    fmt::print("errors {}\n", errors_);
  }
  uint64_t errors() const { return errors_; }

 private:
  Task<absl::Status> Fill() {
    const auto began = std::chrono::steady_clock::now();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer part, co_await channel_.AllocateBuffer(kExportPartBytes));
    for (uint64_t offset = 0; offset < bytes_; offset += part.size()) {
      for (uint64_t at = 0; at < part.size(); at += kBlockBytes) {
        FillBlock(part.data() + at, (offset + at) / kBlockBytes);
      }
      VERBENA_CO_RETURN_IF_ERROR(co_await source_.Write(offset, part));
      ++filled_.count;
      filled_.bytes += part.size();
    }
    filled_.elapsed = std::chrono::steady_clock::now() - began;
    co_return absl::OkStatus();
  }

  Task<absl::Status> Copy() {
    const auto began = std::chrono::steady_clock::now();
    absl::Status status = co_await CopyByStreams();
    copied_.elapsed = std::chrono::steady_clock::now() - began;
    done_ = true;
    co_return status;
  }

  using Part = verbena::WithPayload<v1::VolumePart>;

  Task<absl::Status> CopyByStreams() {
    v1::ExportRequest request;
    request.set_volume(source_.volume());
    verbena::ClientReader<Part> parts = stub_.Export(request);
    verbena::ClientWriter<Part, v1::ImportReply> writer = stub_.Import();
    Part part;
    while (co_await parts.Read(part)) {
      part->set_volume(copied_.count == 0 ? copy_.volume() : "");
      if (!(co_await writer.Write(part)).ok()) break;  // writer.Finish() says why
      ++copied_.count;
      copied_.bytes += part.payload.size();
    }
    // First that of `parts`: if some are missing, `writer` must not end as whole.
    VERBENA_CO_RETURN_IF_ERROR(co_await parts.Finish());
    VERBENA_CO_ASSIGN_OR_RETURN(const v1::ImportReply reply, co_await writer.Finish());
    if (reply.bytes() != bytes_) ++errors_;
    co_return absl::OkStatus();
  }

  // Overwrites the first block of each eighth part of the copy.
  Task<absl::Status> Damage() {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel_.AllocateBuffer(kBlockBytes));
    for (uint64_t offset = 0; offset < bytes_; offset += 8 * kExportPartBytes) {
      std::memset(block.data(), 'x', kBlockBytes);
      VERBENA_CO_RETURN_IF_ERROR(co_await copy_.Write(offset, block));
      ++damaged_;
    }
    co_return absl::OkStatus();
  }

  // One Task sends digests of the copy, another one writes the parts of the source that come back.
  Task<absl::Status> Repair() {
    const auto began = std::chrono::steady_clock::now();
    Sync stream = stub_.Sync();
    const auto [sent, written] =
        co_await verbena::WhenAll(SendAllDigests(stream), WriteAnswers(stream));
    repaired_.elapsed = std::chrono::steady_clock::now() - began;
    // The end of the stream first: it says why the other two failed, unless they failed alone.
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
    VERBENA_CO_RETURN_IF_ERROR(sent);
    VERBENA_CO_RETURN_IF_ERROR(written);
    if (repaired_.count != damaged_) ++errors_;
    co_return absl::OkStatus();
  }

  using Sync = verbena::ClientReaderWriter<v1::Digest, Part>;

  Task<absl::Status> SendAllDigests(Sync& stream) {
    absl::Status sent = co_await SendDigests(stream);
    // Also after a failure: otherwise the server, and WriteAnswers(), wait for more.
    absl::Status done = co_await stream.WritesDone();
    co_return sent.ok() ? done : sent;
  }

  Task<absl::Status> SendDigests(Sync& stream) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer blocks, co_await channel_.AllocateBuffer(kExportPartBytes));
    v1::Digest digest;
    digest.set_volume(source_.volume());
    for (uint64_t offset = 0; offset < bytes_; offset += blocks.size()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await copy_.Read(offset, blocks));
      const examples::Digest sha256 = examples::Sha256({blocks.data(), blocks.size()});
      digest.set_offset(offset);
      digest.set_bytes(blocks.size());
      digest.set_sha256(sha256.data(), sha256.size());
      VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(digest));
      digest.clear_volume();
    }
    co_return absl::OkStatus();
  }

  Task<absl::Status> WriteAnswers(Sync& stream) {
    Part part;
    absl::Status written;
    while (co_await stream.Read(part)) {
      // Reads on after a failure: otherwise the server, and SendDigests(), wait for this Task.
      if (!written.ok()) continue;
      ++repaired_.count;
      repaired_.bytes += part.payload.size();
      written = co_await copy_.Write(part->offset(), part.payload);
    }
    co_return written;
  }

  // Reads blocks of the source all over, and compares them, while the copy runs.
  Task<absl::Status> ReadBlocks(uint64_t reader) {
    const auto began = std::chrono::steady_clock::now();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel_.AllocateBuffer(kBlockBytes));
    std::string wanted(kBlockBytes, '\0');
    for (uint64_t i = reader; !done_; i += 7919) {
      const uint64_t number = i % (bytes_ / kBlockBytes);
      VERBENA_CO_RETURN_IF_ERROR(co_await source_.Read(number * kBlockBytes, block));
      FillBlock(wanted.data(), number);
      if (std::memcmp(wanted.data(), block.data(), kBlockBytes) != 0) ++errors_;
      ++read_.count;
      read_.bytes += kBlockBytes;
    }
    read_.elapsed = std::max<Seconds>(read_.elapsed, std::chrono::steady_clock::now() - began);
    co_return absl::OkStatus();
  }

  Task<absl::Status> Compare() {
    const auto began = std::chrono::steady_clock::now();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer part, co_await channel_.AllocateBuffer(kExportPartBytes));
    std::string wanted(kBlockBytes, '\0');
    for (uint64_t offset = 0; offset < bytes_; offset += part.size()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await copy_.Read(offset, part));
      for (uint64_t at = 0; at < part.size(); at += kBlockBytes) {
        FillBlock(wanted.data(), (offset + at) / kBlockBytes);
        if (std::memcmp(wanted.data(), part.data() + at, kBlockBytes) != 0) ++errors_;
      }
      ++compared_.count;
      compared_.bytes += part.size();
    }
    compared_.elapsed = std::chrono::steady_clock::now() - began;
    co_return absl::OkStatus();
  }

  verbena::Channel& channel_;
  const v1::BlockStore::Stub stub_;
  const VolumeClient source_;
  const VolumeClient copy_;
  const uint64_t bytes_;
  const int readers_;
  bool done_ = false;
  uint64_t damaged_ = 0;
  uint64_t errors_ = 0;
  Row filled_{"written by calls, 256 KiB each"};
  Row copied_{"copied by two streams"};
  Row read_{"blocks read by calls meanwhile"};
  Row repaired_{"parts repaired by one stream"};
  Row compared_{"compared by calls, 256 KiB each"};
};

// block_store_server of the same build, wherever this program was started from.
std::string DefaultServer() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "block_store/block_store_server";
}

absl::Status RunWith(const std::string& directory, examples::StopSignals& signals,
                     uint64_t& errors) {
  std::string server_path = absl::GetFlag(FLAGS_server);
  if (server_path.empty()) server_path = DefaultServer();
  VERBENA_ASSIGN_OR_RETURN(
      const std::unique_ptr<examples::ServerProcess> server,
      examples::ServerProcess::Start(
          server_path, {"--address=127.0.0.1:0", fmt::format("--directory={}", directory)}));
  VERBENA_RETURN_IF_ERROR(server->WaitUntilReady(signals));
  absl::Status status;
  {
    VERBENA_ASSIGN_OR_RETURN(const std::unique_ptr<verbena::Runtime> runtime,
                             verbena::Runtime::Start());
    verbena::Channel channel(*runtime, server->address());
    Demo demo(channel, absl::GetFlag(FLAGS_megabytes) << 20, absl::GetFlag(FLAGS_readers));
    status = runtime->BlockOn(demo.Run());
    if (status.ok()) demo.PrintTable();
    errors = demo.errors();
  }
  absl::Status stopped = server->Stop(signals);
  return status.ok() ? stopped : status;
}

int Main() {
  const uint64_t megabytes = absl::GetFlag(FLAGS_megabytes);
  const int readers = absl::GetFlag(FLAGS_readers);
  if (megabytes < 1 || megabytes > 4096 || readers < 0 || readers > 256) {
    fmt::print(stderr, "stream_demo: --megabytes is {} (1 to 4096), --readers {} (0 to 256)\n",
               megabytes, readers);
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<examples::StopSignals>> signals =
      examples::StopSignals::Block();
  std::string directory = absl::GetFlag(FLAGS_directory) + "/verbena-stream-XXXXXX";
  if (!signals.ok() || mkdtemp(directory.data()) == nullptr) {
    fmt::print(stderr, "stream_demo: {} cannot be used\n", directory);
    return 1;
  }
  uint64_t errors = 0;
  const absl::Status status = RunWith(directory, **signals, errors);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  if (!status.ok()) {
    fmt::print(stderr, "stream_demo: {}\n", status.ToString());
    return 1;
  }
  std::fflush(stdout);
  return errors == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (examples::AsksForHelp(argc, argv)) return fmt::print("{}", kHelp), 0;
  absl::ParseCommandLine(argc, argv);
  return Main();
}
