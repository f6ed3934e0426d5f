// RemoteHost: a Host in another process, and that process.
//
// The process runs this same binary and serves one call at a time over a socket pair. It ends when
// the socket closes, and dies with this process. A case can stop, continue or kill it in the middle
// of whatever its device does. After a call that fails on the socket, all further calls fail.

#ifndef VERBENA_TESTS_CONFORMANCE_REMOTE_HOST_H_
#define VERBENA_TESTS_CONFORMANCE_REMOTE_HOST_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/conformance/host.h"
#include "tests/conformance/message_socket.h"
#include "tests/conformance/objects.h"

namespace verbena::internal::conformance {

// Serves `host` until the other end closes. The main function of the process.
void ServeHost(Host& host, MessageSocket socket);

class RemoteHost final : public Host {
 public:
  // Starts this binary with `arguments`, its end of the socket as descriptor kHostSocketFd.
  static absl::StatusOr<std::unique_ptr<RemoteHost>> Start(
      const std::vector<std::string>& arguments);
  static constexpr int kHostSocketFd = 3;

  ~RemoteHost() override;

  // Sends SIGKILL and reaps the process.
  void Kill();
  // Sends SIGSTOP; returns once every thread of the process has stopped.
  absl::Status Stop();
  void Continue();
  // Lets the process end by itself. An error if it does not, or if it ends with a failure, such as
  // a sanitizer's report. OK if Kill() has ended it.
  absl::Status Finish();

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
  RemoteHost(pid_t process, MessageSocket socket) : process_(process), socket_(std::move(socket)) {}

  template <auto kMethod, typename... Arguments>
  auto Call(const Arguments&... arguments);

  pid_t process_;  // 0 once it was reaped
  std::mutex mutex_;
  MessageSocket socket_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_REMOTE_HOST_H_
