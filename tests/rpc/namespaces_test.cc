// A server and a client in different namespaces, or under a system call filter, as in containers:
// shared memory carries their calls and payloads if they have one network and may share memory, TCP
// otherwise, and every byte is right. A pair whose kernel refuses a namespace is left out, and
// counted. Each shard of the test has a hub of its own, so cables of two shards never meet.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/cable.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/server_process.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/in_a_child.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {
namespace {

constexpr size_t kBytes = (1 << 20) + 123;

// Surrounding: where a process runs.
struct Surrounding {
  const char* name;
  int namespaces = 0;                 // CLONE_NEW…
  std::function<bool()> forbid = {};  // forbids a system call; false: the kernel takes no filter
  bool may_share_memory = true;
};

const std::vector<Surrounding>& Surroundings() {
  static const auto* const all = new std::vector<Surrounding>{
      {.name = "here"},
      {.name = "pid", .namespaces = CLONE_NEWPID},
      {.name = "user", .namespaces = CLONE_NEWUSER},
      {.name = "ipc", .namespaces = CLONE_NEWIPC},
      {.name = "mount", .namespaces = CLONE_NEWNS},
      {.name = "time", .namespaces = CLONE_NEWTIME},
      {.name = "network", .namespaces = CLONE_NEWNET},
      {.name = "all but the network",
       .namespaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS |
                     CLONE_NEWTIME},
      {.name = "without pidfd_open", .forbid = [] { return Forbid(SYS_pidfd_open, EPERM); }},
      {.name = "without process_vm_readv",
       .forbid = [] { return Forbid(SYS_process_vm_readv, EPERM); }},
      {.name = "without process_vm_writev",
       .forbid = [] { return Forbid(SYS_process_vm_writev, EPERM); }},
      {.name = "without memfd_create",
       .forbid = [] { return Forbid(SYS_memfd_create, EPERM); },
       .may_share_memory = false},
      {.name = "without seals of memfds",
       .forbid = [] { return ForbidCommand(SYS_fcntl, F_ADD_SEALS, EPERM); },
       .may_share_memory = false},
  };
  return *all;
}

bool HasOwnNetwork(const Surrounding& where) { return (where.namespaces & CLONE_NEWNET) != 0; }

// Two processes, and the number of the cable of each that has a network of its own.
struct ProcessPair {
  const Surrounding& server;
  const Surrounding& client;
  int server_cable;
  int client_cable;

