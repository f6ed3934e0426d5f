// The verbs objects that a program holds, and the registry of those that are alive.
//
// A program gets stand-ins: each begins with the struct that verbs.h shows it, belongs to the
// program's own ibv_context, and refers to the object of the SoftDevice that does the work
// (`inner`). So the soft device's objects stay as they are, also where libibverbs wants more of
// them (ibv_cq_ex, ibv_qp_ex). The data path follows `inner`, and looks nothing up.
//
// The control path looks every pointer up before it reads it. So an object that was destroyed, or
// one of another library, gives EINVAL or goes to its own library, and never crashes. Any thread.

#ifndef VERBENA_TRANSPORT_PRELOAD_OBJECTS_H_
#define VERBENA_TRANSPORT_PRELOAD_OBJECTS_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace verbena::internal::preload {

class Context;

enum class Kind { kContext, kThreadDomain, kDomain, kRegion, kWindow, kChannel, kCq, kSrq, kQp };

struct VisibleThreadDomain : ibv_td {
  static constexpr Kind kKind = Kind::kThreadDomain;
  std::atomic<int> users{0};
};

struct VisibleDomain : ibv_pd {
  static constexpr Kind kKind = Kind::kDomain;
  ibv_pd* inner = nullptr;
  // A parent domain has the domain whose `inner` it shares, and perhaps a thread domain.
  VisibleDomain* original = nullptr;
  VisibleThreadDomain* thread = nullptr;
  // Parent domains that share `inner`.
  std::atomic<int> users{0};
};

struct VisibleRegion : ibv_mr {
  static constexpr Kind kKind = Kind::kRegion;
  ibv_mr* inner = nullptr;
  int access = 0;
};

struct VisibleWindow : ibv_mw {
  static constexpr Kind kKind = Kind::kWindow;
  ibv_mw* inner = nullptr;
};

struct VisibleChannel : ibv_comp_channel {
  static constexpr Kind kKind = Kind::kChannel;
  ibv_comp_channel* inner = nullptr;
};

struct VisibleCq : ibv_cq_ex {
  static constexpr Kind kKind = Kind::kCq;
  ibv_cq* inner = nullptr;
  // Held from start_poll to end_poll. `current` is the completion that read_* read meanwhile.
  std::mutex polling;
  ibv_wc current{};

  ibv_cq* handle_of() { return ibv_cq_ex_to_cq(this); }
};

struct VisibleSrq : ibv_srq {
  static constexpr Kind kKind = Kind::kSrq;
  ibv_srq* inner = nullptr;
};

// Work requests that ibv_wr_* gathered between wr_start and wr_complete. Keeps its capacity.
struct PostBuilder {
  struct Work {
    ibv_send_wr wr;
    size_t first_sge;
  };
  std::mutex mutex;  // held from wr_start to wr_complete
  std::vector<Work> works;
  std::vector<ibv_sge> sges;  // of inline data: `addr` is an offset in `bytes`
  std::vector<std::byte> bytes;
  int error = 0;
};

struct VisibleQp : ibv_qp_ex {
  static constexpr Kind kKind = Kind::kQp;
  ibv_qp* inner = nullptr;
  ibv_qp_init_attr init{};
  ibv_ah_attr address{};  // as the program gave it
  bool extended = false;
  PostBuilder builder;
};

// The stand-in behind a pointer that is known to be one of ours: for the data path.
inline VisibleCq* Unchecked(ibv_cq* cq) {
  return static_cast<VisibleCq*>(reinterpret_cast<ibv_cq_ex*>(cq));
}
inline VisibleSrq* Unchecked(ibv_srq* srq) { return static_cast<VisibleSrq*>(srq); }
inline VisibleQp* Unchecked(ibv_qp* qp) {
  return static_cast<VisibleQp*>(reinterpret_cast<ibv_qp_ex*>(qp));
}

// The objects of this process that are alive, by the pointers that the program has. Any thread.
class Registry {
 public:
  static Registry& Get();

  // `handle`: the pointer that the program has, which no other object alive has. `object`: what
  // stands behind it.
  void Add(Kind kind, const void* handle, void* object, Context* owner);
  // Null unless `handle` is an object of that kind that is alive.
  void* Find(Kind kind, const void* handle);
  // Finds an object for the one caller that destroys it. Nobody else may until EndDestroying().
  void* BeginDestroying(Kind kind, const void* handle);
  void EndDestroying(const void* handle, bool destroyed);
  // The context ends before its objects. They stay where they are, alive for nobody.
  void OrphanObjectsOf(const Context* owner);
  std::vector<const void*> HandlesOf(const Context* owner, Kind kind);

 private:
  struct Entry {
    Kind kind;
    void* object;
    Context* owner;
    bool being_destroyed = false;
    bool orphaned = false;
  };

  std::mutex mutex_;
  std::unordered_map<const void*, Entry> entries_;
};

template <typename T>
T* Alive(const void* handle) {
  return static_cast<T*>(Registry::Get().Find(T::kKind, handle));
}

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_OBJECTS_H_
