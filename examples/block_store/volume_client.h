// VolumeClient: the calls of block_store.v1.BlockStore on one volume, in the form that a copying
// program needs.
//
// Used on an executor of the channel's runtime. The channel must outlive it. Transfers of block
// data take a Buffer and give it back. Errors name the method, the volume and offset, and the
// call's outcome as far as it is known. Each call has its own deadline.
//
//   VolumeClient volume(channel, "backup");
//   VERBENA_CO_RETURN_IF_ERROR(co_await volume.Create(blocks));
//   VERBENA_CO_RETURN_IF_ERROR(co_await volume.Write(0, buffer));
//   VERBENA_CO_RETURN_IF_ERROR(co_await volume.Flush());

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_CLIENT_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_CLIENT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/block_store.pb.h"
#include "examples/block_store/block_store.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"

namespace block_store {

class VolumeClient {
 public:
  VolumeClient(verbena::Channel& channel, std::string volume)
      : channel_(channel), stub_(channel), volume_(std::move(volume)) {}

  const std::string& volume() const { return volume_; }
  verbena::Channel& channel() const { return channel_; }

  verbena::Task<absl::Status> Create(uint64_t blocks) const;
  // Gives `data` back if the call succeeds. After a failure `data` may be empty.
  verbena::Task<absl::Status> Write(uint64_t offset, verbena::Buffer& data,
                                    bool flush = false) const;
  // Fills `into`, all of its size. After a failure `into` may be empty.
  verbena::Task<absl::Status> Read(uint64_t offset, verbena::Buffer& into) const;
  verbena::Task<absl::Status> Flush() const;
  verbena::Task<absl::StatusOr<v1::StatReply>> Stat() const;

  // Write or read any number of bytes, in as many transfers as needed. Writing pads the last block
  // with zeros.
  verbena::Task<absl::Status> WriteBytes(uint64_t offset, const std::string& bytes,
                                         bool flush = false) const;
  verbena::Task<absl::StatusOr<std::string>> ReadBytes(uint64_t offset, uint64_t bytes) const;

 private:
  verbena::Channel& channel_;
  const v1::BlockStore::Stub stub_;
  const std::string volume_;
};

// All volumes of a server, by name.
verbena::Task<absl::StatusOr<std::vector<v1::VolumeEntry>>> ListVolumes(verbena::Channel& channel);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_CLIENT_H_
