// upgrade_load: a client under load while its servers restart as other versions of Verbena.
//
//   upgrade_load --servers=ADDRESS,ADDRESS,...
//
// Fills a volume of each server (block_store_server). Then it works through one channel to all of
// them until standard input ends: calls without payloads, calls that read and write payloads, and
// streams of the server, of the client and of both. It compares every byte that comes back.
//
// For each line of standard input it waits until all servers are ready and each kind of work has
// been done kRound more times; then it prints "ready". At the end it prints what was done, and what
// went wrong. Exit status: 0 if each kind of work was done and nothing went wrong.
//
// The upgrade phase of ./dev test compiles this source against the previous version, too: it uses
// only what both versions have.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "examples/block_store/limits.h"
#include "examples/common/sha256.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(std::vector<std::string>, servers, {}, "Addresses of servers, with commas between.");

namespace upgrade {
namespace {

namespace v1 = block_store::v1;
using block_store::kBlockBytes;
using block_store::kExportPartBytes;
using verbena::Buffer;
using verbena::CallOptions;
using verbena::Channel;
using verbena::ChannelServer;
using verbena::Runtime;
using verbena::Task;
using verbena::WithPayload;
using Part = WithPayload<v1::VolumePart>;

constexpr char kVolume[] = "upgrade";
constexpr uint64_t kVolumeBytes = uint64_t{4} << 20;
constexpr uint64_t kParts = kVolumeBytes / kExportPartBytes;
// A round is the work between two restarts. It has this many operations of each kind. Three servers
// take turns, so each does some of it.
constexpr uint64_t kRound = 30;
// Failures that are told one by one.
constexpr uint64_t kMaxTold = 20;

enum Kind : size_t { kCall, kRead, kWrite, kExport, kImport, kSync, kKinds };
constexpr std::array<const char*, kKinds> kNames = {"calls",   "reads",   "writes",
                                                    "exports", "imports", "syncs"};
// Tasks that do it over and over.
constexpr std::array<int, kKinds> kTasks = {4, 4, 2, 2, 1, 1};

// Bytes that tell their place in the volume. `bytes` is a multiple of 8.
void Fill(char* to, uint64_t offset, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t word = (offset + i + 1) * 0x9e3779b97f4a7c15u;
    std::memcpy(to + i, &word, sizeof(word));
  }
}

bool IsFilled(const Buffer& buffer, uint64_t offset, uint64_t bytes) {
  if (buffer.size() != bytes) return false;
  std::string wanted(bytes, '\0');
  Fill(wanted.data(), offset, bytes);
  return std::memcmp(buffer.data(), wanted.data(), bytes) == 0;
}

std::string DigestOf(uint64_t offset, uint64_t bytes) {
  std::string part(bytes, '\0');
  Fill(part.data(), offset, bytes);
  const examples::Digest digest = examples::Sha256(part);
  return std::string(digest.begin(), digest.end());
}

CallOptions Waiting() {
  CallOptions options;
  options.deadline = std::chrono::seconds(60);
  options.wait_for_ready = true;
  return options;
}

absl::Status Wrong(const char* what) { return absl::DataLossError(what); }

// Each kind of work once. `turn` chooses the place in the volume.
class Work {
 public:
  explicit Work(Channel& channel) : channel_(channel), stub_(channel) {}

  Task<absl::Status> Create() {
    v1::CreateVolumeRequest request;
    request.set_volume(kVolume);
    request.set_blocks(kVolumeBytes / kBlockBytes);
    co_return (co_await stub_.CreateVolume(request, Waiting())).status();
  }

  Task<absl::Status> Do(Kind kind, uint64_t turn) {
    switch (kind) {
      case kRead:
        co_return co_await Read(turn);
      case kWrite:
        co_return co_await Write(turn);
      case kExport:
        co_return co_await Export();
      case kImport:
        co_return co_await Import();
      case kSync:
        co_return co_await Sync();
      default:
        co_return co_await Call();
    }
  }

 private:
  Task<absl::Status> Call() {
    v1::StatRequest request;
    request.set_volume(kVolume);
    VERBENA_CO_ASSIGN_OR_RETURN(const v1::StatReply reply, co_await stub_.Stat(request, Waiting()));
    co_return reply.blocks() == kVolumeBytes / kBlockBytes ? absl::OkStatus()
                                                           : Wrong("Stat: other blocks");
  }

