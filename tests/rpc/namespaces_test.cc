// A server and a client in different namespaces, or under a system call filter, as in containers:
// shared memory carries their calls and payloads, and every byte is right. A pair whose kernel
// refuses a namespace is left out, and counted.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/server_process.h"
#include "tests/support/forbidden_call.h"
#include "verbena/rpc/runtime.h"

namespace verbena::internal {
namespace {

constexpr size_t kBytes = (1 << 20) + 123;

// Surrounding: where a process runs.
struct Surrounding {
  const char* name;
  int namespaces = 0;      // CLONE_NEW…
  unsigned forbidden = 0;  // a system call that fails with EPERM
};

const std::vector<Surrounding>& Surroundings() {
  static const auto* const all = new std::vector<Surrounding>{
      {.name = "here"},
      {.name = "pid", .namespaces = CLONE_NEWPID},
      {.name = "user", .namespaces = CLONE_NEWUSER},
      {.name = "ipc", .namespaces = CLONE_NEWIPC},
      {.name = "mount", .namespaces = CLONE_NEWNS},
      {.name = "all but the network",
       .namespaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS},
      {.name = "without pidfd_open", .forbidden = SYS_pidfd_open},
      {.name = "without process_vm_readv", .forbidden = SYS_process_vm_readv},
      {.name = "without process_vm_writev", .forbidden = SYS_process_vm_writev},
  };
  return *all;
}

// Without privileges a namespace of users is the door to the others.
bool Unshare(int namespaces) {
  if (unshare(namespaces) == 0) {
    if ((namespaces & CLONE_NEWUSER) == 0) return true;
  } else if (unshare(namespaces | CLONE_NEWUSER) != 0) {
    return false;
  }
  return true;
}

// Moves this process, which has one thread, there. With a namespace of PIDs a child of it
// returns, and the process ends as that does. False: the kernel refuses.
bool Enter(const Surrounding& where) {
  const uid_t uid = geteuid();
  if (where.namespaces != 0) {
    if (!Unshare(where.namespaces)) return false;
    if (geteuid() != uid) {
      // The same user inside as outside.
      std::ofstream map("/proc/self/uid_map");
      map << uid << " " << uid << " 1" << std::flush;
      if (!map) return false;
    }
  }
  if (where.forbidden != 0 && !Forbid(where.forbidden, EPERM)) return false;
  if ((where.namespaces & CLONE_NEWPID) == 0) return true;
  const pid_t inner = fork();
  if (inner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return true;
  }
  int status = 0;
  if (inner < 0 || waitpid(inner, &status, 0) != inner) _exit(1);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

bool MayEnter(const Surrounding& where) {
  const pid_t child = fork();
  if (child == 0) _exit(Enter(where) ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

// A payload to the server and another one from it; both must be the pattern.
Task<absl::Status> Exchange(Channel& channel) {
  testing::Payloads::Stub stub(channel);
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer sent, co_await channel.AllocateBuffer(kBytes));
  FillPattern(sent.view());
  testing::PutReply put;
  VERBENA_CO_RETURN_IF_ERROR(
      co_await stub.Put(testing::PutRequest(), put, {.request_payload = std::move(sent)}));
  if (!put.right() || put.bytes() != kBytes) co_return absl::DataLossError("what the server got");
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer room, co_await channel.AllocateBuffer(kBytes));
  testing::GetRequest request;
  request.set_bytes(kBytes);
  WithPayload<testing::GetReply> got;
  VERBENA_CO_RETURN_IF_ERROR(
      co_await stub.Get(request, got, {.response_payload_into = std::move(room)}));
  if (got.payload.size() != kBytes || !IsPattern(got.payload.view())) {
    co_return absl::DataLossError("what the client got");
  }
  co_return absl::OkStatus();
}

// The client's process: prints one line, the wire or what went wrong.
[[noreturn]] void RunClient(const Surrounding& where, const std::string& address, int out) {
  std::string line = "the kernel refuses";
  if (Enter(where)) {
    auto runtime = Runtime::Start({});
    line = runtime.status().ToString();
    if (runtime.ok()) {
      Channel channel(**runtime, address);
      const absl::Status status = (*runtime)->BlockOn(Exchange(channel));
      line = status.ToString();
      for (const DeviceStats& device : (*runtime)->device_stats(0)) {
        if (status.ok() && device.endpoint.links > 0) line = device.kind;
      }
    }
  }
  if (write(out, line.data(), line.size()) < 0) _exit(1);
  _exit(0);
}

// The wire that the two take, or what went wrong.
std::string WireBetween(const Surrounding& server, const Surrounding& client) {
  const ServerProcess<PayloadService> process("127.0.0.1:0",
                                              [&server](PayloadService&, RuntimeOptions&) {
                                                if (!Enter(server)) _exit(1);
                                              });
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    RunClient(client, process.address(), fds[1]);
  }
  close(fds[1]);
  std::string line;
  char bytes[256];
  for (ssize_t count; (count = read(fds[0], bytes, sizeof(bytes))) > 0;) {
    line.append(bytes, static_cast<size_t>(count));
  }
  close(fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return line;
}

class NamespacesTest : public ::testing::TestWithParam<size_t> {};

TEST_P(NamespacesTest, SharedMemoryCarriesPayloadsWhole) {
  const Surrounding& server = Surroundings()[GetParam()];
  if (!MayEnter(server)) GTEST_SKIP() << "the kernel refuses: " << server.name;
  for (const Surrounding& client : Surroundings()) {
    if (!MayEnter(client)) {
      std::printf("left out: server %s, client %s\n", server.name, client.name);
      continue;
    }
    const std::string wire = WireBetween(server, client);
    EXPECT_EQ(wire, "soft") << "server " << server.name << ", client " << client.name;
    std::printf("server %s, client %s: %s\n", server.name, client.name, wire.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Servers, NamespacesTest, ::testing::Range<size_t>(0, 9));

}  // namespace
}  // namespace verbena::internal
