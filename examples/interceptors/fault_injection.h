// FaultInjection: fails every n-th call of a channel before it is sent, for tests of what a
// program does then.
//
// On any executor's thread. An injected failure has the outcome not_executed, since nothing was
// sent.

#ifndef VERBENA_EXAMPLES_INTERCEPTORS_FAULT_INJECTION_H_
#define VERBENA_EXAMPLES_INTERCEPTORS_FAULT_INJECTION_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/interceptor.h"

namespace interceptors {

class FaultInjection final : public verbena::ClientInterceptor {
 public:
  // Fails the call `every`, twice `every`, and so on. At least 1.
  explicit FaultInjection(uint64_t every) : every_(every) {}

  verbena::Task<absl::Status> Intercept(verbena::ClientCallView&,
                                        verbena::ClientNext next) override {
    const uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (call % every_ == 0) {
      // Verbena adds the outcome not_executed, since nothing was sent.
      co_return absl::UnavailableError("injected");
    }
    co_return co_await next();
  }

 private:
  const uint64_t every_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace interceptors

#endif  // VERBENA_EXAMPLES_INTERCEPTORS_FAULT_INJECTION_H_
