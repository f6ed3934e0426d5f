// The log says that files go through threads, and what would mend it. One test, since the line
// comes once per process.

#include <fcntl.h>

#include "gmock/gmock.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/file/file_fixture.h"

namespace verbena::internal {
namespace thread_backend_log_test {

using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(FileTest, TheLogSaysOnceThatThreadsServeAndWhatWouldMendIt) {
  CapturedLog log;
  const auto open_null = [&]() -> Task<void> {
    const absl::StatusOr<File> file = co_await File::Open("/dev/null");
    EXPECT_TRUE(file.ok()) << file.status();
  };
  Run(open_null);
  const std::vector<std::string> said = log.Take();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0],
              HasSubstr("slower than io_uring: FAILED_PRECONDITION: the executor sleeps in "
                        "epoll"));
  EXPECT_THAT(said[0], HasSubstr("kernel.io_uring_disabled"));
  executor_ = *Executor::Create({.mode = ExecutorMode::kEvent, .waiter = WaiterKind::kEpoll});
  log.Take();
  Run(open_null);
  EXPECT_THAT(log.Take(), IsEmpty());
}

}  // namespace thread_backend_log_test
}  // namespace verbena::internal
