// FakeDevice: a Device with CQs and completion channels alone, whose completions a test pushes from
// any thread. Everything else is UNIMPLEMENTED.
//
//   FakeDevice device;
//   ibv_cq* cq = *executor->AddCq(device, 16, listener);
//   device.Push(cq, /*wr_id=*/7);

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_FAKE_DEVICE_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_FAKE_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

class FakeDevice final : public Device {
 public:
  FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;
  // Every CQ and channel must have been destroyed: the test fails otherwise.
  ~FakeDevice() override;

  // From any thread. Raises an event if the CQ is armed.
  void Push(ibv_cq* cq, uint64_t wr_id);
  // `hook` runs on the executor's thread just before a CQ is armed: its pushes raise no event.
  void SetBeforeArming(std::function<void(ibv_cq*)> hook) { before_arming_ = std::move(hook); }
  void SetArmError(int error) { arm_error_ = error; }
  void SetPollError(int error) { poll_error_ = error; }
  void SetDestroyCqStatus(absl::Status status) { destroy_cq_status_ = std::move(status); }
  void SetCreateCqStatus(absl::Status status) { create_cq_status_ = std::move(status); }

  int arms() const { return arms_; }
  int acknowledgements() const { return acknowledgements_; }
  int live_cqs() const { return live_cqs_; }

  DeviceKind kind() const override { return DeviceKind::kSoft; }
  const std::string& name() const override { return name_; }
  ibv_context* context() override { return &context_; }
  const DeviceCapabilities& capabilities() const override { return capabilities_; }
  const ibv_device_attr& attributes() const override { return attributes_; }

  absl::StatusOr<ibv_comp_channel*> CreateCompChannel() override;
  absl::Status DestroyCompChannel(ibv_comp_channel* channel) override;
  absl::StatusOr<ibv_cq*> GetCqEvent(ibv_comp_channel* channel) override;
  void AckCqEvents(ibv_cq* cq, unsigned count) override;
  absl::StatusOr<ibv_cq*> CreateCq(int entries, void* cq_context,
                                   ibv_comp_channel* channel) override;
  absl::Status DestroyCq(ibv_cq* cq) override;

  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t) override { return No(); }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t, int) override { return No(); }
  absl::StatusOr<ibv_pd*> AllocPd() override { return No(); }
  absl::Status DeallocPd(ibv_pd*) override { return No(); }
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd*, void*, size_t, int) override { return No(); }
  absl::Status DeregMr(ibv_mr*) override { return No(); }
  absl::StatusOr<ibv_mw*> AllocMw(ibv_pd*) override { return No(); }
  absl::Status DeallocMw(ibv_mw*) override { return No(); }
  absl::StatusOr<ibv_srq*> CreateSrq(ibv_pd*, const ibv_srq_init_attr&) override { return No(); }
  absl::Status ModifySrq(ibv_srq*, const ibv_srq_attr&, int) override { return No(); }
  absl::StatusOr<ibv_srq_attr> QuerySrq(ibv_srq*) override { return No(); }
  absl::Status DestroySrq(ibv_srq*) override { return No(); }
  absl::StatusOr<ibv_qp*> CreateQp(ibv_pd*, ibv_qp_init_attr&) override { return No(); }
  absl::Status ModifyQp(ibv_qp*, const ibv_qp_attr&, int) override { return No(); }
  absl::StatusOr<ibv_qp_attr> QueryQp(ibv_qp*, int) override { return No(); }
  absl::Status DestroyQp(ibv_qp*) override { return No(); }
  QpIdentity IdentityOf(const ibv_qp*) override { return {}; }
  bool Quiesced(QpIdentity) override { return true; }
  int async_fd() const override { return -1; }
  absl::StatusOr<ibv_async_event> GetAsyncEvent() override { return No(); }
  void AckAsyncEvent(ibv_async_event&) override {}

 private:
  static absl::Status No() { return absl::UnimplementedError("FakeDevice has CQs only"); }
  static int PollCq(ibv_cq* cq, int count, ibv_wc* completions);
  static int ReqNotifyCq(ibv_cq* cq, int solicited_only);

  const std::string name_ = "fake0";
  const DeviceCapabilities capabilities_ = {};
  const ibv_device_attr attributes_ = {};
  ibv_context context_ = {};
  std::function<void(ibv_cq*)> before_arming_;
  absl::Status destroy_cq_status_;
  absl::Status create_cq_status_;
  int arm_error_ = 0;
  int poll_error_ = 0;
  int arms_ = 0;
  int acknowledgements_ = 0;
  int live_cqs_ = 0;
  int live_channels_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_FAKE_DEVICE_H_
