// VolumeStore: volumes of 4 KiB blocks in files, read and written straight into and out of Buffers.
//
// Its promises, whenever the process or the machine stops:
// - A volume exists once Create() has returned OK, and then has its whole size. Blocks that were
//   never written hold zeros.
// - A Write() that flushes makes its data durable by returning OK. The data of another Write() is
//   durable once a flush that began after it has returned OK. Until then a stop may undo the Write,
//   block by block: each block holds the data of some Write to it, or the data that was flushed
//   before. The death of the process never tears a block. Power loss does not tear it
//   either, if the disk keeps its promise to write 4096 bytes at once.
// - After a failed flush, the kernel may have dropped data. The volume then refuses writes and
//   flushes until the store is opened anew, so that nobody takes lost data for durable. The kernel
//   reports such a loss to a single flush of an open file. So all flushes of a volume run one after
//   the other, on one executor and one open file. Flushes that wait while one runs share the next.
// If several Writes write one block at once, one of them wins; a Read at that time sees any of
// them. Write and Flush are not cancelled: they go on after their caller has stopped waiting. A
// caller that gives up a Write and writes the same blocks again does not know which Write comes
// last. This also holds for Writes in flight when a process is killed: the kernel may complete them
// after the process has ended, as late as the disk does.
//
// Methods may be called on any executor that was given to Open(). Each executor has its own open
// files (io_uring, O_DIRECT if the file system supports it). So a Read or Write takes no lock,
// except when its executor uses the volume for the first time. Names and buffers must stay valid
// until the Task ends. A cancelled Read returns at once; file.h says what then becomes of its
// Buffer. The store must be destroyed after its Tasks and before the executors.
//
//   VERBENA_ASSIGN_OR_RETURN(auto store, VolumeStore::Open("/srv/volumes", {&executor}));
//   VERBENA_CO_RETURN_IF_ERROR(co_await store->Create("db", /*blocks=*/1 << 18));
//   VERBENA_CO_RETURN_IF_ERROR(co_await store->Write("db", 8192, block.view(), /*flush=*/true));

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_STORE_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/catalog.h"
#include "verbena/rpc/file.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace block_store {

struct VolumeInfo {
  std::string name;
  uint64_t blocks = 0;
  uint64_t allocated_bytes = 0;  // disk space in use
  bool direct = false;           // the file is open with O_DIRECT
};

class VolumeStore {
 public:
  // Fails as Catalog::Open does.
  static absl::StatusOr<std::unique_ptr<VolumeStore>> Open(
      const std::string& directory, const std::vector<verbena::Executor*>& executors);
  VolumeStore(const VolumeStore&) = delete;
  VolumeStore& operator=(const VolumeStore&) = delete;

  // With `reserve`, disk space for all blocks is taken at once. INVALID_ARGUMENT, ALREADY_EXISTS,
  // OUT_OF_RANGE if the file system has no files of this size, RESOURCE_EXHAUSTED for a full disk
  // or too many volumes.
  verbena::Task<absl::Status> Create(std::string name, uint64_t blocks, bool reserve = false);

  // Every method with a name: INVALID_ARGUMENT for a bad name, NOT_FOUND if there is no such
  // volume. Read and Write: INVALID_ARGUMENT unless offset and size are whole blocks, and the size
  // is 4 KiB to 16 MiB; OUT_OF_RANGE beyond the volume's end. Then nothing is read or written.
  // Write and Flush: FAILED_PRECONDITION after a failed flush.
  verbena::Task<absl::Status> Read(const std::string& name, uint64_t offset,
                                   verbena::BufferView into);
  // RESOURCE_EXHAUSTED if the disk is full: part of the data may have been written then.
  verbena::Task<absl::Status> Write(const std::string& name, uint64_t offset,
                                    verbena::BufferView data, bool flush);
  verbena::Task<absl::Status> Flush(const std::string& name);
  verbena::Task<absl::StatusOr<VolumeInfo>> Stat(const std::string& name);
  // The first `count` volumes whose names sort after `after`, in order. Any thread.
  std::vector<const Volume*> List(const std::string& after, size_t count) {
    return catalog_->List(after, count);
  }

  // Checks offset and size as Read and Write do, with the same errors.
  static absl::Status CheckPlace(const Volume& volume, uint64_t offset, uint64_t bytes);
  absl::StatusOr<Volume*> Find(const std::string& name) { return catalog_->Find(name); }

 private:
  struct OpenVolume {
    OpenVolume(Volume& its_volume, verbena::File its_file)
        : volume(&its_volume), file(std::move(its_file)) {}
    Volume* volume;
    verbena::File file;
    // Both are used only on the executor that flushes the volume.
    verbena::Semaphore flush_turn{1};
    uint64_t flushes_begun = 0;
  };
  // The open files of one executor.
  struct Shard {
    explicit Shard(verbena::Executor& its_executor) : executor(&its_executor) {}
    verbena::Executor* executor;
    absl::flat_hash_map<std::string, std::unique_ptr<OpenVolume>> volumes;
  };

  explicit VolumeStore(std::unique_ptr<Catalog> catalog) : catalog_(std::move(catalog)) {}
  Shard* ShardHere();
  verbena::Executor& FlusherOf(const Volume& volume) const;
  verbena::Task<absl::StatusOr<OpenVolume*>> Use(const std::string& name);
  verbena::Task<absl::Status> FlushVolume(const Volume& volume);
  verbena::Task<absl::Status> FlushHere(std::string name);

  const std::unique_ptr<Catalog> catalog_;
  std::vector<Shard> shards_;
};

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_VOLUME_STORE_H_
