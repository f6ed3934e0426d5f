#include "examples/block_store/block_service.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "examples/block_store/limits.h"
#include "examples/common/sha256.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"

namespace block_store {

using verbena::Buffer;
using verbena::BufferView;
using verbena::ServerContext;
using verbena::ServerReader;
using verbena::ServerReaderWriter;
using verbena::ServerWriter;
using verbena::Task;
using verbena::WithPayload;

Task<absl::Status> BlockService::CreateVolume(ServerContext&,
                                              const v1::CreateVolumeRequest& request,
                                              v1::CreateVolumeReply&) {
  co_return co_await store_.Create(request.volume(), request.blocks(), request.reserve());
}

Task<absl::Status> BlockService::Write(ServerContext& context, const v1::WriteRequest& request,
                                       v1::WriteReply&) {
  const Buffer data = context.TakeRequestPayload();
  co_return co_await store_.Write(request.volume(), request.offset(), data.view(), request.flush());
}

Task<absl::Status> BlockService::Read(ServerContext& context, const v1::ReadRequest& request,
                                      v1::ReadReply&) {
  // Checked before any memory is taken for the request.
  VERBENA_CO_ASSIGN_OR_RETURN(const Volume* volume, store_.Find(request.volume()));
  VERBENA_CO_RETURN_IF_ERROR(VolumeStore::CheckPlace(*volume, request.offset(), request.bytes()));
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer data, co_await context.AllocateBuffer(request.bytes()));
  VERBENA_CO_RETURN_IF_ERROR(co_await store_.Read(request.volume(), request.offset(), data.view()));
  context.SetResponsePayload(std::move(data));
  co_return absl::OkStatus();
}

Task<absl::Status> BlockService::Flush(ServerContext&, const v1::FlushRequest& request,
                                       v1::FlushReply&) {
  co_return co_await store_.Flush(request.volume());
}

Task<absl::Status> BlockService::Stat(ServerContext&, const v1::StatRequest& request,
                                      v1::StatReply& reply) {
  VERBENA_CO_ASSIGN_OR_RETURN(const VolumeInfo info, co_await store_.Stat(request.volume()));
  reply.set_blocks(info.blocks);
  reply.set_allocated_bytes(info.allocated_bytes);
  reply.set_direct(info.direct);
  co_return absl::OkStatus();
}

Task<absl::Status> BlockService::List(ServerContext&, const v1::ListRequest& request,
                                      v1::ListReply& reply) {
  for (const Volume* volume : store_.List(request.after(), kMaxPageEntries)) {
    v1::VolumeEntry& entry = *reply.add_volumes();
    entry.set_volume(volume->name);
    entry.set_blocks(volume->blocks);
  }
  co_return absl::OkStatus();
}

Task<absl::Status> BlockService::Export(ServerContext& context, const v1::ExportRequest& request,
                                        ServerWriter<WithPayload<v1::VolumePart>>& parts) {
  VERBENA_CO_ASSIGN_OR_RETURN(const Volume* volume, store_.Find(request.volume()));
  const uint64_t end = volume->blocks * kBlockBytes;
  VERBENA_CO_ASSIGN_OR_RETURN(const Buffer buffer,
                              co_await context.AllocateBuffer(std::min(end, kExportPartBytes)));
  v1::VolumePart part;
  for (uint64_t offset = 0; offset < end; offset += kExportPartBytes) {
    const uint64_t bytes = std::min(kExportPartBytes, end - offset);
    VERBENA_CO_RETURN_IF_ERROR(
        co_await store_.Read(request.volume(), offset, buffer.Slice(0, bytes)));
    part.set_offset(offset);
    VERBENA_CO_RETURN_IF_ERROR(co_await parts.Write(part, buffer.Slice(0, bytes)));
  }
  co_return absl::OkStatus();
}

Task<absl::Status> BlockService::Import(ServerContext&,
                                        ServerReader<WithPayload<v1::VolumePart>>& parts,
                                        v1::ImportReply& reply) {
  WithPayload<v1::VolumePart> part;
  std::string volume;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await parts.Read(part));
    if (!read) break;  // the client has sent all
    if (volume.empty()) volume = part->volume();
    const size_t bytes = part.payload.size();
    if (bytes > kMaxImportPartBytes) {
      co_return absl::InvalidArgumentError("a part has more than 1 MiB");
    }
    if (bytes == 0) continue;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await store_.Write(volume, part->offset(), part.payload.view(), /*flush=*/false));
    reply.set_bytes(reply.bytes() + bytes);
  }
  co_return co_await store_.Flush(volume);
}

Task<absl::Status> BlockService::Sync(
    ServerContext& context, ServerReaderWriter<v1::Digest, WithPayload<v1::VolumePart>>& stream) {
  VERBENA_CO_ASSIGN_OR_RETURN(const Buffer buffer,
                              co_await context.AllocateBuffer(kExportPartBytes));
  v1::Digest digest;
  v1::VolumePart part;
  std::string volume;
  for (;;) {
    VERBENA_CO_ASSIGN_OR_RETURN(const bool read, co_await stream.Read(digest));
    if (!read) co_return absl::OkStatus();
    if (volume.empty()) volume = digest.volume();
    if (digest.bytes() > kExportPartBytes) {
      co_return absl::InvalidArgumentError("a digest of more than 256 KiB");
    }
    const BufferView blocks = buffer.Slice(0, digest.bytes());
    VERBENA_CO_RETURN_IF_ERROR(co_await store_.Read(volume, digest.offset(), blocks));
    const examples::Digest ours = examples::Sha256({blocks.data(), blocks.size()});
    if (std::string(ours.begin(), ours.end()) == digest.sha256()) continue;
    part.set_offset(digest.offset());
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(part, blocks));
  }
}

}  // namespace block_store
