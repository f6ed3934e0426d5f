// Engine: the control thread of one soft device.
//
// It moves messages for CQs that are armed or that nobody polls, runs the RNR timers, and serves
// the wires' control connections. Whoever publishes something for an unpolled CQ rings its
// doorbell; an engine with nothing to watch sleeps without a timeout. A CQ that is being polled
// costs one look every few milliseconds, to notice when its owner stops.
//
// With `threaded` false there is no thread: the owner calls Step, which does one turn.

#ifndef VERBENA_TRANSPORT_SOFT_ENGINE_H_
#define VERBENA_TRANSPORT_SOFT_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "verbena/transport/base/clock.h"

namespace verbena::internal::soft {

class Rnic;

class Engine {
 public:
  // `tick`: SoftDeviceOptions::unpolled_after.
  Engine(Rnic& rnic, Clock& clock, bool threaded, Duration tick);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // Starts and joins the thread, if there is to be one.
  void Start();
  void Stop();

  // One turn by hand. True when it did something.
  bool Step();

  // Any thread.
  void Wake();
  // Calls Rnic::OnTimer(qpn, token) once `when` has come.
  void StartTimer(TimePoint when, uint32_t qpn, uint32_t token);
  // A CQ is polled again: its owner is to be watched.
  void OnCqPolled();

  // Written to wake the engine; -1 when it is stepped by hand.
  int doorbell_fd() const { return doorbell_fd_; }
  // Another descriptor of it, for a Peer to own.
  int DuplicateDoorbell() const;

 private:
  struct Timer {
    uint32_t qpn;
    uint32_t token;
  };

  void Run();
  bool FireTimers();
  void Sleep();
  Duration TimeToSleep();

  Rnic& rnic_;
  Clock& clock_;
  const bool threaded_;
  const Duration tick_;
  int doorbell_fd_ = -1;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  // False while the engine sleeps without looking at CQs now and then.
  std::atomic<bool> ticking_{true};
  TimePoint next_tick_{};
  std::mutex timers_mutex_;
  std::multimap<TimePoint, Timer> timers_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_ENGINE_H_
