// BlockService: block_store.v1.BlockStore on a VolumeStore.
//
// Its handlers run on every executor of the server; the store must have been opened for all of
// them, and must outlive the service. Payloads are not copied: a Write's goes from the buffer in
// which it arrived to the file, a Read's from the file into the buffer that is written to the
// client. Streams copy once, between a buffer and a message.
//
//   VERBENA_ASSIGN_OR_RETURN(auto store, VolumeStore::Open(directory, executors));
//   BlockService service(*store);
//   auto server = verbena::Server::Start(*runtime, {&service});

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_BLOCK_SERVICE_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_BLOCK_SERVICE_H_

#include "absl/status/status.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "examples/block_store/volume_store.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/service.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace block_store {

class BlockService final : public v1::BlockStore::Service {
 public:
  explicit BlockService(VolumeStore& store) : store_(store) {}

  verbena::Task<absl::Status> CreateVolume(verbena::ServerContext& context,
                                           const v1::CreateVolumeRequest& request,
                                           v1::CreateVolumeReply& reply) override;
  verbena::Task<absl::Status> Write(verbena::ServerContext& context,
                                    const v1::WriteRequest& request,
                                    v1::WriteReply& reply) override;
  verbena::Task<absl::Status> Read(verbena::ServerContext& context, const v1::ReadRequest& request,
                                   v1::ReadReply& reply) override;
  verbena::Task<absl::Status> Flush(verbena::ServerContext& context,
                                    const v1::FlushRequest& request,
                                    v1::FlushReply& reply) override;
  verbena::Task<absl::Status> Stat(verbena::ServerContext& context, const v1::StatRequest& request,
                                   v1::StatReply& reply) override;
  verbena::Task<absl::Status> List(verbena::ServerContext& context, const v1::ListRequest& request,
                                   v1::ListReply& reply) override;
  verbena::Task<absl::Status> Export(
      verbena::ServerContext& context, const v1::ExportRequest& request,
      verbena::ServerWriter<verbena::WithPayload<v1::VolumePart>>& parts) override;
  verbena::Task<absl::Status> Import(
      verbena::ServerContext& context,
      verbena::ServerReader<verbena::WithPayload<v1::VolumePart>>& parts,
      v1::ImportReply& reply) override;
  verbena::Task<absl::Status> Sync(
      verbena::ServerContext& context,
      verbena::ServerReaderWriter<v1::Digest, verbena::WithPayload<v1::VolumePart>>& stream)
      override;

 private:
  VolumeStore& store_;
};

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_BLOCK_SERVICE_H_
