// SoftObjects: the verbs objects of a soft device, by their addresses and numbers, and the control
// path of Device: what makes, changes and ends them.
//
// Owned by the SoftDevice. Control calls come on any thread, and take the mutex, which comes before
// every CQ's lock. The data path never takes it. As the engine's client it makes progress for CQs
// that nobody polls. The options, the profile and the tables bound the objects.

#ifndef VERBENA_TRANSPORT_SOFT_OBJECTS_H_
#define VERBENA_TRANSPORT_SOFT_OBJECTS_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/copies.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/state.h"

namespace verbena::internal::soft {

class SoftObjects final : public Engine::Client {
 public:
  // Who connects the objects to those of peers. Called without the mutex, unless it says so.
  class Connector {
   public:
    // The QP of the request is to be attached to a lane. Its sends wait until then, or fail. The
    // request's answer hears whether the peer's device was found.
    virtual void Connect(const ConnectRequest& request) = 0;
    // The QP of the request is no more, and was not attached yet.
    virtual void Forget(const ConnectRequest& request) = 0;
    // The CQ is about to end: its peers learn that its lanes do.
    virtual void CloseLanes(CompletionQueue& cq) = 0;
    // Peers may map the arena, or, under the mutex, are to let go of it.
    virtual void AnnounceArena(std::shared_ptr<const SharedArena> arena) = 0;
    virtual void WithdrawArena(uint32_t id) = 0;

   protected:
    ~Connector() = default;
  };

  explicit SoftObjects(SoftState& state);
  SoftObjects(const SoftObjects&) = delete;
  SoftObjects& operator=(const SoftObjects&) = delete;
  // Before the first object is made. Outlives the last call.
  void SetConnector(Connector& connector) { connector_ = &connector; }

  // The control path of Device.
  absl::StatusOr<ibv_pd*> AllocPd();
  absl::Status DeallocPd(ibv_pd* pd);
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access);
  absl::Status DeregMr(ibv_mr* mr);
  absl::Status ReregMr(ibv_mr* mr, ibv_pd* pd, void* address, size_t bytes, int access);
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd* pd);
  absl::Status DeallocMw(ibv_mw* mw);
  absl::StatusOr<ibv_comp_channel*> CreateCompChannel();
  absl::Status DestroyCompChannel(ibv_comp_channel* channel);
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context, ibv_comp_channel* channel);
  absl::Status ResizeCq(ibv_cq* cq, int entries);
  absl::Status DestroyCq(ibv_cq* cq);
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd* pd, const ibv_srq_init_attr& attributes);
  absl::Status ModifySrq(ibv_srq* srq, const ibv_srq_attr& attributes, int mask);
  absl::Status DestroySrq(ibv_srq* srq);
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd* pd, ibv_qp_init_attr& attributes);
  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask);
  // As Device::AwaitPeer.
  absl::Status AwaitPeer(ibv_qp* qp);
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp* qp);
  absl::Status DestroyQp(ibv_qp* qp);
  bool AwaitQuiesced(QpIdentity qp);
  absl::StatusOr<std::byte*> AllocateShared(size_t bytes);
  absl::Status FreeShared(std::byte* memory);
  Arenas& arenas() { return arenas_; }
  CopiedBytes copied_bytes();
  // Objects that were made and not ended; without `with_memory` no regions, no windows and no
  // protection domains.
  size_t size(bool with_memory);

  // Calls `use` under the mutex, if there is a QP of that number, or a CQ of that id; else returns
  // false.
  bool WithQp(uint32_t qpn, absl::FunctionRef<void(QueuePair&)> use);
  bool WithCq(uint64_t id, absl::FunctionRef<void(CompletionQueue&)> use);
  // Calls `use` for each CQ, under the mutex and that CQ's lock.
  void ForEachCq(absl::FunctionRef<void(CompletionQueue&)> use);

  // Engine::Client.
  bool Serve() override;
  bool Tick() override;
  bool NeedsTick() override;
  void OnTimer(uint32_t qpn, uint32_t token) override;

 private:
  struct ProtectionDomain : ibv_pd {
    std::atomic<int> users{0};
  };

  // Whether memory may be registered so.
  absl::Status CheckRegion(const void* address, size_t bytes, uint32_t flags);
  // The place of memory of this process, perhaps in an arena. Under the mutex.
  MemoryLocation Locate(const void* address, size_t bytes);
  // Makes the keys of `mr` fail, and waits for accesses under way. `what` is the caller's call.
  absl::Status RevokeRegion(ibv_mr* mr, const char* what);
  // Waits until `copies` are over, but not for a frozen peer: then false.
  static bool AwaitCopies(std::vector<CopyUnderWay>& copies);
  absl::Status CheckQpInit(const ibv_pd* pd, const ibv_qp_init_attr& attributes) const;

  SoftState& state_;
  Connector* connector_ = nullptr;

  std::mutex mutex_;
  uint32_t next_pd_handle_ = 1;
  uint64_t last_qp_identity_ = 0;
  uint64_t next_cq_serial_ = 1;
  std::unordered_map<const ibv_pd*, std::unique_ptr<ProtectionDomain>> pds_;
  std::unordered_map<const ibv_mr*, std::unique_ptr<ibv_mr>> mrs_;
  std::unordered_map<const ibv_mw*, std::unique_ptr<ibv_mw>> mws_;
  Arenas arenas_;
  std::unordered_map<const ibv_comp_channel*, std::unique_ptr<CompletionChannel>> channels_;
  std::unordered_map<const ibv_cq*, std::unique_ptr<CompletionQueue>> cqs_;
  std::unordered_map<const ibv_srq*, std::unique_ptr<SharedReceiveQueue>> srqs_;
  std::unordered_map<uint32_t, std::unique_ptr<QueuePair>> qps_;
  std::deque<uint32_t> free_qpns_;        // the QPN that each free slot gets next, oldest first
  std::deque<uint32_t> free_cq_indices_;  // likewise
  CopiedBytes copied_earlier_;            // by CQs that are no more
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_OBJECTS_H_
