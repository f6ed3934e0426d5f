#include "tests/conformance/remote_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "tests/conformance/codec.h"
#include "tests/conformance/host_calls.h"
#include "tests/conformance/patience.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal::conformance {
namespace {

// Longer than any wait that a call itself may take.
constexpr uint32_t kCallTimeoutMs = 3 * kPatienceMs;

// Runs /proc/self/exe with `socket` as kHostSocketFd and every other descriptor as CLOEXEC has it.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int socket) {
  std::vector<char*> argv{const_cast<char*>("conformance_host")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, RemoteHost::kHostSocketFd);
  pid_t process = 0;
  const int error =
      posix_spawn(&process, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, "posix_spawn(/proc/self/exe)");
  return process;
}

// Waits until `process`, a child, has ended. False if it has not within kPatienceMs.
absl::StatusOr<bool> EndsInTime(pid_t process) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return ErrnoStatus(errno, "pidfd_open");
  const TimeLimit deadline(kPatienceMs);
  pollfd end{.fd = descriptor, .events = POLLIN, .revents = 0};
  int found = 0;
  while ((found = poll(&end, 1, deadline.left_ms())) < 0 && errno == EINTR) {
  }
  close(descriptor);
  return found > 0;
}

}  // namespace

void ServeHost(Host& host, MessageSocket socket) {
  for (;;) {
    absl::StatusOr<std::string> call = socket.Receive();
    if (!call.ok()) return;
    Decoder decoder(*std::move(call));
    if (!socket.Send(HostCalls::Run(host, decoder)).ok()) return;
  }
}

absl::StatusOr<std::unique_ptr<RemoteHost>> RemoteHost::Start(
    const std::vector<std::string>& arguments) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  MessageSocket ours(ends[0]);
  // A descriptor that is dup2'ed onto itself would keep its CLOEXEC.
  const int theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, kHostSocketFd + 1);
  close(ends[1]);
  if (theirs < 0) return ErrnoStatus(errno, "fcntl(F_DUPFD_CLOEXEC)");
  absl::StatusOr<pid_t> process = Spawn(arguments, theirs);
  close(theirs);
  if (!process.ok()) return process.status();
  return std::unique_ptr<RemoteHost>(new RemoteHost(*process, std::move(ours)));
}

RemoteHost::~RemoteHost() { Kill(); }

void RemoteHost::Kill() {
  if (process_ == 0) return;
  kill(process_, SIGKILL);
  waitpid(std::exchange(process_, 0), nullptr, 0);
  socket_.Close();
}

absl::Status RemoteHost::Stop() {
  int state = 0;
  if (kill(process_, SIGSTOP) != 0) return ErrnoStatus(errno, "kill(SIGSTOP)");
  if (waitpid(process_, &state, WUNTRACED) != process_ || !WIFSTOPPED(state)) {
    return absl::UnavailableError(fmt::format("process {} did not stop: {:#x}", process_, state));
  }
  return absl::OkStatus();
}

void RemoteHost::Continue() { kill(process_, SIGCONT); }

absl::Status RemoteHost::Finish() {
  if (process_ == 0) return absl::OkStatus();
  socket_.Close();
  const absl::StatusOr<bool> ended = EndsInTime(process_);
  if (!ended.ok() || !*ended) {
    const pid_t process = process_;
    Kill();
    if (!ended.ok()) return ended.status();
    return absl::DeadlineExceededError(
        fmt::format("the far host's process {} did not end by itself", process));
  }
  int state = 0;
  waitpid(std::exchange(process_, 0), &state, 0);
  if (state == 0) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("the far host's process ended with wait status {:#x}", state));
}

template <auto kMethod, typename... Arguments>
auto RemoteHost::Call(const Arguments&... arguments) {
  using Result = typename HostMethod<kMethod>::Result;
  Encoder call;
  call.Put(HostCalls::IndexOf<kMethod>());
  (call.Put(arguments), ...);
  std::lock_guard lock(mutex_);
  if (absl::Status status = socket_.Send(call.bytes()); !status.ok()) return Result(status);
  absl::StatusOr<std::string> answer = socket_.Receive(kCallTimeoutMs);
  if (!answer.ok()) return Result(answer.status());
  return Decoder(*std::move(answer)).template Get<Result>();
}

absl::StatusOr<HostInfo> RemoteHost::Info() { return Call<&Host::Info>(); }

absl::StatusOr<Pd> RemoteHost::AllocPd() { return Call<&Host::AllocPd>(); }

absl::Status RemoteHost::DeallocPd(Pd pd) { return Call<&Host::DeallocPd>(pd); }

absl::StatusOr<Memory> RemoteHost::Register(Pd pd, uint64_t bytes, int access) {
  return Call<&Host::Register>(pd, bytes, access);
}

absl::StatusOr<Memory> RemoteHost::RegisterAgain(Memory memory, Pd pd, int access) {
  return Call<&Host::RegisterAgain>(memory, pd, access);
}

absl::Status RemoteHost::Deregister(Memory memory) { return Call<&Host::Deregister>(memory); }

absl::StatusOr<Mw> RemoteHost::AllocMw(Pd pd) { return Call<&Host::AllocMw>(pd); }

absl::Status RemoteHost::DeallocMw(Mw mw) { return Call<&Host::DeallocMw>(mw); }

absl::Status RemoteHost::WriteBytes(Memory memory, uint64_t offset, std::string bytes) {
  return Call<&Host::WriteBytes>(memory, offset, bytes);
}

