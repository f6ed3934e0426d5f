// Progress: a line of text that shows how far some work is.
//
// On a terminal each update replaces the last one in its place. In a file or a pipe each update is
// a line of its own, once a second. One thread. Does not own its stream.
//
//   Progress progress(stderr, isatty(STDERR_FILENO));
//   while (Wait(progress.interval())) progress.Update("put 12,345 of 98,765");
//   progress.Finish("put 98,765 in 0.12 s");

#ifndef VERBENA_EXAMPLES_COMMON_PROGRESS_H_
#define VERBENA_EXAMPLES_COMMON_PROGRESS_H_

#include <chrono>
#include <cstdio>
#include <string>

namespace examples {

class Progress {
 public:
  Progress(std::FILE* out, bool redraws) : out_(out), redraws_(redraws) {}

  // How often to update.
  std::chrono::milliseconds interval() const {
    return std::chrono::milliseconds(redraws_ ? 100 : 1000);
  }
  void Update(const std::string& line);
  // Replaces the last update by a line that stays.
  void Finish(const std::string& line);

 private:
  std::FILE* const out_;
  const bool redraws_;
};

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_PROGRESS_H_
