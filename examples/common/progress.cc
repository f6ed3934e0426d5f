#include "examples/common/progress.h"

#include "fmt/format.h"

namespace examples {
namespace {

// To the line's begin, and clear it to its end.
constexpr char kRestart[] = "\r\x1b[K";

}  // namespace

void Progress::Update(const std::string& line) {
  if (redraws_) {
    fmt::print(out_, "{}{}", kRestart, line);
  } else {
    fmt::print(out_, "{}\n", line);
  }
  std::fflush(out_);
}

void Progress::Finish(const std::string& line) {
  fmt::print(out_, "{}{}\n", redraws_ ? kRestart : "", line);
  std::fflush(out_);
}

}  // namespace examples
