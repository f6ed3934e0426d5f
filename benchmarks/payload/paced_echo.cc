#include "verbena/benchmarks/payload/paced_echo.h"

#include <chrono>
#include <string>
#include <utility>

#include "verbena/benchmarks/harness/drive.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::benchmarks {

Task<void> PacedEcho::Run(uint64_t until_ns, absl::Status& status) {
  bench::SmallMessage request;
  bench::SmallMessage reply;
  request.set_data(std::string(bytes_, 'e'));
  // At least one echo, however late this begins.
  uint64_t due = NowNs();
  do {
    due += interval_ns_;
    const TimePoint when{std::chrono::nanoseconds(due)};
    if (absl::Status slept = co_await SleepUntil(when); !slept.ok()) {
      status = std::move(slept);
      co_return;
    }
    absl::Status echoed = co_await stub_.Echo(request, reply);
    latencies_.Record(NowNs() - due);
    if (echoed.ok() && reply.data().size() != bytes_) {
      echoed = absl::DataLossError("an echo came back with another length");
    }
    if (!echoed.ok()) status = std::move(echoed);
  } while (due + interval_ns_ < until_ns && status.ok());
}

}  // namespace verbena::benchmarks
