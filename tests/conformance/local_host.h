// LocalHost: a Host in this process.
//
// Owns every object made through it. An id that it does not know aborts. Safe from any thread,
// except that streams and Clear() belong to one thread. raw() gives the verbs object itself to
// cases that race two threads, since this class's lock would order them.

#ifndef VERBENA_TESTS_CONFORMANCE_LOCAL_HOST_H_
#define VERBENA_TESTS_CONFORMANCE_LOCAL_HOST_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/cm_connector.h"
#include "tests/conformance/host.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/pages.h"
#include "tests/conformance/shared_device.h"
#include "tests/conformance/streamer.h"

namespace verbena::internal::conformance {

class LocalHost final : public Host {
 public:
  LocalHost(std::shared_ptr<SharedDevice> device, Backing backing);
  ~LocalHost() override;

  Device& device() { return device_->device(); }
  ibv_qp* raw(Qp qp) const { return Find(qps_, qp.id); }
  ibv_cq* raw(Cq cq) const { return Find(cqs_, cq.id); }
  ibv_srq* raw(Srq srq) const { return Find(srqs_, srq.id); }
  ibv_comp_channel* raw(CqChannel channel) const { return Find(channels_, channel.id); }

  absl::StatusOr<HostInfo> Info() override;
  absl::StatusOr<Pd> AllocPd() override;
  absl::Status DeallocPd(Pd pd) override;
  absl::StatusOr<Memory> Register(Pd pd, uint64_t bytes, int access) override;
  absl::StatusOr<Memory> RegisterAgain(Memory memory, Pd pd, int access) override;
  absl::Status Deregister(Memory memory) override;
  absl::StatusOr<Mw> AllocMw(Pd pd) override;
  absl::Status DeallocMw(Mw mw) override;
  absl::Status WriteBytes(Memory memory, uint64_t offset, std::string bytes) override;
  absl::StatusOr<std::string> ReadBytes(Memory memory, uint64_t offset, uint64_t bytes) override;
  absl::StatusOr<std::string> PeekBytes(Memory memory, uint64_t offset, uint64_t bytes) override;
  absl::StatusOr<CqChannel> CreateChannel() override;
  absl::Status DestroyChannel(CqChannel channel) override;
  absl::StatusOr<Cq> CreateCq(uint32_t entries, CqChannel channel) override;
  absl::Status DestroyCq(Cq cq) override;
  absl::StatusOr<Srq> CreateSrq(Pd pd, uint32_t depth, uint32_t sges) override;
  absl::Status ModifySrq(Srq srq, ibv_srq_attr attributes, int mask) override;
  absl::StatusOr<ibv_srq_attr> QuerySrq(Srq srq) override;
  absl::Status DestroySrq(Srq srq) override;
  absl::StatusOr<Qp> CreateQp(QpOptions options) override;
  absl::Status ModifyQp(Qp qp, ibv_qp_attr attributes, int mask) override;
  absl::StatusOr<ibv_qp_attr> QueryQp(Qp qp, int mask) override;
  absl::Status DestroyQp(Qp qp) override;
  absl::StatusOr<bool> Quiesced(Qp qp) override;
  absl::StatusOr<RdmaCmService> CmExpect(Qp qp, CmOptions options) override;
  absl::Status CmRequest(Qp qp, CmOptions options, RdmaCmService service) override;
  absl::Status CmJoin(Qp qp) override;
  absl::Status CmAwaitEstablished(Qp qp) override;
  absl::StatusOr<bool> CmHasEnded(Qp qp) override;
  absl::StatusOr<PostResult> PostSends(Qp qp, std::vector<SendWr> wrs) override;
  absl::StatusOr<PostResult> PostReceives(Qp qp, std::vector<RecvWr> wrs) override;
  absl::StatusOr<PostResult> PostSrqReceives(Srq srq, std::vector<RecvWr> wrs) override;
  absl::StatusOr<std::vector<ibv_wc>> Poll(Cq cq, uint32_t limit) override;
  absl::StatusOr<std::vector<ibv_wc>> Await(Cq cq, uint32_t count, uint32_t timeout_ms) override;
  absl::Status Arm(Cq cq, bool solicited_only) override;
  absl::StatusOr<Cq> AwaitCqEvent(CqChannel channel, uint32_t timeout_ms) override;
  absl::Status AckCqEvents(Cq cq, uint32_t count) override;
  absl::Status AwaitAsyncEvent(ibv_event_type type, uint32_t id, uint32_t timeout_ms) override;
  absl::Status RunPingPong(PingPong plan) override;
  absl::Status StartStream(Stream stream) override;
  absl::StatusOr<StreamState> WatchStream() override;
  absl::StatusOr<StreamState> StopStream(uint32_t timeout_ms) override;
  absl::Status Clear() override;

 private:
  template <typename T>
  using Table = std::map<uint32_t, T*>;

  template <typename T>
  T* Find(const Table<T>& table, uint32_t id) const;
  template <typename T>
  uint32_t Add(Table<T>& table, T* object);
  // Takes the object out of its table if `destroy` of the device succeeds.
  template <typename T>
  absl::Status Destroy(Table<T>& table, uint32_t id, absl::Status (Device::*destroy)(T*));
  template <typename T>
  absl::Status DestroyAll(Table<T>& table, absl::Status (Device::*destroy)(T*));
  // The address of the range, after a check that the memory holds it.
  absl::StatusOr<char*> At(Memory memory, uint64_t offset, uint64_t bytes) const;
  absl::StatusOr<CmConnector*> Connector();
  absl::StatusOr<Memory> RegisterPages(uint32_t pages_id, Pd pd, int access);

  const std::shared_ptr<SharedDevice> device_;
  const Backing backing_;

  mutable std::mutex mutex_;
  uint32_t last_id_ = 0;
  Table<ibv_pd> pds_;
  Table<ibv_mr> mrs_;
  Table<ibv_mw> mws_;
  Table<ibv_comp_channel> channels_;
  Table<ibv_cq> cqs_;
  Table<ibv_srq> srqs_;
  Table<ibv_qp> qps_;
  std::map<uint32_t, QpIdentity> identities_;    // of all QPs that were ever made
  std::map<uint32_t, Pages> pages_;              // by the id of their first registration
  std::map<uint32_t, uint32_t> pages_of_;        // registration -> pages
  std::map<uint32_t, uint32_t> unacknowledged_;  // CQ -> events

  std::unique_ptr<CmConnector> cm_;  // made when it is first needed
  std::unique_ptr<Streamer> streamer_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_LOCAL_HOST_H_
