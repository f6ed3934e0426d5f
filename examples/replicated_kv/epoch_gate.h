// EpochGate: a backup's memory of epochs and streams. It admits one stream of the log at a time,
// and no message of a primary that has been replaced.
//
// A value; one thread. It learns epochs from etcd alone. Otherwise a stream that names an epoch of
// its own making could end the real primary's stream, and shut out all others.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_EPOCH_GATE_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_EPOCH_GATE_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace replicated_kv {

class EpochGate {
 public:
  uint64_t epoch() const { return epoch_; }

  // Etcd has, or had, that epoch.
  void Learn(uint64_t epoch) { epoch_ = std::max(epoch_, epoch); }

  // Lets a new stream in, and ends the one before. FAILED_PRECONDITION: the stream's primary was
  // replaced, or etcd has not told of its epoch.
  absl::StatusOr<uint64_t> Admit(uint64_t epoch) {
    if (absl::Status fresh = CheckEpoch(epoch); !fresh.ok()) return fresh;
    return ++pass_;
  }
  // Lets no stream go on.
  void Close() { ++pass_; }

  // Checks a message of the stream that got `pass`.
  absl::Status Check(uint64_t pass, uint64_t epoch) const {
    if (pass != pass_) {
      return absl::FailedPreconditionError(
          "this replica has ended the stream: another one, or none, may go on");
    }
    return CheckEpoch(epoch);
  }

 private:
  absl::Status CheckEpoch(uint64_t epoch) const {
    if (epoch == epoch_) return absl::OkStatus();
    return absl::FailedPreconditionError(fmt::format("epoch {} {}: this replica knows epoch {}",
                                                     epoch, epoch < epoch_ ? "is over" : "is none",
                                                     epoch_));
  }

  uint64_t epoch_ = 0;
  uint64_t pass_ = 0;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_EPOCH_GATE_H_
