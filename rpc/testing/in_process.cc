#include "verbena/rpc/testing/in_process.h"

#include <cstdlib>

#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"

namespace verbena::testing {
namespace {

// Time may pass faster than a peer can answer a PING or end a handshake. What the user has set
// stays.
void BearJumps(LinkLimits& limits) {
  constexpr std::chrono::hours kBeyondAnyTest(24 * 365);
  const LinkLimits defaults;
  if (limits.ping_interval == defaults.ping_interval) limits.ping_interval = kBeyondAnyTest;
  if (limits.connect_timeout == defaults.connect_timeout) limits.connect_timeout = kBeyondAnyTest;
  if (limits.idle_timeout == defaults.idle_timeout) limits.idle_timeout = Duration::zero();
}

}  // namespace

InProcessServer::InProcessServer(InProcessOptions options) : options_(std::move(options)) {
  RuntimeOptions& runtime = options_.runtime;
  if (runtime.device == "auto" && std::getenv("VERBENA_DEVICE") == nullptr) runtime.device = "soft";
  if (options_.fake_clock) {
    VERBENA_CHECK(runtime.clock == nullptr)
        << "InProcessOptions gives a clock of its own, and asks for a fake one";
    clock_ = std::make_unique<FakeClock>();
    runtime.clock = clock_.get();
    BearJumps(runtime.limits);
  }
  absl::StatusOr<std::unique_ptr<Runtime>> started = Runtime::Start(runtime);
  VERBENA_CHECK(started.ok()) << "the runtime did not start: " << started.status().ToString();
  runtime_ = *std::move(started);
}

InProcessServer::~InProcessServer() { Stop(); }

void InProcessServer::Serve(const std::vector<Service*>& services) {
  VERBENA_CHECK(server_ == nullptr) << "call Stop() before Serve() again";
  absl::StatusOr<std::unique_ptr<Server>> started =
      Server::Start(*runtime_, services, options_.server);
  VERBENA_CHECK(started.ok()) << "the server did not start: " << started.status().ToString();
  server_ = *std::move(started);
  channel_ = std::make_unique<Channel>(*runtime_, server_->address(), options_.channel);
}

void InProcessServer::Stop() {
  // Handlers and links that end in their own time need a clock that runs.
  if (clock_ != nullptr) clock_->Run();
  channel_.reset();
  server_.reset();
}

void InProcessServer::Advance(Duration by) {
  VERBENA_CHECK(clock_ != nullptr) << "set InProcessOptions::fake_clock to move time";
  clock_->Advance(*runtime_, by);
}

}  // namespace verbena::testing
