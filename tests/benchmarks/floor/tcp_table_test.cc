// The floors over TCP by themselves have a row for each way, size, depth and direction, whose floor
// is system calls. On a machine that forbids io_uring, rows of system calls are left, and the
// output says why.

#include "verbena/benchmarks/floor/tcp_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tests/support/forbidden_call.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/tcp_floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {
namespace tcp_table_test {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Options OnePoint(int size, int outstanding) {
  Options options;
  options.seconds = 0.01;
  options.sizes = {size};
  options.outstanding = {outstanding};
  return options;
}

class TcpTableTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<TwoCores> cores = ChooseTwoCores();
    if (!cores.ok()) GTEST_SKIP() << cores.status();
    cores_ = *cores;
    sched_getaffinity(0, sizeof(allowed_), &allowed_);
  }
  // The next test chooses its cores again.
  void TearDown() override { sched_setaffinity(0, sizeof(allowed_), &allowed_); }

  // The rows that `report` writes, as JSON.
  template <typename ReportRows>
  std::vector<std::string> Rows(ReportRows report_rows) {
    const std::string path = testing::TempDir() + "tcp_table_test.json";
    std::remove(path.c_str());
    absl::StatusOr<Report> report = Report::Open(path);
    EXPECT_TRUE(report.ok()) << report.status();
    const absl::Status status = report_rows(*report);
    EXPECT_TRUE(status.ok()) << status;
    std::ifstream file(path);
    std::vector<std::string> rows;
    for (std::string row; std::getline(file, row);) rows.push_back(row);
    return rows;
  }
  std::vector<std::string> MessageRows() {
    return Rows([&](Report& report) {
      return ReportTcpMessages(cores_, OnePoint(/*size=*/32, /*outstanding=*/1), report);
    });
  }
  std::vector<std::string> FanRows() {
    return Rows([&](Report& report) {
      return ReportTcpFan(cores_, OnePoint(/*size=*/32, /*outstanding=*/1), report);
    });
  }
  std::vector<std::string> PayloadRows() {
    return Rows([&](Report& report) {
      return ReportTcpPayloads(cores_, OnePoint(/*size=*/4096, /*outstanding=*/2),
                               {CopyDirection::kToClient, CopyDirection::kToServer}, report);
    });
  }

  TwoCores cores_;
  cpu_set_t allowed_ = {};
};

bool HasUring() { return CheckTcpWay(TcpWay::kUringZeroCopy, {.outstanding = 2}).ok(); }

auto Named(const std::string& bench) {
  return StartsWith(absl::StrCat(R"({"bench":")", bench, R"(","device":"tcp","mode":"busy")"));
}

TEST_F(TcpTableTest, MessagesHaveARowForEachWay) {
  if (!HasUring()) GTEST_SKIP() << "io_uring is forbidden here";
  const std::vector<std::string> rows = MessageRows();
  EXPECT_THAT(rows, ElementsAre(Named("tcp_socket"), Named("tcp_uring")));
  EXPECT_THAT(rows, Each(HasSubstr(R"("size":32,"outstanding":1)")));
  EXPECT_THAT(rows, Each(Not(HasSubstr("null"))));
  EXPECT_THAT(rows[0], HasSubstr(R"("ratio_to_floor":1)"));
}

TEST_F(TcpTableTest, ManyConnectionsHaveARowForEachWay) {
  if (!HasUring()) GTEST_SKIP() << "io_uring is forbidden here";
  const std::vector<std::string> rows = FanRows();
  EXPECT_THAT(rows, ElementsAre(Named("fan_socket"), Named("fan_uring"), Named("fan_socket"),
                                Named("fan_uring")));
  EXPECT_THAT(rows, Each(Not(HasSubstr("null"))));
  EXPECT_THAT(rows[1], HasSubstr(R"("size":32,"outstanding":16)"));
  EXPECT_THAT(rows[3], HasSubstr(R"("size":32,"outstanding":64)"));
}

TEST_F(TcpTableTest, PayloadsHaveARowForEachWayAndDirection) {
  if (!HasUring()) GTEST_SKIP() << "io_uring is forbidden here";
  const std::vector<std::string> rows = PayloadRows();
  EXPECT_THAT(rows, ElementsAre(Named("tcp_socket_read"), Named("tcp_uring_read"),
                                Named("tcp_uring_read_multi"), Named("tcp_uring_read_zc"),
                                Named("tcp_socket_write"), Named("tcp_uring_write"),
                                Named("tcp_uring_write_multi"), Named("tcp_uring_write_zc")));
  EXPECT_THAT(rows, Each(HasSubstr(R"("size":4096,"outstanding":2)")));
  EXPECT_THAT(rows, Each(Not(HasSubstr("null"))));
}

TEST_F(TcpTableTest, WithoutIoUringTheRowsOfSystemCallsAreLeft) {
  WithForbidden(SYS_io_uring_setup, EPERM, [&] {
    testing::internal::CaptureStdout();
    EXPECT_THAT(MessageRows(), ElementsAre(Named("tcp_socket")));
    EXPECT_THAT(FanRows(), ElementsAre(Named("fan_socket"), Named("fan_socket")));
    EXPECT_THAT(PayloadRows(), ElementsAre(Named("tcp_socket_read"), Named("tcp_socket_write")));
    const std::string said = testing::internal::GetCapturedStdout();
    EXPECT_THAT(said, HasSubstr("tcp_uring is left out: PERMISSION_DENIED: io_uring_queue_init"));
    EXPECT_THAT(said, HasSubstr("fan_uring is left out: PERMISSION_DENIED"));
    EXPECT_THAT(said, HasSubstr("tcp_uring_zc is left out: PERMISSION_DENIED"));
  });
}

}  // namespace tcp_table_test
}  // namespace verbena::benchmarks
