#include "verbena/transport/file/ring_backend.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// (start) Files and regions of memory that the ring keeps; others are used without.
constexpr int kFiles = 1024;
constexpr uint32_t kRegions = 64;
// A registered buffer's largest size.
constexpr size_t kMaxRegionBytes = size_t{1} << 30;
// Index of a region that the kernel refused.
constexpr uint32_t kRefused = std::numeric_limits<uint32_t>::max();

void LogRefusal(int error, const char* what) {
  VERBENA_LOG_LINE(kFile, kInfo,
                   fmt::format("files are used without registering them or their buffers: {}",
                               ErrnoStatus(error, what).ToString()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileBackend>> RingBackend::Create(Executor& executor, IoRing& ring) {
  return std::unique_ptr<FileBackend>(new RingBackend(executor, ring));
}

RingBackend::RingBackend(Executor& executor, IoRing& ring) : executor_(executor), ring_(ring) {
  const std::vector<int> none(kFiles, -1);
  if (const int error = -io_uring_register_files(ring_.raw(), none.data(), kFiles); error > 0) {
    LogRefusal(error, "io_uring_register_files");
  } else {
    files_.resize(kFiles);
    for (int slot = kFiles; slot-- > 0;) free_files_.push_back(slot);
  }
  if (const int error = -io_uring_register_buffers_sparse(ring_.raw(), kRegions); error > 0) {
    LogRefusal(error, "io_uring_register_buffers_sparse");
  } else {
    regions_.resize(kRegions);
    for (uint32_t index = kRegions; index-- > 0;) free_regions_.push_back(index);
  }
}

RingBackend::~RingBackend() {
  for (MemoryRegion* region : regions_) {
    if (region != nullptr) region->SetRegistrar(nullptr, 0);
  }
  for (MemoryRegion* region : refused_) region->SetRegistrar(nullptr, 0);
  if (!regions_.empty()) io_uring_unregister_buffers(ring_.raw());
  if (!files_.empty()) io_uring_unregister_files(ring_.raw());
}

// --- Operations ----------------------------------------------------------------------------------

void RingBackend::PrepareTransfer(io_uring_sqe& sqe, const FileRequest& request) {
  const OpenFile& file = *request.file;
  const int fd = file.slot >= 0 ? file.slot : file.fd;
  const auto bytes = static_cast<unsigned>(request.part.size());
  // Others copy through the page cache, where a registered buffer gains nothing.
  const int index = file.direct ? IndexOf(request.part.region()) : -1;
  const bool is_read = request.kind == FileRequest::Kind::kRead;
  char* const data = request.part.data();
  if (is_read && index >= 0) {
    io_uring_prep_read_fixed(&sqe, fd, data, bytes, request.offset, index);
  } else if (is_read) {
    io_uring_prep_read(&sqe, fd, data, bytes, request.offset);
  } else if (index >= 0) {
    io_uring_prep_write_fixed(&sqe, fd, data, bytes, request.offset, index);
  } else {
    io_uring_prep_write(&sqe, fd, data, bytes, request.offset);
  }
  if (file.slot >= 0) io_uring_sqe_set_flags(&sqe, IOSQE_FIXED_FILE);
}

void RingBackend::Start(FileOperation& operation) {
  const FileRequest& request = operation.request;
  io_uring_sqe& sqe = *ring_.NextSqe();
  switch (request.kind) {
    case FileRequest::Kind::kOpen:
      io_uring_prep_openat(&sqe, AT_FDCWD, request.path.c_str(), request.flags, request.mode);
      break;
    case FileRequest::Kind::kRead:
    case FileRequest::Kind::kWrite:
      PrepareTransfer(sqe, request);
      break;
    case FileRequest::Kind::kSync:
      io_uring_prep_fsync(&sqe, request.file->fd, 0);
      break;
    case FileRequest::Kind::kDatasync:
      io_uring_prep_fsync(&sqe, request.file->fd, IORING_FSYNC_DATASYNC);
      break;
    case FileRequest::Kind::kFallocate:
      io_uring_prep_fallocate(&sqe, request.file->fd, request.flags,
                              static_cast<off_t>(request.offset),
                              static_cast<off_t>(request.length));
      break;
    case FileRequest::Kind::kStat:
      io_uring_prep_statx(&sqe, request.file->fd, "", AT_EMPTY_PATH, kStatMask, &operation.stat);
      break;
    case FileRequest::Kind::kClose:
      io_uring_prep_close(&sqe, request.fd);
      break;
    case FileRequest::Kind::kRename:
      io_uring_prep_renameat(&sqe, AT_FDCWD, request.path.c_str(), AT_FDCWD, request.to.c_str(),
                             static_cast<unsigned>(request.flags));
      break;
    case FileRequest::Kind::kRemove:
      io_uring_prep_unlinkat(&sqe, AT_FDCWD, request.path.c_str(), 0);
      break;
    case FileRequest::Kind::kMakeDirectory:
      io_uring_prep_mkdirat(&sqe, AT_FDCWD, request.path.c_str(), request.mode);
      break;
  }
  IoRing::Bind(sqe, operation);
}

void RingBackend::Cancel(FileOperation& operation) {
  io_uring_sqe* sqe = ring_.NextSqe();
  io_uring_prep_cancel64(sqe, IoRing::UserData(operation), 0);
  IoRing::BindToNobody(*sqe);
}

void RingBackend::Stop(const size_t& in_flight) {
  while (in_flight > 0) {
    ring_.SubmitAndWait(Duration(-1));
    ring_.Reap();
  }
}

// --- Registered files ----------------------------------------------------------------------------

void RingBackend::OnOpened(OpenFile& file) {
  if (free_files_.empty()) return;
  const int slot = free_files_.back();
  VERBENA_CHECK(files_[slot] == nullptr && file.slot < 0)
      << file.path << " has slot " << file.slot << ", and gets " << slot;
  if (io_uring_register_files_update(ring_.raw(), slot, &file.fd, 1) != 1) return;
  free_files_.pop_back();
  files_[slot] = &file;
  file.slot = slot;
}

void RingBackend::OnClosing(OpenFile& file) {
  const int slot = std::exchange(file.slot, -1);
  if (slot < 0) return;
  VERBENA_CHECK(files_[slot] == &file) << file.path << " is not in slot " << slot;
  const int none = -1;
  // An entry of the table that cannot be emptied is not used again.
  if (io_uring_register_files_update(ring_.raw(), slot, &none, 1) != 1) return;
  files_[slot] = nullptr;
  free_files_.push_back(slot);
}

// --- Registered buffers --------------------------------------------------------------------------

int RingBackend::IndexOf(MemoryRegion& region) {
  // Another thread may register a region of another home, or unmap it, at this moment.
  if (region.home() != &executor_) return -1;
  if (region.registrar() == this) [[likely]] {
    const uint32_t index = region.registered_index();
    return index == kRefused ? -1 : static_cast<int>(index);
  }
  if (region.registrar() != nullptr) return -1;
  return Register(region);
}

int RingBackend::Register(MemoryRegion& region) {
  if (free_regions_.empty() || region.size() > kMaxRegionBytes) return -1;
  const uint32_t index = free_regions_.back();
  const iovec memory = {.iov_base = region.data(), .iov_len = region.size()};
  const __u64 no_tag = 0;
  const int updated = io_uring_register_buffers_update_tag(ring_.raw(), index, &memory, &no_tag, 1);
  if (updated != 1) {
    LogRefusal(-updated, "io_uring_register_buffers_update (see RLIMIT_MEMLOCK)");
    region.SetRegistrar(this, kRefused);
    refused_.push_back(&region);
    return -1;
  }
  VERBENA_CHECK(regions_[index] == nullptr) << "place " << index << " is taken";
  free_regions_.pop_back();
  regions_[index] = &region;
  region.SetRegistrar(this, index);
  return static_cast<int>(index);
}

void RingBackend::OnRegionGone(MemoryRegion& region) {
  const uint32_t index = region.registered_index();
  if (index == kRefused) {
    std::erase(refused_, &region);
    return;
  }
  VERBENA_CHECK(index < regions_.size() && regions_[index] == &region)
      << "a region of " << region.size() << " bytes is not in place " << index;
  const iovec none = {.iov_base = nullptr, .iov_len = 0};
  const __u64 no_tag = 0;
  regions_[index] = nullptr;
  if (io_uring_register_buffers_update_tag(ring_.raw(), index, &none, &no_tag, 1) != 1) return;
  free_regions_.push_back(index);
}

}  // namespace verbena::internal
