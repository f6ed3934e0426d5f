// PayloadTable: the figures of a payload benchmark. A point collects slices of the candidate and of
// its floor, and turns them into a row.
//
// Bandwidths are in GB/s (10^9 bytes), processor time in seconds per GiB. In busy mode a waiting
// thread's processor time counts too.

#ifndef VERBENA_BENCHMARKS_FLOOR_PAYLOAD_TABLE_H_
#define VERBENA_BENCHMARKS_FLOOR_PAYLOAD_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// The length of each slice. Slices of the candidate and of the floor alternate.
inline constexpr int kPayloadSliceMs = 100;

// The defaults of the user's options.
Options PayloadDefaults();

// How many rounds fill `seconds`. A round is one slice of the candidate and one of the floor.
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

  // The medians. The row's name is `bench`, then "_read" or "_write", then `variant`.
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
