// RingBackend: file operations on the executor's io_uring. Internal to transport/file.
//
// Files are registered with the ring when they are opened (no look-up of the descriptor per
// operation). Regions of buffers are registered when O_DIRECT first reads or writes them (no
// pinning per operation). A file or region that is not registered is used without. The log says if
// the kernel refuses a region, or all files or regions.

#ifndef VERBENA_TRANSPORT_FILE_RING_BACKEND_H_
#define VERBENA_TRANSPORT_FILE_RING_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/file/operation.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class RingBackend final : public FileBackend, private RegionRegistrar {
 public:
  static absl::StatusOr<std::unique_ptr<FileBackend>> Create(Executor& executor, IoRing& ring);
  ~RingBackend() override;

  const char* name() const override { return "io_uring"; }
  size_t bound() const override { return IoRing::kEntries; }
  void Start(FileOperation& operation) override;
  void Cancel(FileOperation& operation) override;
  void OnOpened(OpenFile& file) override;
  void OnClosing(OpenFile& file) override;
  void Stop(const size_t& in_flight) override;

  size_t registered_files() const { return files_.size() - free_files_.size(); }
  size_t registered_buffers() const { return regions_.size() - free_regions_.size(); }

 private:
  RingBackend(Executor& executor, IoRing& ring);

  void OnRegionGone(MemoryRegion& region) override;
  // The region's index in the ring's table of buffers; -1 if it has none.
  int IndexOf(MemoryRegion& region);
  int Register(MemoryRegion& region);
  void PrepareTransfer(io_uring_sqe& sqe, const FileRequest& request);

  Executor& executor_;
  IoRing& ring_;
  // By slot; both empty when the kernel keeps no table of ours.
  std::vector<const OpenFile*> files_;
  std::vector<int> free_files_;
  std::vector<MemoryRegion*> regions_;
  std::vector<uint32_t> free_regions_;
  // Regions that the kernel refused, so that it is not asked again.
  std::vector<MemoryRegion*> refused_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_RING_BACKEND_H_
