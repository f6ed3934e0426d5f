#include "examples/block_store/volume_client.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "examples/block_store/limits.h"
#include "examples/block_store/tree.h"
#include "examples/common/explained.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::Explained;
using verbena::Buffer;
using verbena::Task;

namespace {

// A server that does not answer for this long is as good as gone; a flush may wait for a slow disk.
constexpr std::chrono::seconds kCallTimeout(60);
// Bytes per transfer of WriteBytes() and ReadBytes().
constexpr uint64_t kTransferBytes = uint64_t{1} << 20;

std::string Place(const char* method, const std::string& volume, uint64_t offset, size_t bytes) {
  return fmt::format("{} of {} bytes at {} of volume '{}'", method, bytes, offset, volume);
}

}  // namespace

Task<absl::Status> VolumeClient::Create(uint64_t blocks) const {
  v1::CreateVolumeRequest request;
  request.set_volume(volume_);
  request.set_blocks(blocks);
  v1::CreateVolumeReply reply;
  absl::Status status = co_await stub_.CreateVolume(request, reply, {.deadline = kCallTimeout});
  if (status.ok()) co_return status;
  co_return Explained(fmt::format("CreateVolume of '{}'", volume_), status);
}

Task<absl::Status> VolumeClient::Write(uint64_t offset, Buffer& data, bool flush) const {
  const size_t bytes = data.size();
  v1::WriteRequest request;
  request.set_volume(volume_);
  request.set_offset(offset);
  request.set_flush(flush);
  v1::WriteReply reply;
  verbena::Payload payload = std::move(data);
  absl::Status status = co_await stub_.Write(request, reply,
                                             {.deadline = kCallTimeout,
                                              .request_payload = std::move(payload),
                                              // NOLINTNEXTLINE(bugprone-use-after-move)
                                              .returned_payload = &payload});
  data = payload.TakeBuffer();
  if (status.ok()) co_return status;
  co_return Explained(Place("Write", volume_, offset, bytes), status);
}

Task<absl::Status> VolumeClient::Read(uint64_t offset, Buffer& into) const {
  const size_t bytes = into.size();
  v1::ReadRequest request;
  request.set_volume(volume_);
  request.set_offset(offset);
  request.set_bytes(bytes);
  verbena::WithPayload<v1::ReadReply> reply;
  absl::Status status = co_await stub_.Read(
      request, reply, {.deadline = kCallTimeout, .response_payload_into = std::move(into)});
  into = std::move(reply.payload);
  if (status.ok() && into.size() != bytes) {
    status = absl::DataLossError(fmt::format("{} bytes came", into.size()));
  }
  if (status.ok()) co_return status;
  co_return Explained(Place("Read", volume_, offset, bytes), status);
}

Task<absl::Status> VolumeClient::Flush() const {
  v1::FlushRequest request;
  request.set_volume(volume_);
  v1::FlushReply reply;
  absl::Status status = co_await stub_.Flush(request, reply, {.deadline = kCallTimeout});
  co_return Explained(fmt::format("Flush of volume '{}'", volume_), status);
}

Task<absl::StatusOr<v1::StatReply>> VolumeClient::Stat() const {
  v1::StatRequest request;
  request.set_volume(volume_);
  v1::StatReply reply;
  absl::Status status = co_await stub_.Stat(request, reply, {.deadline = kCallTimeout});
  if (!status.ok()) co_return Explained(fmt::format("Stat of volume '{}'", volume_), status);
  co_return reply;
}

Task<absl::Status> VolumeClient::WriteBytes(uint64_t offset, const std::string& bytes,
                                            bool flush) const {
  for (size_t done = 0; done < bytes.size(); done += kTransferBytes) {
    const size_t part = std::min<size_t>(kTransferBytes, bytes.size() - done);
    const size_t rounded = RoundUpToBlocks(part);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_.AllocateBuffer(rounded));
    std::memcpy(buffer.data(), bytes.data() + done, part);
    std::memset(buffer.data() + part, 0, rounded - part);
    VERBENA_CO_RETURN_IF_ERROR(co_await Write(offset + done, buffer, flush));
  }
  co_return absl::OkStatus();
}

Task<absl::StatusOr<std::string>> VolumeClient::ReadBytes(uint64_t offset, uint64_t bytes) const {
  std::string all;
  while (all.size() < bytes) {
    const uint64_t part = std::min<uint64_t>(kTransferBytes, bytes - all.size());
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer,
                                co_await channel_.AllocateBuffer(RoundUpToBlocks(part)));
    VERBENA_CO_RETURN_IF_ERROR(co_await Read(offset + all.size(), buffer));
    all.append(buffer.data(), part);
  }
  co_return all;
}

Task<absl::StatusOr<std::vector<v1::VolumeEntry>>> ListVolumes(verbena::Channel& channel) {
  const v1::BlockStore::Stub stub(channel);
  std::vector<v1::VolumeEntry> volumes;
  v1::ListRequest request;
  v1::ListReply reply;
  do {
    absl::Status status = co_await stub.List(request, reply, {.deadline = kCallTimeout});
    if (!status.ok()) co_return Explained("List", status);
    for (const v1::VolumeEntry& entry : reply.volumes()) volumes.push_back(entry);
    if (!volumes.empty()) request.set_after(volumes.back().volume());
  } while (reply.volumes_size() > 0);
  co_return volumes;
}

}  // namespace block_store