  bool HasOneNetwork() const { return !HasOwnNetwork(server) && !HasOwnNetwork(client); }
  bool MayShareMemory() const { return server.may_share_memory && client.may_share_memory; }
  const char* wire() const { return HasOneNetwork() && MayShareMemory() ? "soft" : "tcp"; }
  // Returns the address at which the client finds a server that listens at `address`.
  std::string AddressFor(const std::string& address) const {
    if (HasOneNetwork()) return address;
    const uint32_t host =
        HasOwnNetwork(server) ? FarAddress(server_cable) : NearAddress(client_cable);
    return TextOfAddress(host) + address.substr(address.rfind(':'));
  }
};

// Without privileges a namespace of users is the door to the others.
bool Unshare(int namespaces) {
  const uid_t uid = geteuid();
  if (unshare(namespaces) != 0) {
    namespaces |= CLONE_NEWUSER;
    if (unshare(namespaces) != 0) return false;
  }
  if ((namespaces & CLONE_NEWUSER) == 0) return true;
  // The same user inside as outside.
  std::ofstream map("/proc/self/uid_map");
  map << uid << " " << uid << " 1" << std::flush;
  return static_cast<bool>(map);
}

// Moves this process, which has one thread, there, by that cable if it has its own network. With a
// namespace of PIDs or of time a child of it returns, and the process ends as that does. False: the
// kernel refuses.
bool Enter(const Surrounding& where, int cable) {
  if (HasOwnNetwork(where) && !EnterByCable(cable)) return false;
  const int others = where.namespaces & ~CLONE_NEWNET;
  if (others != 0 && !Unshare(others)) return false;
  if ((others & CLONE_NEWTIME) != 0) {
    // A day ahead.
    std::ofstream offsets("/proc/self/timens_offsets");
    offsets << "monotonic 86400 0" << std::flush;
    if (!offsets) return false;
  }
  if (where.forbid && !where.forbid()) return false;
  if ((others & (CLONE_NEWPID | CLONE_NEWTIME)) == 0) return true;
  const pid_t inner = fork();
  if (inner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return true;
  }
  int status = 0;
  if (inner < 0 || waitpid(inner, &status, 0) != inner) _exit(1);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
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
// An exception ends it: GoogleTest would run it as a second test.
[[noreturn]] void RunClient(const ProcessPair& pair, const std::string& address, int out) noexcept {
  std::string line = "the kernel refuses";
  if (Enter(pair.client, pair.client_cable)) {
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
std::string WireBetween(const ProcessPair& pair) {
  const ServerProcess<PayloadService> process(
      pair.HasOneNetwork() ? "127.0.0.1:0" : "0.0.0.0:0",
      [&pair](PayloadService&, RuntimeOptions& options, internal::TestDevice&) {
        if (!Enter(pair.server, pair.server_cable)) _exit(1);
        options.device = "auto";
      });
  if (process.address().empty()) return "the server did not start";
  const std::string address = pair.AddressFor(process.address());
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    RunClient(pair, address, fds[1]);
  }
  close(fds[1]);
  std::string line;
  char bytes[256];
  for (ssize_t count; (count = read(fds[0], bytes, sizeof(bytes))) > 0;) {
    line.append(bytes, static_cast<size_t>(count));
  }
  close(fds[0]);
  if (child < 0) return "the client did not start";  // and waitpid(-1) waits for the server
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return line;
}

class NamespacesTest : public ::testing::TestWithParam<size_t> {
 protected:
  // The test moves to a network of its own, with which it may do as it likes. A child tries first:
  // where the kernel grants the network and then refuses what makes it work, as AppArmor does, the
  // test would be in one without a loopback.
  static void SetUpTestSuite() {
    unsetenv("VERBENA_DEVICE");  // it would say what "auto" means
    // The hub has many addresses: it connects to clients from others than its devices' names.
    setenv("VERBENA_SOFT_ANY_SOURCE", "1", /*overwrite=*/1);
    may_unshare_network_ = SucceedsInAChild([] { return Unshare(CLONE_NEWNET); });
    const auto enter_hub = [] { return Unshare(CLONE_NEWNET) && MakeHub(); };
    has_hub_ = SucceedsInAChild(enter_hub) && enter_hub();
    for (const Surrounding& each : Surroundings()) may_enter_.push_back(MayEnter(each));
  }
  static void TearDownTestSuite() {
    std::printf(
        "%d pairs, %d left out that the kernel refuses, and %d left out for a network that "
        "it grants and that could not be set up\n",
        pairs_, refused_, without_network_);
  }

  static bool MayEnter(const Surrounding& where) {
    if (HasOwnNetwork(where) && !has_hub_) return false;
    const int cable = ++last_cable_;
    const bool may = SucceedsInAChild([&] { return Enter(where, cable); });
    if (HasOwnNetwork(where)) RemoveCable(cable);
    return may;
  }

  // Counts a pair that is left out. `network_only`: it lacks nothing but a network.
  static void LeaveOut(const Surrounding& server, const Surrounding& client, bool network_only) {
    const char* why = "the kernel refuses";
    if (network_only && may_unshare_network_) {
      ++without_network_;
      why = "its network could not be set up";
    } else {
      ++refused_;
    }
    std::printf("left out: server %s, client %s: %s\n", server.name, client.name, why);
  }

  static inline bool may_unshare_network_ = false;
  static inline bool has_hub_ = false;
  static inline std::vector<bool> may_enter_;  // as Surroundings()
  static inline int last_cable_ = 0;
  static inline int pairs_ = 0;
  static inline int refused_ = 0;
  static inline int without_network_ = 0;
};

TEST_P(NamespacesTest, PayloadsArriveWholeByTheWireThatBothCanTake) {
  const Surrounding& server = Surroundings()[GetParam()];
  for (size_t i = 0; i < Surroundings().size(); ++i) {
    const Surrounding& client = Surroundings()[i];
    if (!may_enter_[GetParam()] || !may_enter_[i]) {
      LeaveOut(server, client,
               (may_enter_[GetParam()] || HasOwnNetwork(server)) &&
                   (may_enter_[i] || HasOwnNetwork(client)));
      continue;
    }
    const ProcessPair pair{.server = server,
                           .client = client,
                           .server_cable = ++last_cable_,
                           .client_cable = ++last_cable_};
    const std::string wire = WireBetween(pair);
    EXPECT_EQ(wire, pair.wire()) << "server " << server.name << ", client " << client.name;
    std::printf("server %s, client %s: %s\n", server.name, client.name, wire.c_str());
    ++pairs_;
    if (HasOwnNetwork(server)) RemoveCable(pair.server_cable);
    if (HasOwnNetwork(client)) RemoveCable(pair.client_cable);
  }
}

INSTANTIATE_TEST_SUITE_P(Servers, NamespacesTest, ::testing::Range<size_t>(0, 13));

}  // namespace
}  // namespace verbena::internal
