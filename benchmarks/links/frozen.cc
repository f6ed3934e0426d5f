#include "verbena/benchmarks/links/frozen.h"

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "verbena/benchmarks/harness/drive.h"
#include "verbena/benchmarks/links/crowd.h"
#include "verbena/benchmarks/links/held_address.h"
#include "verbena/benchmarks/links/links_server.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/stream.h"
#include "verbena/transport/base/status.h"

namespace verbena::benchmarks {
namespace {

constexpr int kStreamBytes = 4000;
constexpr int kReadBytes = 16 << 20;

// Reads payloads until a read fails. Tells the crowd when the first payload has come.
Task<void> ReadBesideAStream(Channel& channel, const Crowd::Member& me) {
  bench::Bench::Stub stub(channel);
  bench::PullRequest request;
  request.set_size(kStreamBytes);
  ClientReader<bench::EchoMessage> unread = stub.Pull(request);
  if (!(co_await unread.Read()).has_value()) {
    me.Tell(absl::InternalError("the stream has ended"));
    co_return;
  }
  request.set_size(kReadBytes);
  absl::Status status;
  for (bool told = false; status.ok(); told = true) {
    WithPayload<bench::EchoMessage> reply;
    status = co_await stub.Fetch(request, reply, {.max_response_payload = kReadBytes});
    if (!told) me.Tell(status);
  }
}

absl::Status BeClient(const std::string& device, const std::string& address,
                      const Crowd::Member& me) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.device = device}));
  Channel channel(*runtime, address);
  runtime->BlockOn(ReadBesideAStream(channel, me));
  return absl::OkStatus();
}

absl::StatusOr<Duration> ShutDownBeside(const std::string& device, int clients, Duration grace) {
  const HeldAddress address;
  VERBENA_ASSIGN_OR_RETURN(GuidedServer server, GuidedServer::Start(device, address.text()));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Crowd> crowd,
                           Crowd::Start(clients, /*signals=*/0, [&](Crowd::Member& me) {
                             return BeClient(device, address.text(), me);
                           }));
  VERBENA_RETURN_IF_ERROR(crowd->AwaitAll(clients).status());
  VERBENA_RETURN_IF_ERROR(crowd->Freeze());
  return server.ShutDown(grace);
}

}  // namespace

absl::Status MeasureFrozen(const std::string& device, int clients, Duration grace, Report& report) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  VERBENA_ASSIGN_OR_RETURN(const Duration floor, ShutDownBeside(device, 1, grace));
  VERBENA_ASSIGN_OR_RETURN(const Duration took, ShutDownBeside(device, clients, grace));
  Row row{.bench = "shutdown",
          .device = RunsOverTcp(device) ? "tcp" : "shm",
          .mode = "adaptive",
          .size = kReadBytes,
          .outstanding = clients,
          .p50_us = Microseconds(took).count(),
          .floor_p50_us = Microseconds(floor).count()};
  row.extra = {{"clients", clients},
               {"grace_s", Microseconds(grace).count() / 1e6},
               {"beyond_grace_ms", Microseconds(took - grace).count() / 1e3}};
  report.Add(row);
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks
