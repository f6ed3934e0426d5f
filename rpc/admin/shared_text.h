// SharedText: a text that is costly to write and to hold, for all who ask for it at about the same
// time.
//
// A scrape of many methods has megabytes, and any number of readers may take it slowly, or ask
// again and again. So it is written once in kFresh, and at most kMost of them exist: while as many
// are still being read, whoever asks gets the last one, however old it is. Part of an Admin, on its
// thread.
//
//   std::shared_ptr<const std::string> text = shared.Get(now, [&] { return Written(); });

#ifndef VERBENA_RPC_ADMIN_SHARED_TEXT_H_
#define VERBENA_RPC_ADMIN_SHARED_TEXT_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

class SharedText {
 public:
  static constexpr Duration kFresh = std::chrono::milliseconds(250);  // (start)
  static constexpr size_t kMost = 4;                                  // (start)

  // The last text, or what `write` returns. `now` never goes back.
  std::shared_ptr<const std::string> Get(TimePoint now, absl::FunctionRef<std::string()> write);

 private:
  std::shared_ptr<const std::string> last_;
  TimePoint written_{};
  std::vector<std::weak_ptr<const std::string>> earlier_;  // that somebody may still read
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_ADMIN_SHARED_TEXT_H_
