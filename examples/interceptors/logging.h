// LoggingInterceptor: one line for each call of a channel: method, status and time.
//
// On any executor's thread. Shows how to measure around next().

#ifndef VERBENA_EXAMPLES_INTERCEPTORS_LOGGING_H_
#define VERBENA_EXAMPLES_INTERCEPTORS_LOGGING_H_

#include <chrono>
#include <iostream>
#include <sstream>

#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace interceptors {

class LoggingInterceptor final : public verbena::ClientInterceptor {
 public:
  verbena::Task<absl::Status> Intercept(verbena::ClientCallView& call,
                                        verbena::ClientNext next) override {
    const verbena::TimePoint began = verbena::Clock::Real().Now();
    absl::Status status = co_await next();
    const auto took =
        std::chrono::duration_cast<std::chrono::microseconds>(verbena::Clock::Real().Now() - began);
    std::ostringstream line;  // written at once, since other threads write, too
    line << call.method().full_name << " " << absl::StatusCodeToString(status.code()) << " "
         << verbena::OutcomeName(verbena::OutcomeOf(status)) << " in " << took.count() << " us\n";
    std::clog << line.str();
    co_return status;
  }
};

}  // namespace interceptors

#endif  // VERBENA_EXAMPLES_INTERCEPTORS_LOGGING_H_
