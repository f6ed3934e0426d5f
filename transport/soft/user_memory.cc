#include "verbena/transport/soft/user_memory.h"

#include <setjmp.h>
#include <signal.h>

#include <cstdint>

namespace verbena::internal::soft {
namespace {

// A call of CallGuarded.
struct Guarded {
  const void* one;
  const void* other;
  size_t bytes;
  sigjmp_buf out;

  bool Touches(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at - reinterpret_cast<uintptr_t>(one) < bytes ||
           at - reinterpret_cast<uintptr_t>(other) < bytes;
  }
};

// The thread's own. Not of the model initial-exec, by which a handler's read could never allocate:
// a library of that model cannot be opened by dlopen(). CallGuarded() has touched it before a fault
// that is ours.
constinit thread_local Guarded* volatile running = nullptr;

struct sigaction had_for_segv;
struct sigaction had_for_bus;

// What the program would have seen without us.
void HandOn(int signal, siginfo_t* info, void* context) {
  const struct sigaction& had = signal == SIGSEGV ? had_for_segv : had_for_bus;
  if (had.sa_handler == SIG_DFL || had.sa_handler == SIG_IGN) {
    // A fault comes again when this returns. What somebody has sent does not.
    sigaction(signal, &had, nullptr);
    if (info->si_code <= 0) raise(signal);
  } else if ((had.sa_flags & SA_SIGINFO) != 0) {
    had.sa_sigaction(signal, info, context);
  } else {
    had.sa_handler(signal);
  }
}

void OnFault(int signal, siginfo_t* info, void* context) {
  Guarded* const guarded = running;
  if (guarded == nullptr || info->si_code <= 0 || !guarded->Touches(info->si_addr)) {
    HandOn(signal, info, context);
    return;
  }
  running = nullptr;
  // The kernel blocks it while a handler runs, and this one does not return.
  sigset_t again;
  sigemptyset(&again);
  sigaddset(&again, signal);
  pthread_sigmask(SIG_UNBLOCK, &again, nullptr);
  siglongjmp(guarded->out, 1);
}

// False if a T at `to` is not aligned, or longer than `left`.
template <typename T>
bool StorePiece(std::byte* to, const std::byte* from, size_t left) {
  if (left < sizeof(T) || reinterpret_cast<uintptr_t>(to) % sizeof(T) != 0) return false;
  T piece;
  std::memcpy(&piece, from, sizeof(T));
  std::atomic_ref<T>(*reinterpret_cast<T*>(to)).store(piece, std::memory_order_release);
  return true;
}

// A copy by memcpy may store the end of a range before its start.
void StoreInOrder(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t last = LastWordBytes(reinterpret_cast<uintptr_t>(to), bytes);
  std::memcpy(to, from, bytes - last);
  for (size_t at = bytes - last; at != bytes;) {
    if (StorePiece<uint64_t>(to + at, from + at, bytes - at)) {
      at += sizeof(uint64_t);
    } else if (StorePiece<uint32_t>(to + at, from + at, bytes - at)) {
      at += sizeof(uint32_t);
    } else if (StorePiece<uint16_t>(to + at, from + at, bytes - at)) {
      at += sizeof(uint16_t);
    } else {
      StorePiece<uint8_t>(to + at, from + at, bytes - at);
      ++at;
    }
  }
}

}  // namespace

constinit std::atomic<bool> user_memory_guarded{false};

void GuardUserMemory() {
  static const bool done = [] {
    struct sigaction ours{};
    ours.sa_sigaction = OnFault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGSEGV, &ours, &had_for_segv);
    sigaction(SIGBUS, &ours, &had_for_bus);
    user_memory_guarded.store(true, std::memory_order_relaxed);
    return true;
  }();
  (void)done;
}

bool CallGuarded(const void* one, const void* other, size_t bytes,
                 absl::FunctionRef<void()> access) {
  Guarded guarded;
  guarded.one = one;
  guarded.other = other;
  guarded.bytes = bytes;
  if (sigsetjmp(guarded.out, /*savemask=*/0) != 0) return false;
  running = &guarded;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  access();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  running = nullptr;
  return true;
}

bool StoreUserMemory(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (user_memory_guarded.load(std::memory_order_relaxed)) {
    return CallGuarded(to, from, bytes, [&] { StoreInOrder(target, source, bytes); });
  }
  StoreInOrder(target, source, bytes);
  return true;
}

}  // namespace verbena::internal::soft
