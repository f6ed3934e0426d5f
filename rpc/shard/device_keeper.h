// DeviceKeeper: one device of a runtime, which is opened again when it has failed.
//
// An opening lasts until the device reports that it has failed, or was removed. Its links are lost
// then, and a thread opens the device anew, with pauses that grow, and prepares it for each of its
// users: one per executor. They use the new opening from then on. The old opening stays as long as
// anybody holds something of it, and is then closed on that thread. An opening that cannot be
// closed stays open until the keeper ends. The thread begins with the first failure and ends when
// nothing is left to do.
//
// While links of an opening are being torn down the next may begin, but not the one after it; and
// there are at most kMostOpenings at once. Absence() names either reason to wait.
//
// A device that is kept in reserve is opened when somebody first needs it (Wake()).
//
// Owned by the Runtime; outlives its users, and the context of each opening. Any thread.

#ifndef VERBENA_RPC_SHARD_DEVICE_KEEPER_H_
#define VERBENA_RPC_SHARD_DEVICE_KEEPER_H_

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/connect/peer.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint_memory.h"

namespace verbena::internal {

// One opening of a device: the device until it fails, and what is left of it afterwards.
struct OpenedDevice {
  std::unique_ptr<Device> owned;           // null: the program's
  std::unique_ptr<DeviceContext> context;  // null once the keeper is gone
  // The next two are guarded by the keeper's mutex.
  bool failed = false;
  size_t draining = 0;  // users that may have links on it
};

class DeviceKeeper {
 public:
  // The most openings that are not closed. With so many, the device is not opened again. (start)
  static constexpr size_t kMostOpenings = 16;

  // Opens the device. On a thread that may wait.
  using Open = std::function<absl::StatusOr<std::unique_ptr<Device>>()>;
  // Throws std::system_error when the system refuses.
  using StartThread = std::function<std::thread(std::function<void()>)>;

  // An executor that uses the device. Called on the keeper's thread, except for OnDeviceFailed().
  class User {
   public:
    virtual ~User() = default;
    // Called on any thread; only posts. `opened` must not be used any more, and the user must call
    // OnDrained() once it has no link there.
    virtual void OnDeviceFailed(const std::shared_ptr<OpenedDevice>& opened) = 0;
    // Registers memory for an executor that used the device before; nullopt for one that did not.
    virtual absl::StatusOr<std::optional<EndpointMemory>> Prepare(DeviceContext& context) = 0;
    // `opened` is in service now. Only posts.
    virtual void OnDeviceOpened(std::shared_ptr<OpenedDevice> opened,
                                std::optional<EndpointMemory> memory) = 0;
  };

  struct Options {
    DeviceContext::Options context = {};
    ReopenBackoff backoff = {};
    StartThread start_thread = nullptr;  // std::thread
  };

  // Keeps a device of the program's, which nobody opens again.
  static absl::StatusOr<std::unique_ptr<DeviceKeeper>> Create(Device& device,
                                                              const Options& options);
  // Keeps a device that `open` gave, and opens it again by calling `open`.
  static absl::StatusOr<std::unique_ptr<DeviceKeeper>> Create(std::unique_ptr<Device> device,
                                                              Open open, const Options& options);
  // Keeps a device of that name and kind in reserve: it is not open before Wake().
  static std::unique_ptr<DeviceKeeper> InReserve(std::string name, LinkKind kind, Open open,
                                                 const Options& options);
  DeviceKeeper(const DeviceKeeper&) = delete;
  DeviceKeeper& operator=(const DeviceKeeper&) = delete;
  ~DeviceKeeper();

  const std::string& name() const { return name_; }
  LinkKind kind() const { return kind_; }

  // True until Wake() has opened the device.
  bool in_reserve() const { return in_reserve_.load(std::memory_order_acquire); }
  // Opens the device on this thread if it is in reserve; each user then hears OnDeviceOpened().
  // Does nothing if it was opened before. After an error the device stays in reserve.
  absl::Status Wake();
  // True for the first caller: the device carries its first link of this runtime.
  bool NoteFirstLink() { return !carried_link_.exchange(true, std::memory_order_relaxed); }