absl::StatusOr<std::string> RemoteHost::ReadBytes(Memory memory, uint64_t offset, uint64_t bytes) {
  return Call<&Host::ReadBytes>(memory, offset, bytes);
}

absl::StatusOr<std::string> RemoteHost::PeekBytes(Memory memory, uint64_t offset, uint64_t bytes) {
  return Call<&Host::PeekBytes>(memory, offset, bytes);
}

absl::StatusOr<CqChannel> RemoteHost::CreateChannel() { return Call<&Host::CreateChannel>(); }

absl::Status RemoteHost::DestroyChannel(CqChannel channel) {
  return Call<&Host::DestroyChannel>(channel);
}

absl::StatusOr<Cq> RemoteHost::CreateCq(uint32_t entries, CqChannel channel) {
  return Call<&Host::CreateCq>(entries, channel);
}

absl::Status RemoteHost::DestroyCq(Cq cq) { return Call<&Host::DestroyCq>(cq); }

absl::StatusOr<Srq> RemoteHost::CreateSrq(Pd pd, uint32_t depth, uint32_t sges) {
  return Call<&Host::CreateSrq>(pd, depth, sges);
}

absl::Status RemoteHost::ModifySrq(Srq srq, ibv_srq_attr attributes, int mask) {
  return Call<&Host::ModifySrq>(srq, attributes, mask);
}

absl::StatusOr<ibv_srq_attr> RemoteHost::QuerySrq(Srq srq) { return Call<&Host::QuerySrq>(srq); }

absl::Status RemoteHost::DestroySrq(Srq srq) { return Call<&Host::DestroySrq>(srq); }

absl::StatusOr<Qp> RemoteHost::CreateQp(QpOptions options) {
  return Call<&Host::CreateQp>(options);
}

absl::Status RemoteHost::ModifyQp(Qp qp, ibv_qp_attr attributes, int mask) {
  return Call<&Host::ModifyQp>(qp, attributes, mask);
}

absl::StatusOr<ibv_qp_attr> RemoteHost::QueryQp(Qp qp, int mask) {
  return Call<&Host::QueryQp>(qp, mask);
}

absl::Status RemoteHost::DestroyQp(Qp qp) { return Call<&Host::DestroyQp>(qp); }

absl::StatusOr<bool> RemoteHost::Quiesced(Qp qp) { return Call<&Host::Quiesced>(qp); }

absl::StatusOr<RdmaCmService> RemoteHost::CmExpect(Qp qp, CmOptions options) {
  return Call<&Host::CmExpect>(qp, options);
}

absl::Status RemoteHost::CmRequest(Qp qp, CmOptions options, RdmaCmService service) {
  return Call<&Host::CmRequest>(qp, options, service);
}

absl::Status RemoteHost::CmJoin(Qp qp) { return Call<&Host::CmJoin>(qp); }

absl::Status RemoteHost::CmAwaitEstablished(Qp qp) { return Call<&Host::CmAwaitEstablished>(qp); }

absl::StatusOr<bool> RemoteHost::CmHasEnded(Qp qp) { return Call<&Host::CmHasEnded>(qp); }

absl::StatusOr<PostResult> RemoteHost::PostSends(Qp qp, std::vector<SendWr> wrs) {
  return Call<&Host::PostSends>(qp, wrs);
}

absl::StatusOr<PostResult> RemoteHost::PostReceives(Qp qp, std::vector<RecvWr> wrs) {
  return Call<&Host::PostReceives>(qp, wrs);
}

absl::StatusOr<PostResult> RemoteHost::PostSrqReceives(Srq srq, std::vector<RecvWr> wrs) {
  return Call<&Host::PostSrqReceives>(srq, wrs);
}

absl::StatusOr<std::vector<ibv_wc>> RemoteHost::Poll(Cq cq, uint32_t limit) {
  return Call<&Host::Poll>(cq, limit);
}

absl::StatusOr<std::vector<ibv_wc>> RemoteHost::Await(Cq cq, uint32_t count, uint32_t timeout_ms) {
  return Call<&Host::Await>(cq, count, timeout_ms);
}

absl::Status RemoteHost::Arm(Cq cq, bool solicited_only) {
  return Call<&Host::Arm>(cq, solicited_only);
}

absl::StatusOr<Cq> RemoteHost::AwaitCqEvent(CqChannel channel, uint32_t timeout_ms) {
  return Call<&Host::AwaitCqEvent>(channel, timeout_ms);
}

absl::Status RemoteHost::AckCqEvents(Cq cq, uint32_t count) {
  return Call<&Host::AckCqEvents>(cq, count);
}

absl::Status RemoteHost::AwaitAsyncEvent(ibv_event_type type, uint32_t id, uint32_t timeout_ms) {
  return Call<&Host::AwaitAsyncEvent>(type, id, timeout_ms);
}

absl::Status RemoteHost::RunPingPong(PingPong plan) { return Call<&Host::RunPingPong>(plan); }

absl::Status RemoteHost::StartStream(Stream stream) { return Call<&Host::StartStream>(stream); }

absl::StatusOr<StreamState> RemoteHost::WatchStream() { return Call<&Host::WatchStream>(); }

absl::StatusOr<StreamState> RemoteHost::StopStream(uint32_t timeout_ms) {
  return Call<&Host::StopStream>(timeout_ms);
}

absl::Status RemoteHost::Clear() { return Call<&Host::Clear>(); }

}  // namespace verbena::internal::conformance
