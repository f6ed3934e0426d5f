#include "examples/block_store/comparison.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "examples/common/server_process.h"
#include "fmt/format.h"
#include "verbena/rpc/task.h"

namespace block_store {

using examples::PhaseReport;
using examples::StopSignals;
using SteadyClock = std::chrono::steady_clock;

namespace {

constexpr char kCp[] = "/bin/cp";
constexpr size_t kDigestChunk = size_t{1} << 20;
// Larger than what caches hold.
constexpr size_t kMemoryBytes = size_t{64} << 20;

uint64_t Nanoseconds(SteadyClock::duration duration) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(duration).count());
}

absl::Status CheckInterrupted(StopSignals& signals) {
  signals.WaitReadable(-1, std::chrono::milliseconds(0));
  return signals.received() == 0 ? absl::OkStatus() : absl::CancelledError("interrupted");
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Calls `take` with the bytes that each read(2) returns.
absl::Status ReadFile(const std::string& path, std::string& buffer,
                      const std::function<void(std::string_view)>& take) {
  const Descriptor file(path, O_RDONLY | O_NOFOLLOW);
  if (file.get() < 0) return absl::ErrnoToStatus(errno, path);
  while (true) {
    const ssize_t bytes = read(file.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return absl::ErrnoToStatus(errno, path);
    if (bytes == 0) return absl::OkStatus();
    take({buffer.data(), static_cast<size_t>(bytes)});
  }
}

}  // namespace

absl::StatusOr<std::vector<examples::Digest>> DigestsOfFiles(const std::string& root,
                                                             const Tree& tree,
                                                             StopSignals& signals) {
  std::vector<examples::Digest> digests;
  digests.reserve(tree.files.size());
  std::string buffer(kDigestChunk, '\0');
  for (const FileEntry& file : tree.files) {
    VERBENA_RETURN_IF_ERROR(CheckInterrupted(signals));
    examples::Sha256Stream stream;
    VERBENA_RETURN_IF_ERROR(ReadFile(root + "/" + file.path, buffer,
                                     [&stream](std::string_view bytes) { stream.Add(bytes); }));
    digests.push_back(stream.Finish());
  }
  return digests;
}

absl::StatusOr<PhaseReport> CopyByCp(const std::string& from, const std::string& to,
                                     const Tree& tree, StopSignals& signals) {
  PhaseReport report;
  report.name = "cp";
  report.bytes = tree.bytes();
  const auto began = SteadyClock::now();
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<examples::ServerProcess> cp,
      examples::ServerProcess::Start(kCp, {"-r", "--no-dereference", "-T", "--", from, to}));
  VERBENA_RETURN_IF_ERROR(cp->WaitForEnd(signals));
  const Descriptor copied(to, O_RDONLY);
  if (copied.get() < 0 || syncfs(copied.get()) != 0) return absl::ErrnoToStatus(errno, to);
  report.elapsed = SteadyClock::now() - began;
  return report;
}

absl::StatusOr<PhaseReport> ReadFiles(const std::string& root, const Tree& tree, size_t chunk,
                                      StopSignals& signals) {
  for (const FileEntry& file : tree.files) {
    const Descriptor descriptor(root + "/" + file.path, O_RDONLY | O_NOFOLLOW);
    if (descriptor.get() >= 0) posix_fadvise(descriptor.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  PhaseReport report;
  report.name = "read(2)";
  std::string buffer(chunk, '\0');
  const auto began = SteadyClock::now();
  auto last = began;
  for (const FileEntry& file : tree.files) {
    VERBENA_RETURN_IF_ERROR(CheckInterrupted(signals));
    VERBENA_RETURN_IF_ERROR(ReadFile(root + "/" + file.path, buffer, [&](std::string_view bytes) {
      const auto now = SteadyClock::now();
      report.latencies.Record(Nanoseconds(now - std::exchange(last, now)));
      report.bytes += bytes.size();
      ++report.calls;
    }));
  }
  report.elapsed = SteadyClock::now() - began;
  return report;
}

PhaseReport CopyInMemory(uint64_t bytes, size_t chunk) {
  const std::string from(kMemoryBytes, 'v');
  std::string to(kMemoryBytes, '\0');
  chunk = std::min(chunk, kMemoryBytes);
  PhaseReport report;
  report.name = "memcpy";
  const auto began = SteadyClock::now();
  for (size_t at = 0; report.bytes < bytes; at = at + 2 * chunk <= kMemoryBytes ? at + chunk : 0) {
    const auto start = SteadyClock::now();
    std::memcpy(to.data() + at, from.data() + at, chunk);
    // Keeps the compiler from leaving out a copy that nobody reads.
    asm volatile("" : : "r"(to.data()) : "memory");
    report.latencies.Record(Nanoseconds(SteadyClock::now() - start));
    report.bytes += chunk;
    ++report.calls;
  }
  report.elapsed = SteadyClock::now() - began;
  return report;
}

}  // namespace block_store
