// CapturedLog: collects what is logged while it lives, instead of printing it. One at a time.
//
// Each component logs from kInfo on meanwhile; afterwards the levels are as before.

#ifndef VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_
#define VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"

namespace verbena {

class CapturedLog {
 public:
  // A record that outlives the sink's call.
  struct Line {
    LogLevel level;
    LogComponent component;
    std::string text;
    std::map<std::string, std::string> fields;
  };

  explicit CapturedLog(const std::string& levels = "info") {
    VERBENA_CHECK(SetLogLevels(levels).ok()) << levels;
    SetLogSink([this](const LogRecord& record) { Add(record); });
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  // Nobody writes to this once the sink is another.
  ~CapturedLog() {
    SetLogSink(nullptr);
    VERBENA_CHECK(SetLogLevels(before_).ok()) << before_;
  }

  // Waits for a line with `part` in it among those that Take() would return.
  void Await(const std::string& part) const {
    std::unique_lock lock(mutex_);
    grown_.wait(lock, [&] {
      return std::any_of(lines_.begin(), lines_.end(), [&part](const Line& line) {
        return line.text.find(part) != std::string::npos;
      });
    });
  }

  // The lines since the last call of this or of TakeLines().
  std::vector<std::string> Take() {
    std::vector<std::string> texts;
    for (Line& line : TakeLines()) texts.push_back(std::move(line.text));
    return texts;
  }
  std::vector<Line> TakeLines() {
    std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  void Add(const LogRecord& record) {
    Line line{.level = record.level,
              .component = record.component,
              .text = std::string(record.text),
              .fields = {}};
    for (const LogField& field : record.fields) line.fields[std::string(field.key)] = field.value;
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    grown_.notify_all();
  }

  const std::string before_ = LogLevels();
  mutable std::mutex mutex_;
  mutable std::condition_variable grown_;
  std::vector<Line> lines_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_BASE_CAPTURED_LOG_H_
