#include "verbena/transport/base/ticks.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <chrono>
#include <cmath>

#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

#if defined(__aarch64__)

// 0 if the firmware has not said it.
uint64_t CounterHertz() {
  uint64_t hertz = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  return hertz;
}

#endif

// Whether the counter goes on at one pace, whatever the processor does.
bool HasCounter() {
#if defined(__x86_64__)
  constexpr unsigned kPowerLeaf = 0x80000007;
  constexpr unsigned kInvariantTsc = 1u << 8;  // of edx
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(kPowerLeaf, &eax, &ebx, &ecx, &edx) != 0 && (edx & kInvariantTsc) != 0;
#elif defined(__aarch64__)
  return CounterHertz() != 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)

// A reading of the clock, and of the counter at the same time.
struct TimedReading {
  std::chrono::steady_clock::time_point time;
  Ticks ticks = 0;
};

// The narrowest of a few: the thread may lose its core between two readings.
TimedReading ReadBoth() {
  constexpr int kTries = 16;
  TimedReading best;
  Ticks narrowest = ~Ticks{0};
  for (int i = 0; i < kTries; ++i) {
    const Ticks before = __builtin_ia32_rdtsc();
    const auto time = std::chrono::steady_clock::now();
    const Ticks width = TicksBetween(before, __builtin_ia32_rdtsc());
    if (width >= narrowest) continue;
    narrowest = width;
    best = {.time = time, .ticks = before + width / 2};
  }
  return best;
}

// Two readings are right to some 50 ns each, so this is right to 0.02%.
double MeasureNanosecondsPerTick() {
  constexpr auto kSpan = std::chrono::microseconds(500);
  const TimedReading first = ReadBoth();
  while (std::chrono::steady_clock::now() - first.time < kSpan) {
  }
  const TimedReading last = ReadBoth();
  const std::chrono::duration<double, std::nano> passed = last.time - first.time;
  return passed.count() / static_cast<double>(last.ticks - first.ticks);
}

#elif defined(__aarch64__)

double MeasureNanosecondsPerTick() { return 1e9 / static_cast<double>(CounterHertz()); }

#else

double MeasureNanosecondsPerTick() { return 1; }

#endif

double CounterNanosecondsPerTick() {
  static const double nanoseconds = MeasureNanosecondsPerTick();
  return nanoseconds;
}

}  // namespace

TickSource TickSource::Processor() {
  static const bool has_counter = HasCounter();
  return has_counter ? TickSource() : TickSource(Clock::Real());
}

double TickSource::NanosecondsPerTick() const {
  return clock_ != nullptr ? 1 : CounterNanosecondsPerTick();
}

Duration TickSource::DurationOf(Ticks ticks) const {
  return SaturatingCast(
      std::chrono::duration<double, std::nano>(static_cast<double>(ticks) * NanosecondsPerTick()));
}

uint64_t TickSource::UnitsPerTick(double unit_nanoseconds) const {
  constexpr double kTwoTo32 = 4294967296.0;
  const double units = NanosecondsPerTick() / unit_nanoseconds;
  VERBENA_CHECK(units < kTwoTo32) << "a tick has " << units << " units";
  return static_cast<uint64_t>(std::llround(units * kTwoTo32));
}

}  // namespace verbena::internal