  // Returns the opening that is in service, or null. From now on `user` hears of later ones.
  std::shared_ptr<OpenedDevice> Attach(User& user);
  // OK while an opening is in service, or the device is in reserve. Otherwise Absence().
  absl::Status Presence();
  // UNAVAILABLE: why no opening is in service.
  absl::Status Absence();
  // The user's links on `opened` are gone.
  void OnDrained(OpenedDevice& opened);
  // Opens nothing more, and calls no user any more. Waits for an attempt that is under way, but for
  // no pause. Call it before the first user goes.
  void Stop();

 private:
  // The way to the keeper for those who hold an opening, perhaps longer than the keeper lives.
  struct Grave {
    std::mutex mutex;  // taken before the keeper's
    DeviceKeeper* keeper = nullptr;
  };

  class Lines;

  DeviceKeeper(Open open, const Options& options);

  absl::Status Start(std::unique_ptr<Device> owned, Device& device);
  absl::StatusOr<std::shared_ptr<OpenedDevice>> OpenAlike();
  absl::StatusOr<std::shared_ptr<OpenedDevice>> Use(std::unique_ptr<Device> owned, Device& device);
  void OnFailure(OpenedDevice& opened);
  // Called by whoever lets go last.
  static void Bury(Grave& grave, std::unique_ptr<OpenedDevice> opened);
  void CloseContexts();
  bool FindHeld(std::vector<std::shared_ptr<OpenedDevice>>& held);
  // With mutex_ held.
  void EnsureThread(Lines& lines);
  absl::Status AbsenceLocked(Lines& lines);
  std::string Obstacle() const;
  void Work();
  // These unlock meanwhile.
  void LogUnlocked(std::unique_lock<std::mutex>& lock, LogLevel level, const std::string& line);
  void CloseBuried(std::unique_lock<std::mutex>& lock);
  void TryAgain(std::unique_lock<std::mutex>& lock);
  absl::StatusOr<std::unique_ptr<Device>> CallOpen() const;
  absl::Status Reopen();
  absl::StatusOr<std::vector<std::optional<EndpointMemory>>> PrepareUsers(DeviceContext& context);
  absl::Status PutInService(const std::shared_ptr<OpenedDevice>& opened,
                            std::vector<std::optional<EndpointMemory>>& memory);

  const Open open_;
  const Options options_;
  std::string name_;
  LinkKind kind_ = LinkKind::kSoft;
  cpu_set_t cores_;
  std::mutex waking_;  // held while a device in reserve is opened; taken before mutex_
  std::atomic<bool> in_reserve_ = false;
  std::atomic<bool> carried_link_ = false;
  const std::shared_ptr<Grave> grave_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<User*> users_;
  std::shared_ptr<OpenedDevice> current_;  // null while it is being opened again
  bool reopening_ = false;
  TimePoint opened_at_{};
  Backoff backoff_;
  TimePoint next_attempt_{};
  int attempts_ = 0;
  absl::Status last_error_;
  size_t undrained_ = 0;  // openings that have failed, and still have links
  // All openings that somebody holds, and perhaps expired entries.
  std::vector<std::weak_ptr<OpenedDevice>> openings_;
  size_t unclosed_ = 0;  // openings that somebody holds, and those of the next two lists
  // Openings that nobody refers to any more: the thread closes them.
  std::vector<std::unique_ptr<OpenedDevice>> buried_;
  // Openings that the device refused to close: its provider may still use something of them.
  std::vector<std::unique_ptr<OpenedDevice>> unclosable_;
  bool obstacle_reported_ = false;
  bool thread_refused_ = false;
  bool stopping_ = false;
  bool running_ = false;
  std::thread thread_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_DEVICE_KEEPER_H_