  // One block in each second turn, which may travel within a frame; otherwise a whole part.
  static uint64_t BytesOf(uint64_t turn) { return turn % 2 == 0 ? kBlockBytes : kExportPartBytes; }
  static uint64_t OffsetOf(uint64_t turn) { return turn % kParts * kExportPartBytes; }

  Task<absl::Status> Read(uint64_t turn) {
    v1::ReadRequest request;
    request.set_volume(kVolume);
    request.set_offset(OffsetOf(turn));
    request.set_bytes(BytesOf(turn));
    WithPayload<v1::ReadReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_.Read(request, reply, Waiting()));
    co_return IsFilled(reply.payload, OffsetOf(turn), BytesOf(turn)) ? absl::OkStatus()
                                                                     : Wrong("Read: other bytes");
  }

  Task<absl::Status> Write(uint64_t turn) {
    CallOptions options = Waiting();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer data,
                                co_await channel_.AllocateBuffer(BytesOf(turn), options));
    Fill(data.data(), OffsetOf(turn), data.size());
    v1::WriteRequest request;
    request.set_volume(kVolume);
    request.set_offset(OffsetOf(turn));
    options.request_payload = std::move(data);
    co_return (co_await stub_.Write(request, std::move(options))).status();
  }

  Task<absl::Status> Export() {
    v1::ExportRequest request;
    request.set_volume(kVolume);
    verbena::ClientReader<Part> parts = stub_.Export(request, Waiting());
    Part part;
    uint64_t bytes = 0;
    bool same = true;
    while (co_await parts.Read(part)) {
      same = same && part->offset() == bytes && IsFilled(part.payload, bytes, part.payload.size());
      bytes += part.payload.size();
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await parts.Finish());
    co_return same&& bytes == kVolumeBytes ? absl::OkStatus() : Wrong("Export: other bytes");
  }

  Task<absl::Status> Import() {
    const CallOptions options = Waiting();
    Part part;
    VERBENA_CO_ASSIGN_OR_RETURN(part.payload,
                                co_await channel_.AllocateBuffer(kExportPartBytes, options));
    part.has_payload = true;
    part->set_volume(kVolume);
    verbena::ClientWriter<Part, v1::ImportReply> writer = stub_.Import(Waiting());
    for (uint64_t offset = 0; offset < kVolumeBytes; offset += kExportPartBytes) {
      part->set_offset(offset);
      Fill(part.payload.data(), offset, kExportPartBytes);
      if (!(co_await writer.Write(part)).ok()) break;  // Finish() says why
      part->clear_volume();
    }
    VERBENA_CO_ASSIGN_OR_RETURN(const v1::ImportReply reply, co_await writer.Finish());
    co_return reply.bytes() == kVolumeBytes ? absl::OkStatus() : Wrong("Import: other bytes");
  }

  // Gives the digests of the parts, of which each second one is wrong: the server answers those.
  // The digests of a volume fit the stream's window, so the client need not read meanwhile.
  Task<absl::Status> Sync() {
    verbena::ClientReaderWriter<v1::Digest, Part> stream = stub_.Sync(Waiting());
    v1::Digest digest;
    digest.set_volume(kVolume);
    digest.set_bytes(kExportPartBytes);
    for (uint64_t number = 0; number < kParts; ++number) {
      const uint64_t offset = number * kExportPartBytes;
      digest.set_offset(offset);
      digest.set_sha256(number % 2 == 0 ? DigestOf(offset, kExportPartBytes)
                                        : std::string(32, '\0'));
      if (!(co_await stream.Write(digest)).ok()) break;
      digest.clear_volume();
    }
    (void)co_await stream.WritesDone();
    Part part;
    uint64_t answers = 0;
    bool same = true;
    while (co_await stream.Read(part)) {
      const uint64_t offset = (2 * answers + 1) * kExportPartBytes;
      same = same && part->offset() == offset && IsFilled(part.payload, offset, kExportPartBytes);
      ++answers;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Finish());
    co_return same&& answers == kParts / 2 ? absl::OkStatus() : Wrong("Sync: other parts");
  }

  Channel& channel_;
  const v1::BlockStore::Stub stub_;
};

