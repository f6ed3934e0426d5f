// LineSource: the text of a request, from an argument, a file or standard input.
//
// Reads a line at a time, so that messages of a stream go out while others are still typed. Next()
// blocks: call it on a thread that may (RunBlocking), one thread at a time. Stop() may come from
// any thread, and ends a read of a terminal or a pipe within kLook.

#ifndef VERBENA_TOOLS_VERBENA_LINE_SOURCE_H_
#define VERBENA_TOOLS_VERBENA_LINE_SOURCE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::command {

class LineSource {
 public:
  // The longest line, and the longest text of All().
  static constexpr size_t kMaxBytes = size_t{1} << 20;
  static constexpr std::chrono::milliseconds kLook{50};

  // `argument` is JSON, "-" for the descriptor `standard_input`, which is borrowed, or "@FILE".
  // The error names the file.
  static absl::StatusOr<std::unique_ptr<LineSource>> Open(const std::string& argument,
                                                          int standard_input);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // The next line that is not blank, without its end. False at the end of the text, and after
  // Stop(). INVALID_ARGUMENT: the line is too long. Others name what cannot be read.
  absl::StatusOr<bool> Next(std::string& line);
  // All of the text that is left.
  absl::StatusOr<std::string> All();
  // The number of the line that Next() gave, from 1.
  uint32_t line_number() const { return line_number_; }
  // What errors call it: "the argument", "standard input" or the file's name.
  const std::string& name() const { return name_; }
  void Stop() { stopped_ = true; }

 private:
  LineSource(std::string name, int fd, bool owned, std::string text)
      : name_(std::move(name)), fd_(fd), owned_(owned), text_(std::move(text)) {}
  // Reads more of the text. False at its end.
  absl::StatusOr<bool> Fill();

  const std::string name_;
  const int fd_;  // -1: all of the text is in text_
  const bool owned_;
  std::string text_;  // read, and not taken
  bool ended_ = false;
  uint32_t line_number_ = 0;
  std::atomic<bool> stopped_ = false;
};

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_LINE_SOURCE_H_
