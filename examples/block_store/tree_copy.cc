#include "examples/block_store/tree_copy.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "examples/block_store/limits.h"
#include "examples/common/run_phase.h"
#include "examples/common/sha256.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::PhaseReport;
using verbena::Task;

namespace {

uint64_t BlocksFor(const Tree& tree) {
  // Digests that are not known yet do not change the length: all have the same.
  const uint64_t index_bytes = EncodeIndex(tree).size();
  return (tree.index_offset() + RoundUpToBlocks(index_bytes)) / kBlockBytes;
}

absl::Status HoldsSomething(const std::string& volume) {
  return absl::AlreadyExistsError(
      fmt::format("volume '{}' exists, and holds something: choose another name", volume));
}

}  // namespace

TreeCopy::TreeCopy(verbena::Runtime& runtime, verbena::Channel& channel,
                   examples::StopSignals& signals, const CopyOptions& options)
    : runtime_(runtime),
      channel_(channel),
      signals_(signals),
      options_(options),
      progress_(stderr, isatty(STDERR_FILENO) != 0) {}

absl::Status TreeCopy::CheckInterrupted() {
  signals_.WaitReadable(-1, std::chrono::milliseconds(0));
  return signals_.received() == 0 ? absl::OkStatus() : absl::CancelledError("interrupted");
}

absl::Status TreeCopy::Store(LocalTree& local, const std::string& volume, PhaseReport& report) {
  local.tree.Layout();
  const VolumeClient client(channel_, volume);
  VERBENA_RETURN_IF_ERROR(runtime_.BlockOn(Begin(client, BlocksFor(local.tree))));
  StoreWork work(channel_, volume, local.root, local.tree, options_.request_bytes);
  VERBENA_RETURN_IF_ERROR(
      examples::RunPhase(runtime_, work, options_.in_flight, signals_, progress_, report));
  for (FileEntry& file : local.tree.files) {
    if (file.bytes == 0) file.sha256 = examples::Sha256("");
  }
  const auto began = std::chrono::steady_clock::now();
  VERBENA_RETURN_IF_ERROR(runtime_.BlockOn(Finish(client, local.tree)));
  report.elapsed += std::chrono::steady_clock::now() - began;
  return CheckInterrupted();
}

Task<absl::Status> TreeCopy::Begin(const VolumeClient& volume, uint64_t blocks) {
  absl::Status created = co_await volume.Create(blocks);
  if (absl::IsAlreadyExists(created)) {
    VERBENA_CO_ASSIGN_OR_RETURN(const v1::StatReply about, co_await volume.Stat());
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await volume.ReadBytes(0, kBlockBytes));
    if (!IsUnfinished(block)) co_return HoldsSomething(volume.volume());
    if (about.blocks() < blocks) {
      co_return absl::OutOfRangeError(
          fmt::format("volume '{}' has {} blocks, and {} are needed: choose another name",
                      volume.volume(), about.blocks(), blocks));
    }
    co_return absl::OkStatus();
  }
  if (!created.ok()) co_return created;
  co_return co_await volume.WriteBytes(0, EncodeUnfinishedHeader(), /*flush=*/true);
}

Task<absl::Status> TreeCopy::Finish(const VolumeClient& volume, const Tree& tree) {
  const std::string index = EncodeIndex(tree);
  const TreeHeader header{.index_offset = tree.index_offset(),
                          .index_bytes = index.size(),
                          .index_sha256 = examples::Sha256(index)};
  VERBENA_CO_RETURN_IF_ERROR(co_await volume.WriteBytes(header.index_offset, index));
  // All that the header refers to must be on the disk before the header is.
  VERBENA_CO_RETURN_IF_ERROR(co_await volume.Flush());
  co_return co_await volume.WriteBytes(0, EncodeHeader(header), /*flush=*/true);
}

absl::StatusOr<Tree> TreeCopy::ReadIndex(const std::string& volume) {
  const VolumeClient client(channel_, volume);
  VERBENA_ASSIGN_OR_RETURN(Tree tree, runtime_.BlockOn(Load(client)));
  VERBENA_RETURN_IF_ERROR(CheckInterrupted());
  return tree;
}

Task<absl::StatusOr<Tree>> TreeCopy::Load(const VolumeClient& volume) {
  VERBENA_CO_ASSIGN_OR_RETURN(const v1::StatReply about, co_await volume.Stat());
  VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await volume.ReadBytes(0, kBlockBytes));
  VERBENA_CO_ASSIGN_OR_RETURN(const TreeHeader header,
                              DecodeHeader(block, about.blocks() * kBlockBytes));
  VERBENA_CO_ASSIGN_OR_RETURN(const std::string index,
                              co_await volume.ReadBytes(header.index_offset, header.index_bytes));
  co_return DecodeIndex(index, header);
}

absl::Status TreeCopy::Read(const std::string& volume, const Tree& tree, ReadInto into,
                            const std::string& directory, PhaseReport& report) {
  ReadWork work(channel_, volume, tree, options_.request_bytes, into, directory);
  VERBENA_RETURN_IF_ERROR(
      examples::RunPhase(runtime_, work, options_.in_flight, signals_, progress_, report));
  if (into == ReadInto::kNothing) return absl::OkStatus();
  size_t compared = work.compared();
  for (const FileEntry& file : tree.files) {
    if (file.bytes > 0) continue;
    if (file.sha256 == examples::Sha256("")) ++compared;
  }
  if (compared == tree.files.size()) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("of {} files, {} have the SHA-256 that they had", tree.files.size(), compared));
}

}  // namespace block_store
