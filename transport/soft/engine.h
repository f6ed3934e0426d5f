// Engine: the control thread of one soft device.
//
// It moves messages for CQs that are armed or that nobody polls, runs the RNR timers, and serves
// the wires' control connections. Whoever publishes something for an unpolled CQ rings its
// doorbell; an engine with nothing to watch sleeps without a timeout. A CQ that is being polled
// costs one look every few milliseconds, to notice when its owner stops.
//
// With `threaded` false there is no thread: the owner calls Step, which does one turn. The
// SoftDevice owns the engine. Each QP waits for one timer at a time; one that it no longer waits
// for stays until it is due.

#ifndef VERBENA_TRANSPORT_SOFT_ENGINE_H_
#define VERBENA_TRANSPORT_SOFT_ENGINE_H_

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal::soft {

class Engine {
 public:
  // The device's CQs and QPs. Called by the engine alone.
  class Client {
   public:
    // Looks after the CQs whose doorbell rang. True when it did something.
    virtual bool Serve() = 0;
    // Takes over the CQs that were not polled since the last Tick. True when it did something.
    virtual bool Tick() = 0;
    // True while somebody polls a CQ: only a Tick notices that its owner stops.
    virtual bool NeedsTick() = 0;
    // A timer of the QP ran out.
    virtual void OnTimer(uint32_t qpn, uint32_t token) = 0;

   protected:
    ~Client() = default;
  };
  // A wire's control connections. Called by the engine alone.
  class Wire {
   public:
    // Messages of one connection in one turn. So a peer that never stops talking gets its turns as
    // others do. (start)
    static constexpr size_t kMessagesAtOnce = 64;

    // One turn. True when something happened.
    virtual bool Serve(TimePoint now) = 0;
    // Readable when Serve has something to do.
    virtual int fd() const = 0;
    // When Serve has something to do although fd() may not be readable; kNever: no such time.
    virtual TimePoint next() const = 0;

   protected:
    ~Wire() = default;
  };

  // `tick`: SoftDeviceOptions::unpolled_after.
  Engine(Clock& clock, bool threaded, Duration tick);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // From here on drives `client` and `wires`: by a thread, if there is to be one.
  // RESOURCE_EXHAUSTED: the system starts no thread.
  absl::Status Start(Client& client, std::vector<Wire*> wires);
  // Joins the thread, and lets go of the client and the wires.
  void Stop();

  // One turn by hand. True when it did something. Precondition: started, without a thread.
  bool Step();

  // Any thread.
  void Wake();
  // Calls Client::OnTimer(qpn, token) once `when` has come.
  void StartTimer(TimePoint when, uint32_t qpn, uint32_t token);
  // Client::NeedsTick() is true from here on.
  void OnTickNeeded();

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
  bool ServeWires();
  bool FireTimers();
  void Sleep();
  Duration TimeToSleep();

  Clock& clock_;
  const bool threaded_;
  const Duration tick_;
  Client* client_ = nullptr;  // while started, as wires_
  std::vector<Wire*> wires_;
  std::vector<pollfd> watched_;  // the doorbell, and the wires' descriptors
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
