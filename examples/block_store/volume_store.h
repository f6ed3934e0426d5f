// VolumeStore: volumes of 4 KiB blocks in files, read and written straight into and out of Buffers.
//
// Its promises, whenever the process or the machine stops:
// - A volume exists once Create() has returned OK, and then has its whole size; blocks never
//   written hold zeros.
// - Data is durable once a Flush(), or a Write() that flushes, has returned OK which began after
//   the data's Write() had returned. Until then a stop may undo the Write, block by block: each
//   block holds what some Write to it put there, or what was flushed before. It is never torn when
//   the process dies; when the machine loses power, that is as good as its disk's promise to write
//   4096 bytes at once.
// - After a flush that failed the kernel may have dropped data. The volume then refuses writes and
//   flushes, until the store is opened anew, so that nobody takes for durable what is lost. The
//   kernel reports such a loss to one flush of an open file alone. So a volume's flushes run one
//   after the other, all on one executor and one open file, and those that wait while one runs
//   share the next one.
// If Writes write one block at once, one of them wins; a Read at that time sees either. Write and
// Flush are not cancelled, and go on when their caller does not wait any more. A caller that gives
// up a Write and writes the same blocks again does not know which of the two comes last. The same
// holds for the Writes that a process had under way when it was killed: the kernel may end them
// after the process, for as long as the disk takes.
//
// The methods are called on the executors that Open() was told, any of them; each has files of its
// own (io_uring, O_DIRECT where the file system has it), so calls meet no lock but when a volume is
// first used. Names and buffers are borrowed until the Task ends. A cancelled Read returns at once;
// see File for what that means to its Buffer. The store is destroyed before the executors, and
// after its Tasks.
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
#include "verbena/rpc/buffer.h"
#include "verbena/rpc/executor.h"
#include "verbena/rpc/file.h"
#include "verbena/rpc/sync.h"
#include "verbena/rpc/task.h"

namespace block_store {

struct VolumeInfo {
  std::string name;
  uint64_t blocks = 0;
  uint64_t allocated_bytes = 0;  // on the disk
  bool direct = false;           // past the page cache
};

class VolumeStore {
 public:
  // Fails as Catalog::Open does.
  static absl::StatusOr<std::unique_ptr<VolumeStore>> Open(
      const std::string& directory, const std::vector<verbena::Executor*>& executors);
  VolumeStore(const VolumeStore&) = delete;
  VolumeStore& operator=(const VolumeStore&) = delete;

  // With `reserve`, the disk's space for all blocks is taken at once. INVALID_ARGUMENT,
  // ALREADY_EXISTS, RESOURCE_EXHAUSTED for a full disk or too many volumes.
  verbena::Task<absl::Status> Create(std::string name, uint64_t blocks, bool reserve = false);

  // All methods below: NOT_FOUND when there is no such volume. Both of these: INVALID_ARGUMENT
  // unless offset and size are whole blocks, 1 to 16 MiB of them; OUT_OF_RANGE beyond the volume's
  // end; then nothing is read or written.
  verbena::Task<absl::Status> Read(const std::string& name, uint64_t offset,
                                   verbena::BufferView into);
  // RESOURCE_EXHAUSTED for a full disk: then part of it may have been written.
  verbena::Task<absl::Status> Write(const std::string& name, uint64_t offset,
                                    verbena::BufferView data, bool flush);
  verbena::Task<absl::Status> Flush(const std::string& name);
  verbena::Task<absl::StatusOr<VolumeInfo>> Stat(const std::string& name);
  // Up to `count` volumes behind `after`, by name. Any thread.
  std::vector<const Volume*> List(const std::string& after, size_t count) {
    return catalog_->List(after, count);
  }

  // Checks a place in a volume, before Read and Write look at data.
  static absl::Status CheckPlace(const Volume& volume, uint64_t offset, uint64_t bytes);
  absl::StatusOr<Volume*> Find(const std::string& name) { return catalog_->Find(name); }

 private:
  struct OpenVolume {
    OpenVolume(Volume& its_volume, verbena::File its_file)
        : volume(&its_volume), file(std::move(its_file)) {}
    Volume* volume;
    verbena::File file;
    // Used on the executor that flushes the volume alone.
    verbena::Semaphore flush_turn{1};
    uint64_t flushes_begun = 0;
  };
  // One executor's.
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
