// The soft devices of a program that preloads the library: PreloadedDevices, ProcessDevice for one
// of them, and Context for one opening.
//
// The process owns the devices, the program its contexts. Any thread. At most
// PreloadedDevices::kMaxDevices devices.

#ifndef VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_
#define VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/soft/events.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::preload {

// Descriptors of events as libibverbs has them: whoever asks for an event waits for it, unless the
// program made the descriptor non-blocking.

// The soft device reads its descriptors only when something waits, so they may block.
void MakeBlocking(int fd);

// Waits until `fd` is readable. False, with errno set, if the program made it non-blocking (EAGAIN)
// or a signal came (EINTR).
bool AwaitReadable(int fd);

// How the preloaded library says no: by errno, as libibverbs does, and in words on standard error.

// Sets errno to what `status` stands for, and returns it; 0, and errno as it was, if it is OK. With
// VERBENA_SOFT_VERBOSE=1 the message goes to standard error.
int SetErrno(const absl::Status& status);

// Sets errno to `error`, and returns it.
int SetErrno(int error);

// For functions that the soft device does not have: EOPNOTSUPP, and `why`, a string literal, as a
// line on standard error the first time.
int Refuse(const char* why);

// Functions that verbs.h calls through an ibv_context.

// Each sets the functions of its own file.
void FillQueryCalls(verbs_context& context);
void FillMemoryCalls(verbs_context& context);
void FillCqCalls(verbs_context& context);
void FillSrqCalls(verbs_context& context);
void FillQpCalls(verbs_context& context);

// The functions of ibv_cq_ex and ibv_qp_ex.
void FillExtendedCq(VisibleCq& cq);
void FillExtendedQp(VisibleQp& qp);

// Each destroys the soft device's object behind a program's object. DestroyObject() calls them.
absl::Status DestroyDomain(VisibleDomain& domain);
absl::Status DestroyCq(VisibleCq& cq);
absl::Status DestroySrq(VisibleSrq& srq);
absl::Status DestroyQp(VisibleQp& qp);

// Destroys an object by `destroy`, which returns a status, unless somebody else already does.
// Returns an errno, which it sets, or 0. EINVAL if the object is not alive.
template <typename T, typename Destroy>
int DestroyObject(const void* handle, Destroy destroy) {
  auto* object = static_cast<T*>(Registry::Get().BeginDestroying(T::kKind, handle));
  if (object == nullptr) return SetErrno(EINVAL);
  const int error = SetErrno(destroy(*object));
  Registry::Get().EndDestroying(handle, error == 0);
  if (error == 0) delete object;
  return error;
}

// The libibverbs that this library stands before.
//
// With VERBENA_SOFT_ONLY=0 the program also sees the machine's own devices. Their objects are not
// in the registry, and calls on them go to libibverbs. Otherwise such calls have no object, and
// fail with EINVAL.

// The function of that name, in its default version. Null if real devices are hidden.
void* RealFunction(const char* name);

// Calls libibverbs' `name`, of the type of `like`. Returns `otherwise`, and sets errno to EINVAL,
// if real devices are hidden.
//
//   return CallReal(&::ibv_alloc_pd, "ibv_alloc_pd", nullptr, context);
template <typename Result, typename... Parameters>
Result CallReal(Result (*like)(Parameters...), const char* name,
                std::type_identity_t<Result> otherwise,
                std::type_identity_t<Parameters>... arguments) {
  auto* function = reinterpret_cast<decltype(like)>(RealFunction(name));
  if (function != nullptr) return function(arguments...);
  errno = EINVAL;
  return otherwise;
}

// CallReal() for functions that return nothing.
template <typename... Parameters>
void CallRealVoid(void (*like)(Parameters...), const char* name,
                  std::type_identity_t<Parameters>... arguments) {
  auto* function = reinterpret_cast<decltype(like)>(RealFunction(name));
  if (function != nullptr) function(arguments...);
}

// The soft devices of this process: soft0 and so on, as many as VERBENA_SOFT_DEVICES says.
//
// They exist for as long as the process, and are opened when the program opens them.
class PreloadedDevices {
 public:
  static constexpr int kMaxDevices = 16;

  static PreloadedDevices& Get();

  int size() const { return size_; }
  ibv_device* at(int index) { return &entries_[index].device; }
  // -1 for a device that is none of ours.
  int IndexOf(const ibv_device* device) const;
  // The node GUID of a device: the same in every process of this host.
  static __be64 GuidOf(int index);

 private:
  // Providers recognise their devices by the fields behind the ibv_device. Here these are null.
  struct Entry {
    ibv_device device;
    void* nothing[32];
  };

  PreloadedDevices();

  int size_ = 1;
  Entry entries_[kMaxDevices]{};
};

// The SoftDevice behind all contexts that a process has of one soft device.
//
// A device has one GID and one LID however often a program opens it, as hardware does: programs
// read them from one context, and connect queue pairs of another. So the contexts share a
// SoftDevice. It exists while one of them does, and gets the same LID again if it is opened again.
//
// Over shared memory alone the LID is a number that this user's soft devices of this host share out
// among themselves, and the GID follows from it: a program that sends its peer only the LID is
// found as well as one that sends the GID.
//
// With a TCP wire the device's GID is its IP address, and its LID its TCP port.
//
// Asynchronous events belong to contexts, but a SoftDevice has one queue of them: a thread hands
// them on. It sleeps until there is one. Any thread may call.
class ProcessDevice {
 public:
  // The device of that index of PreloadedDevices: the one that is open, or a new one.
  static absl::StatusOr<std::shared_ptr<ProcessDevice>> Open(int index, const char* name);
  // Precondition: as for ~SoftDevice.
  ~ProcessDevice();
  ProcessDevice(const ProcessDevice&) = delete;
  ProcessDevice& operator=(const ProcessDevice&) = delete;

  SoftDevice& device() { return *device_; }
  uint16_t lid() const { return lid_; }
  // The address by which the device finds a peer to which the program gave `address`.
  ibv_ah_attr Resolve(const ibv_ah_attr& address) const;

 private:
  ProcessDevice(std::unique_ptr<SoftDevice> device, uint16_t lid, int stop_fd);
  void HandOnEvents();

  const std::unique_ptr<SoftDevice> device_;
  // The device's own if it has one. Otherwise the number from which its GID was made.
  uint16_t lid_;
  bool addressed_by_lid_ = false;
  const int stop_fd_;
  std::thread events_;
};

// One opened soft device, as a program of libibverbs sees it.
class Context {
 public:
  static constexpr Kind kKind = Kind::kContext;

  // `device` is an entry of PreloadedDevices. The context lives until Close().
  static absl::StatusOr<Context*> Open(ibv_device* device);
  // Also destroys the objects that the program left alive.
  static void Close(Context* context);
  // The context of an object that is alive.
  static Context* From(const ibv_context* visible);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  SoftDevice& device() { return shared_->device(); }
  const ProcessDevice& shared() const { return *shared_; }
  ibv_context* visible() { return &verbs_.context; }
  // Asynchronous events that concern objects of this context. An event's element is the program's
  // object.
  soft::EventQueue& events() { return events_; }

  ibv_device_attr attributes();
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port);

 private:
  Context(ibv_device* visible, std::shared_ptr<ProcessDevice> shared);
  ~Context();
  bool DestroyObjects();

  const std::shared_ptr<ProcessDevice> shared_;
  soft::EventQueue events_;
  verbs_context verbs_{};
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_
