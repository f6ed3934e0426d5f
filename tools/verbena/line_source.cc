#include "tools/verbena/line_source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status.h"

namespace verbena::command {

absl::StatusOr<std::unique_ptr<LineSource>> LineSource::Open(const std::string& argument,
                                                             int standard_input) {
  if (argument == "-") {
    return std::unique_ptr<LineSource>(new LineSource("standard input", standard_input, false, ""));
  }
  if (argument.empty() || argument.front() != '@') {
    return std::unique_ptr<LineSource>(new LineSource("the argument", -1, false, argument));
  }
  const std::string path = argument.substr(1);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, fmt::format("cannot open {}", path));
  return std::unique_ptr<LineSource>(new LineSource(path, fd, true, ""));
}

LineSource::~LineSource() {
  if (owned_) close(fd_);
}

absl::StatusOr<bool> LineSource::Fill() {
  if (fd_ < 0 || ended_) return false;
  while (!stopped_) {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    const int found = poll(&ready, 1, static_cast<int>(kLook.count()));
    if (found == 0 || (found < 0 && errno == EINTR)) continue;
    char part[16384];
    const ssize_t bytes = read(fd_, part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return absl::ErrnoToStatus(errno, fmt::format("cannot read {}", name_));
    text_.append(part, static_cast<size_t>(bytes));
    ended_ = bytes == 0;
    return !ended_;
  }
  return false;
}

absl::StatusOr<bool> LineSource::Next(std::string& line) {
  size_t searched = 0;
  for (;;) {
    if (stopped_) return false;
    size_t end = text_.find('\n', searched);
    if (end == std::string::npos) {
      searched = text_.size();
      VERBENA_ASSIGN_OR_RETURN(const bool more, Fill());
      if (more && text_.size() <= kMaxBytes) continue;
      if (stopped_ || (!more && text_.empty())) return false;
      end = text_.size();
    }
    ++line_number_;
    if (end > kMaxBytes) {
      return absl::InvalidArgumentError(
          fmt::format("{}:{}: a line has more than {} bytes, the most that is read", name_,
                      line_number_, kMaxBytes));
    }
    line = text_.substr(0, end);
    text_.erase(0, end + 1);
    searched = 0;
    if (line.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
}

absl::StatusOr<std::string> LineSource::All() {
  while (text_.size() <= kMaxBytes) {
    VERBENA_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) {
      line_number_ = 1;
      return std::exchange(text_, "");
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("{} has more than {} bytes, the most that is read", name_, kMaxBytes));
}

}  // namespace verbena::command
