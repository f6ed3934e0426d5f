// Work on the files of a Tree: StoreWork writes them to a volume, ReadWork reads them back. Each is
// the work of one examples::Phase, on a runtime with one executor that all workers share.
//
// Both compute the SHA-256 of every file on the way: StoreWork notes it in the tree, ReadWork
// compares it. A large file comes in several pieces, which wait for each other to be digested in
// order. This cannot deadlock: workers take pieces in order, and only once they have a buffer. Tree
// and channel must outlive the work.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_COPY_WORK_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_COPY_WORK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "examples/block_store/limits.h"
#include "examples/block_store/tree.h"
#include "examples/block_store/volume_client.h"
#include "examples/common/phase.h"
#include "examples/common/sha256.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/task.h"

namespace block_store {

// Digests of files. Parts of a file may come in any order: each waits here for its turn. One
// executor.
class FileDigests {
 public:
  explicit FileDigests(const Tree& tree) : tree_(tree) {}

  // Adds `data`, the bytes of `part`, after all earlier parts of the file. When the file is
  // complete, `digest` is its SHA-256. `complete` tells whether it is. CANCELLED if the caller is
  // cancelled, or after Abandon().
  verbena::Task<absl::Status> Add(const FilePart& part, const char* data, examples::Digest& digest,
                                  bool& complete);
  // Ends all waiting, because some part will never come.
  void Abandon();

 private:
  struct Running {
    examples::Sha256Stream stream;
    uint64_t bytes = 0;
  };

  const Tree& tree_;
  std::map<size_t, Running> running_;  // large files under way, by their index
  verbena::Event changed_;
  bool abandoned_ = false;
};

// The pieces of a tree, taken by workers.
class CopyWork : public examples::Work {
 public:
  CopyWork(verbena::Channel& channel, std::string volume, const Tree& tree, uint64_t max_bytes)
      : volume_(channel, std::move(volume)),
        layout_(tree),
        max_bytes_(max_bytes),
        pieces_(tree.Pieces(max_bytes)),
        digests_(tree) {}
  uint64_t total_calls() const override { return pieces_.size(); }
  // More workers would wait for each other's memory.
  int max_workers() const override {
    return static_cast<int>(std::max<uint64_t>(1, kMaxBytesInFlight / max_bytes_));
  }
  verbena::Task<void> RunWorker(examples::Lane& lane) final;

 protected:
  // Moves one piece: makes its call, counts it in `lane`, and does all work before and after it.
  virtual verbena::Task<absl::Status> Move(examples::Lane& lane, const Piece& piece,
                                           verbena::Buffer& buffer) = 0;
  const VolumeClient& volume() const { return volume_; }
  const Tree& layout() const { return layout_; }
  FileDigests& digests() { return digests_; }

 private:
  verbena::Task<absl::Status> MoveAll(examples::Lane& lane);

  const VolumeClient volume_;
  const Tree& layout_;
  const uint64_t max_bytes_;
  const std::vector<Piece> pieces_;
  size_t next_ = 0;
  FileDigests digests_;
};

// Reads the local files and writes them to the volume. Flushes nothing.
class StoreWork final : public CopyWork {
 public:
  // Layout() must have given the files of `tree` their offsets; the work fills in their digests.
  // The files lie below `root`.
  StoreWork(verbena::Channel& channel, std::string volume, std::string root, Tree& tree,
            uint64_t max_bytes)
      : CopyWork(channel, std::move(volume), tree, max_bytes),
        root_(std::move(root)),
        tree_(tree) {}
  const char* name() const override { return "store"; }

 private:
  verbena::Task<absl::Status> Move(examples::Lane& lane, const Piece& piece,
                                   verbena::Buffer& buffer) override;
  verbena::Task<absl::Status> ReadFilePart(const FilePart& part, const verbena::Buffer& buffer);

  const std::string root_;
  Tree& tree_;
};

// ReadInto says what ReadWork does with the bytes that it reads back.
enum class ReadInto {
  kNothing,     // nothing
  kComparison,  // each file's SHA-256 is compared with the tree's
  kFiles,       // as kComparison, and they are written to files that exist already
};

class ReadWork final : public CopyWork {
 public:
  // `directory`: the directory of the files to write, for kFiles.
  ReadWork(verbena::Channel& channel, std::string volume, const Tree& tree, uint64_t max_bytes,
           ReadInto into, std::string directory = "")
      : CopyWork(channel, std::move(volume), tree, max_bytes),
        into_(into),
        directory_(std::move(directory)) {}
  const char* name() const override { return into_ == ReadInto::kComparison ? "verify" : "read"; }
  // How many files had the right SHA-256. Empty files are not counted.
  size_t compared() const { return compared_; }

 private:
  verbena::Task<absl::Status> Move(examples::Lane& lane, const Piece& piece,
                                   verbena::Buffer& buffer) override;
  verbena::Task<absl::Status> Compare(const FilePart& part, const verbena::Buffer& buffer);
  verbena::Task<absl::Status> WriteFilePart(const FilePart& part, const verbena::Buffer& buffer);

  const ReadInto into_;
  const std::string directory_;
  size_t compared_ = 0;
};

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_COPY_WORK_H_
