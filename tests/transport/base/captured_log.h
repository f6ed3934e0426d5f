// CapturedLog: collects what is logged while it lives, instead of printing it. One at a time.

#ifndef VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_
#define VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/base/log.h"

namespace verbena {

class CapturedLog {
 public:
  CapturedLog() {
    Take();
    SetLogSink([](LogLevel, const std::string& message) {
      std::lock_guard lock(Shared().mutex);
      Shared().lines.push_back(message);
      Shared().grown.notify_all();
    });
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { SetLogSink(nullptr); }

  // Waits for a line with `part` in it among those that Take() would return.
  void Await(const std::string& part) const {
    std::unique_lock lock(Shared().mutex);
    Shared().grown.wait(lock, [&part] {
      return std::any_of(
          Shared().lines.begin(), Shared().lines.end(),
          [&](const std::string& line) { return line.find(part) != std::string::npos; });
    });
  }

  // The lines since the last call.
  std::vector<std::string> Take() {
    std::lock_guard lock(Shared().mutex);
    return std::exchange(Shared().lines, {});
  }

 private:
  struct Lines {
    std::mutex mutex;
    std::condition_variable grown;
    std::vector<std::string> lines;
  };
  static Lines& Shared() {
    static Lines lines;
    return lines;
  }
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_
