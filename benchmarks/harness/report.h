// Report: the rows of a benchmark, as a table for people and as JSON for programs.
//
// Owned by one thread. Each row is written when it is added: an interrupted run keeps its rows.
//
//   absl::StatusOr<Report> report = Report::Open(options.json);
//   report->Add({.bench = "floor", .device = "shm", .mode = "busy", .size = 32, …});

#ifndef VERBENA_BENCHMARKS_HARNESS_REPORT_H_
#define VERBENA_BENCHMARKS_HARNESS_REPORT_H_

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace verbena::benchmarks {

// One measured point. A figure that a benchmark does not have is left at 0, and is null in JSON.
struct Row {
  std::string bench;          // what was measured: "rpc", "floor", "grpc", "ucx"
  std::string device;         // over what: "shm", "tcp", …
  std::string mode;           // how its threads wait: "busy", "adaptive", "event"
  std::string op = {};        // which operation, of a benchmark with several: "read", "write"
  std::string scenario = {};  // of a benchmark with several
  int size = 0;               // bytes of payload, each way
  int outstanding = 0;
  double p50_us = 0;
  double p99_us = 0;
  double calls_per_s = 0;
  double floor_p50_us = 0;  // of the floor, at the same size and number outstanding
  // Figures of this benchmark alone. Here 0 is a figure.
  std::vector<std::pair<std::string, double>> extra = {};
};

// p50 over the floor's p50, or 0 if either is missing.
double RatioToFloor(const Row& row);

// One line of JSON, without its end.
std::string ToJson(const Row& row);

class Report {
 public:
  // The table goes to standard output, and JSON is appended to the file `json` unless that name is
  // empty. INVALID_ARGUMENT if the file cannot be opened.
  static absl::StatusOr<Report> Open(const std::string& json);

  void Add(const Row& row);
  // Writes the row to JSON alone, for a benchmark with a table of its own.
  void AddToJson(const Row& row);
  // Prints a second table: the `extra` figures of the rows added since the last call. All these
  // rows must have the same names in `extra`.
  void PrintExtra();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  explicit Report(std::FILE* json) : json_(json) {}

  std::unique_ptr<std::FILE, Close> json_;  // null: none was asked for
  bool header_printed_ = false;
  std::vector<Row> with_extra_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_REPORT_H_
