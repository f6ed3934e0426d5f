// SoftState: what all parts of a soft device read without a lock.
//
// The options, the device's name and what it can do; the tables that its peers see; the QPs by
// number; the clock, the engine, and the queue of asynchronous events. It is the only part of the
// device that the data path knows: queue pairs, lanes and CQs.
//
// The SoftDevice owns it, and it outlives every object of the device. Any thread. What may change
// is atomic, or has a lock of its own, which is a leaf.

#ifndef VERBENA_TRANSPORT_SOFT_STATE_H_
#define VERBENA_TRANSPORT_SOFT_STATE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/process.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/engine.h"
#include "verbena/transport/soft/events.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/shared_memory.h"

namespace verbena::internal::soft {

// DeviceShare: the part of a device that its peers see.
//
// Outlives the device for as long as one of them looks.
struct DeviceShare {
  // `shared`: with peers in other processes, too. Without it the memory has no descriptors.
  static absl::StatusOr<std::shared_ptr<DeviceShare>> Create(bool shared);

  SharedRegion controls;      // CqControl[kMaxCompletionQueues], which peers write
  SharedRegion table_memory;  // DeviceTables
  UniqueFd tables_read_only;  // all that peers in other processes get of it

  CqControl* control() const { return reinterpret_cast<CqControl*>(controls.data()); }
  DeviceTables& tables() const { return *reinterpret_cast<DeviceTables*>(table_memory.data()); }
};

class SoftState {
 public:
  // `options` have a profile; no other device has `guid`. `engine`, and the clock of `options`,
  // outlive the state.
  SoftState(const SoftDeviceOptions& options, std::shared_ptr<DeviceShare> share,
            const DeviceAddress& address, uint64_t guid, Engine& engine);
  SoftState(const SoftState&) = delete;
  SoftState& operator=(const SoftState&) = delete;
  ~SoftState();

  const SoftDeviceOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  const DeviceAddress& address() const { return address_; }
  // The device that an address vector names.
  DeviceAddress AddressOf(const ibv_ah_attr& vector) const;
  // Whoever owns the objects fills in its functions.
  ibv_context& context() { return context_; }
  const DeviceCapabilities& capabilities() const { return capabilities_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  ibv_port_attr port_attributes() const;
  TimePoint Now() { return clock_.Now(); }

  // What peers see: the tables, and the control block of each CQ.
  std::shared_ptr<const DeviceShare> share() const { return share_; }
  DeviceTables& tables() { return share_->tables(); }
  CqControl& control(uint32_t cq_index) { return share_->control()[cq_index]; }
  MemoryTable& memory() { return memory_; }
  MemoryWindows& windows() { return windows_; }
  Quiescence& quiescence() { return quiescence_; }

  // The QPs by number. Under the lock of `cq`: null when `qpn` does not receive through `cq`.
  ibv_qp* FindReceiver(uint32_t qpn, const ibv_cq& cq) const {
    const QpSlot& slot = slots_[qpn & (kMaxQueuePairs - 1)];
    if (slot.receive_cq.load(std::memory_order_acquire) != &cq) return nullptr;
    ibv_qp* qp = slot.qp.load(std::memory_order_relaxed);
    return qp != nullptr && qp->qp_num == qpn ? qp : nullptr;
  }
  void AddReceiver(ibv_qp& qp);
  // No message finds the QP from here on. Whoever has found it holds its receive CQ's lock.
  void HideReceiver(const ibv_qp& qp);
  // Under the lock of its receive CQ: lets go of the QP.
  void RemoveReceiver(const ibv_qp& qp);

  EventQueue& async_events() { return async_events_; }
  Engine& engine() { return engine_; }
  // Has the engine look at the CQ of `control`.
  void WakeEngine(CqControl& control) {
    control.doorbell.Ring([&] { engine_.Wake(); });
  }
  // A CQ overran: the engine fails its QPs, soon. Any locks.
  void ReportOverrun();
  // Whether a CQ overran since the last call.
  bool TakeOverrun() { return overrun_.exchange(false); }

 private:
  struct QpSlot {
    std::atomic<const ibv_cq*> receive_cq{nullptr};
    std::atomic<ibv_qp*> qp{nullptr};
  };

  void FillAttributes(uint64_t guid);

  const SoftDeviceOptions options_;
  Clock& clock_;
  Engine& engine_;
  const std::shared_ptr<DeviceShare> share_;
  const DeviceAddress address_;
  ibv_device device_{};
  ibv_context context_{};
  ibv_device_attr attributes_{};
  DeviceCapabilities capabilities_;
  MemoryTable memory_;
  MemoryWindows windows_;
  Quiescence quiescence_;
  EventQueue async_events_;
  const std::unique_ptr<QpSlot[]> slots_;
  std::atomic<bool> overrun_{false};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_STATE_H_
