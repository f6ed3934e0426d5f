#include "examples/kv/corpus.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "fmt/format.h"

namespace kv {

using examples::AppendHex;
using examples::Digest;
using examples::Sha256;

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status FileError(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, path);
}

// The whole file, also one whose size is not known before: a pipe, or one below /proc.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about;
  if (file.get() < 0 || fstat(file.get(), &about) != 0) return FileError(path, errno);
  if (S_ISDIR(about.st_mode)) return FileError(path, EISDIR);
  std::string content;
  size_t size = 0;
  while (true) {
    constexpr size_t kLeast = 64 << 10;
    const size_t expected = static_cast<size_t>(std::max<off_t>(about.st_size, 0)) + 1;
    if (content.size() - size < kLeast / 2) {
      content.resize(std::max({expected, size * 2, kLeast}));
    }
    const ssize_t bytes = read(file.get(), content.data() + size, content.size() - size);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return FileError(path, errno);
    if (bytes == 0) break;
    size += static_cast<size_t>(bytes);
    if (size > max_bytes) {
      return absl::ResourceExhaustedError(
          fmt::format("{}: the files are larger than --max_bytes allows", path));
    }
  }
  content.resize(size);
  return content;
}

void AppendMatches(const char* pattern, std::vector<std::string>& paths) {
  glob_t found{};
  if (glob(pattern, 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      // The user did not ask for these files by name: files that cannot be read are passed over.
      struct stat about;
      const char* path = found.gl_pathv[i];
      if (stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, R_OK) == 0) {
        paths.emplace_back(path);
      }
    }
  }
  globfree(&found);
}

}  // namespace

void Piece::AppendKey(std::string& key) const {
  AppendHex(line_digest, key);
  if (part != kWholeLine) fmt::format_to(std::back_inserter(key), "#{}", part);
}

absl::StatusOr<Corpus> Corpus::Load(const std::vector<std::string>& paths, uint64_t max_bytes) {
  Corpus corpus;
  uint64_t bytes_left = max_bytes;
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> content = ReadFile(path, bytes_left);
    if (!content.ok()) return content.status();
    bytes_left -= content->size();
    corpus.AddFile(*std::move(content));
  }
  corpus.CountDistinctKeys();
  return corpus;
}

std::vector<std::string> Corpus::DefaultPaths() {
  std::vector<std::string> paths;
  AppendMatches("/usr/share/common-licenses/*", paths);
  AppendMatches("/usr/share/doc/*/copyright", paths);
  return paths;
}

void Corpus::AddFile(std::string content) {
  files_.push_back(std::move(content));
  std::string_view rest = files_.back();
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    AddLine(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

void Corpus::AddLine(std::string_view line) {
  const Digest digest = Sha256(line);
  ++lines_;
  bytes_ += line.size();
  if (line.size() <= kMaxPieceBytes) {
    pieces_.push_back({line, Piece::kWholeLine, digest});
    return;
  }
  ++long_lines_;
  for (uint32_t part = 0; !line.empty(); ++part) {
    pieces_.push_back({line.substr(0, kMaxPieceBytes), part, digest});
    line.remove_prefix(pieces_.back().bytes.size());
    ++parts_;
  }
}

void Corpus::CountDistinctKeys() {
  absl::flat_hash_set<std::pair<Digest, uint32_t>> seen;
  for (const Piece& piece : pieces_) seen.emplace(piece.line_digest, piece.part);
  distinct_keys_ = seen.size();
}

}  // namespace kv
