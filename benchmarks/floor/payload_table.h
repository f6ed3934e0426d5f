// PayloadTable: what benchmarks of payloads measure at one point, as slices of the candidate and of
// its floor, and as a row.
//
// Bandwidths are in GB/s (10^9 bytes), processors' time in seconds per GiB; in busy mode a thread
// that waits uses its core all the same.

#ifndef VERBENA_BENCHMARKS_FLOOR_PAYLOAD_TABLE_H_
#define VERBENA_BENCHMARKS_FLOOR_PAYLOAD_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// Lengths of slices, of the candidate and of the floor in turn.
inline constexpr int kPayloadSliceMs = 100;

// The options that hold unless the user gives others.
Options PayloadDefaults();

// How many rounds of both fill `seconds`.
int PayloadRounds(double seconds);

// One slice of the candidate.
struct PayloadSample {
  double p50_ns = 0;
  double p99_ns = 0;
  double calls_per_s = 0;
  uint64_t calls = 0;
  uint64_t client_cpu_ns = 0;
  uint64_t server_cpu_ns = 0;
};

// All slices of one point. Owned by one thread.
class PayloadPoint {
 public:
  PayloadPoint(CopyDirection direction, int size, int outstanding)
      : direction_(direction), size_(size), outstanding_(outstanding) {}

  CopySlice floor_slice() const {
    return {.direction = direction_,
            .size = size_,
            .outstanding = outstanding_,
            .duration_ms = kPayloadSliceMs};
  }
  void Add(const PayloadSample& sample) { samples_.push_back(sample); }
  void AddFloor(const CopySample& sample) { floor_.push_back(sample); }

  // The medians. `bench` names the candidate, "_read" or "_write" and `variant` are appended.
  Row ToRow(const std::string& bench, const std::string& variant, const std::string& device,
            const std::string& mode) const;
  // A row of the floor alone.
  Row FloorRow() const;

 private:
  double GbPerSecond(double payloads_per_s) const { return payloads_per_s * size_ / 1e9; }

  const CopyDirection direction_;
  const int size_;
  const int outstanding_;
  std::vector<PayloadSample> samples_;
  std::vector<CopySample> floor_;
};

// Prints `row`, below a heading if it is the first one, and adds it to the report's JSON.
void PrintPayloadRow(const Row& row, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_FLOOR_PAYLOAD_TABLE_H_
