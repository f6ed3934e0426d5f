// CheckFlushPoints: looks at a disk as it would be if the power went at each point of its log where
// it had promised something.

#ifndef VERBENA_TESTS_EXAMPLES_BLOCK_STORE_FLUSH_POINTS_H_
#define VERBENA_TESTS_EXAMPLES_BLOCK_STORE_FLUSH_POINTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/examples/block_store/logged_writes.h"

namespace block_store {

// Replays the log at `log_path` into `image`, a disk as it was formatted. Calls `check` with the
// image and the number in the last mark, at about `short_checks` of the flush points behind the
// first mark, or at each of them if VERBENA_POWER_LOSS is "all". Marks are numbers. Stops at the
// first failure.
inline void CheckFlushPoints(
    const std::string& log_path, std::vector<char> image, size_t short_checks,
    const std::function<void(const std::vector<char>& image, size_t mark)>& check) {
  absl::StatusOr<LoggedWrites> log = LoggedWrites::Open(log_path);
  ASSERT_TRUE(log.ok()) << log.status();
  const auto points = static_cast<size_t>(std::ranges::count_if(
      log->entries(), [](const LoggedWrites::Entry& e) { return e.is_flush_point(); }));
  const char* which = std::getenv("VERBENA_POWER_LOSS");
  const bool all = which != nullptr && std::string_view(which) == "all";
  const size_t stride = all ? 1 : std::max<size_t>(1, points / short_checks);
  std::cout << log->entries().size() << " entries, " << points << " flush points, each " << stride
            << "th is checked" << std::endl;

  std::optional<size_t> mark;
  size_t point = 0;
  size_t checked = 0;
  for (const LoggedWrites::Entry& entry : log->entries()) {
    const absl::Status applied = log->Apply(entry, image);
    ASSERT_TRUE(applied.ok()) << applied;
    if (!entry.mark.empty()) mark = std::strtoul(entry.mark.c_str(), nullptr, 10);
    if (!entry.is_flush_point() || !mark.has_value() || ++point % stride != 0) continue;
    ++checked;
    check(image, *mark);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "flush point " << point << ", mark " << *mark;
  }
  EXPECT_GE(checked, short_checks / 2);
}

}  // namespace block_store

#endif  // VERBENA_TESTS_EXAMPLES_BLOCK_STORE_FLUSH_POINTS_H_