// All kinds of work at once, until End(). All of it runs on one executor.
class Load {
 public:
  Load(Channel& channel, size_t servers) : channel_(channel), servers_(servers), work_(channel) {}

  Task<void> Run() {
    std::vector<Task<void>> tasks;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      for (int task = 0; task < kTasks[kind]; ++task) {
        tasks.push_back(Repeat(static_cast<Kind>(kind), static_cast<uint64_t>(task) * 5));
      }
    }
    co_await verbena::WhenAll(std::move(tasks));
  }

  Task<void> End() {
    ends_ = true;
    co_return;
  }

  // Waits until all servers take calls, and then for a round of each kind of work.
  Task<absl::Status> AwaitRound() {
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitServers());
    for (size_t kind = 0; kind < kKinds; ++kind) wanted_[kind] = done_[kind] + kRound;
    round_.Reset();
    co_return co_await round_.Wait();
  }

  // Whether each kind was done and nothing went wrong. Prints how often.
  bool Report() const {
    bool each = true;
    for (size_t kind = 0; kind < kKinds; ++kind) {
      std::cout << kNames[kind] << " " << done_[kind] << ", ";
      each = each && done_[kind] > 0;
    }
    std::cout << "failed " << failed_ << ", wrong bytes " << wrong_ << std::endl;
    return each && failed_ == 0 && wrong_ == 0;
  }

 private:
  Task<absl::Status> AwaitServers() {
    uint64_t seen = 0;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel_.ServersChanged(seen));
      VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel_.Servers());
      const auto ready = std::count_if(servers.begin(), servers.end(), [](const auto& each) {
        return each.state == ChannelServer::State::kReady;
      });
      if (static_cast<size_t>(ready) == servers_) co_return absl::OkStatus();
    }
  }

  Task<void> Repeat(Kind kind, uint64_t turn) {
    for (; !ends_; ++turn) {
      const absl::Status status = co_await work_.Do(kind, turn);
      if (!status.ok()) ++(absl::IsDataLoss(status) ? wrong_ : failed_);
      if (!status.ok() && failed_ + wrong_ <= kMaxTold) {
        std::cerr << "upgrade_load: " << kNames[kind] << ": " << status << std::endl;
      }
      ++done_[kind];
      if (std::equal(wanted_.begin(), wanted_.end(), done_.begin(), std::less_equal<>())) {
        round_.Set();
      }
    }
  }

  Channel& channel_;
  const size_t servers_;
  Work work_;
  bool ends_ = false;
  uint64_t failed_ = 0;
  uint64_t wrong_ = 0;  // of those that did not fail
  std::array<uint64_t, kKinds> done_ = {};
  std::array<uint64_t, kKinds> wanted_ = {};
  verbena::Event round_;
};

// Makes the volume of one server, and writes all of it.
absl::Status FillServer(Runtime& runtime, const std::string& address) {
  Channel channel(runtime, address);
  Work work(channel);
  VERBENA_RETURN_IF_ERROR(runtime.BlockOn(work.Create()));
  return runtime.BlockOn(work.Do(kImport, 0));
}

int Main() {
  const std::vector<std::string> servers = absl::GetFlag(FLAGS_servers);
  if (servers.empty()) {
    std::cerr << "upgrade_load: name servers: --servers=ADDRESS,ADDRESS" << std::endl;
    return 1;
  }
  const absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << "upgrade_load: " << runtime.status() << std::endl, 1;
  for (const std::string& address : servers) {
    const absl::Status filled = FillServer(**runtime, address);
    if (!filled.ok()) return std::cerr << "upgrade_load: filling: " << filled << std::endl, 1;
  }
  Channel channel(**runtime, "static:" + absl::StrJoin(servers, ","));
  Load load(channel, servers.size());
  verbena::JoinHandle<void> runs = (*runtime)->Spawn(load.Run());
  absl::Status status;
  std::string line;
  while (status.ok() && std::getline(std::cin, line)) {
    status = (*runtime)->BlockOn(load.AwaitRound());
    if (status.ok()) std::cout << "ready" << std::endl;
  }
  // Also after an error: the Tasks use what is destroyed with this function.
  (*runtime)->BlockOn(load.End());
  runs.Join();
  if (!status.ok()) std::cerr << "upgrade_load: " << status << std::endl;
  return load.Report() && status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace upgrade

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return upgrade::Main();
}
