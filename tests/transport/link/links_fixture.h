// LinksFixture: two endpoints on one executor that the test drives, and links between them.
//
// The endpoints act only inside Poll(), on the test's thread, so a test sees their state between
// any two turns. Frames that a Flood sends carry a sequence number, which Receiver checks.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/moved_clock.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/rdma_options.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {

// Counts frames; every one must be the next of its link.
class Receiver final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader& frame, const char* body) override;
  void OnLinkDown(Link& link, const absl::Status& reason) override {
    reason_ = reason;
    broken_ = link.broken();
  }
  bool ExpectsFrames() const override { return expects_frames_; }
  // From now on the link PINGs a silent peer, as it does for a call that waits.
  void set_expects_frames() { expects_frames_ = true; }

  uint32_t received() const { return received_; }
  const absl::Status& reason() const { return reason_; }
  // Whether a fault of the device, or of the path behind it, has ended the link.
  bool broken() const { return broken_; }

 private:
  uint32_t received_ = 0;
  bool expects_frames_ = false;
  bool broken_ = false;
  absl::Status reason_;
};

// Sends numbered frames as fast as the link takes them.
class Flood final : private SendWaiter {
 public:
  // The frames have the numbers from `first` to `count` - 1.
  Flood(uint32_t count, size_t bytes, uint32_t first = 0);

  void Run(Link& link);
  uint32_t sent() const { return sent_; }

 private:
  bool Append(Link& link);
  void OnWritable(Link& link) override;

  const uint32_t count_;
  uint32_t sent_;
};

class LinksFixture : public testing::Test {
 protected:
  void Start(const LinkLimits& client_limits, const LinkLimits& server_limits,
             QpConnector* connector = nullptr);

  // Returns a device over the given one, for the endpoints to use; nullptr: they use the given one.
  virtual std::unique_ptr<Device> Wrap(SoftDevice&) { return nullptr; }

  // The options of the device that both endpoints are on.
  virtual SoftDeviceOptions device_options() const { return {}; }

  // The links of both endpoints ask this of the fabric.
  virtual RdmaOptions rdma_options() const { return {}; }

  // Whether a thread reads the device's asynchronous events.
  virtual bool has_event_thread() const { return true; }

  void TearDown() override;

  void RunToEnd(Task<void> task);

  // `check` runs between the turns.
  void PollUntil(const std::function<bool()>& done, const std::function<void()>& check = [] {});

  // Polls until `done`. False if that takes far longer than threads stand still.
  bool DoneInTime(const std::function<bool()>& done);

  // Polls until both endpoints have torn their links down.
  void WaitUntilNoLinks();

  // Tests may replace the client's end of the stream of the next handshake.
  virtual std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream);

  // Tests may replace the server's end of the stream of the next handshake.
  virtual std::unique_ptr<MessageStream> WrapServerStream(std::unique_ptr<MessageStream> stream);

  // A link from client() to server(); returns the client's end, nullptr after a failure.
  Link* Connect(LinkListener& client_listener, LinkListener& server_listener);

  // The same for a connection that may fail. The server's result is in accepted(), perhaps later.
  absl::StatusOr<Link*> TryConnect(LinkListener& client_listener, LinkListener& server_listener);

  // The same without waiting: `link` is set once the client's end is connected or has failed.
  void BeginConnect(LinkListener& client_listener, LinkListener& server_listener,
                    std::optional<absl::StatusOr<Link*>>& link);

  // The same for a coroutine, which may run several: accepted() is the server's last result.
  Task<absl::StatusOr<Link*>> ConnectBoth(LinkListener& client_listener,
                                          LinkListener& server_listener);

  // What the client's endpoint gives a new link to prove itself.
  Duration proof_time = Duration::max();

  // The server's end of the last link, or its failure: INTERNAL if its handshake threw.
  const std::optional<absl::StatusOr<Link*>>& accepted() const { return accepted_; }

  // The parameters that the last client offered.
  const LinkParameters& last_offer() const { return last_offer_; }

  Executor& executor() { return *executor_; }
  // The executor's clock.
  MovedClock& clock() { return clock_; }
  SoftDevice& device() { return *device_; }
  // The context of the device that both endpoints are on.
  ibv_context& context() { return *device_->context(); }
  DeviceContext& device_context() { return *context_; }
  Endpoint& client() { return *client_; }
  Endpoint& server() { return *server_; }

 private:
  // On a busy machine, control threads would get this thread's core only when its time is over.
  void Turn();
  static Task<void> AndThen(Task<void> task, bool& done);
  Task<void> AcceptOne(LinkListener& listener);
  Task<void> ConnectOne(LinkListener& listener, absl::StatusOr<Link*>& link);
  Task<void> ConnectAndTell(LinkListener& listener, std::optional<absl::StatusOr<Link*>>& told);

  MovedClock clock_;
  LocalNetwork network_;
  LocalBootstrap bootstrap_{network_};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SoftDevice> device_;
  std::unique_ptr<Device> wrapper_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<Endpoint> client_;
  std::unique_ptr<Endpoint> server_;
  std::unique_ptr<MessageListener> listener_;
  std::optional<absl::StatusOr<Link*>> accepted_;
  LinkParameters last_offer_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_
