// TcpWire: what a peer may claim: its name, and its share of what the device has.

#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {
namespace {

// Between two looks for lanes that are over, which take a few microseconds for each CQ. (start)
constexpr Duration kSweepPause = std::chrono::milliseconds(10);
// In-lanes of one CQ: as many as it has activity bits.
constexpr uint64_t kMaxLanesOfCq = CqControl::kActivityWords * 64;

// Connections that have greeted, and those that are dialed: three quarters of the descriptors that
// this process may have. It may change the limit at any time.
uint64_t MaxSockets() {
  constexpr uint64_t kUnlimited = 1u << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kUnlimited;
  return std::min<uint64_t>(limit.rlim_cur, kUnlimited) / 4 * 3;
}

}  // namespace

uint64_t TcpWire::NewTcpSecret() {
  uint64_t secret = 0;
  if (getrandom(&secret, sizeof(secret), 0) != static_cast<ssize_t>(sizeof(secret))) {
    secret = uint64_t{std::random_device()()} << 32 | std::random_device()();
  }
  return secret;
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeShare(
    const ibv_gid& source, std::initializer_list<TcpShares::Wanted> wanted) {
  absl::StatusOr<TcpShares::Share> share = shares_.Take(source, wanted);
  if (!share.ok() && now_ >= sweep_again_) {
    // Lanes that are over hold their memory until somebody looks.
    sweep_again_ = SaturatingAdd(now_, kSweepPause);
    rnic_.SweepLanes();
    share = shares_.Take(source, wanted);
  }
  if (!share.ok()) {
    logs_.refused.Write(LogLevel::kWarning, now_,
                        fmt::format("{} keeps a share of what it has for other hosts: {}",
                                    rnic_.name(), std::string(share.status().message())));
  }
  return share;
}

absl::StatusOr<TcpShares::Share> TcpWire::TakePeer(const ibv_gid& source) {
  return TakeShare(source, {{.kind = TcpShares::Kind::kPeers, .limit = kMaxSessions},
                            {.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()}});
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeSocket(const ibv_gid& source) {
  return TakeShare(source, {{.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()}});
}

absl::StatusOr<TcpShares::Share> TcpWire::TakeLanes(const ibv_gid& source, uint64_t cq,
                                                    const LaneGeometry& theirs) {
  const uint64_t bytes = BytesOf(rnic_.tcp_lane_geometry()) + BytesOf(theirs);
  return TakeShare(source, {{.kind = TcpShares::Kind::kSockets, .limit = MaxSockets()},
                            {.kind = TcpShares::Kind::kLanes, .limit = kMaxLanesOfCq, .cq = cq},
                            {.kind = TcpShares::Kind::kLaneBytes,
                             .amount = bytes,
                             .limit = rnic_.tcp_options().lane_bytes}});
}

bool TcpWire::MayHaveThatName(const TcpWireConnection& connection, const TcpGreeting& greeting) {
  if (rnic_.tcp_options().any_source.value_or(false) ||
      MayHaveName(connection.source, greeting.sender.gid)) {
    return true;
  }
  logs_.refused.Write(
      LogLevel::kWarning, now_,
      fmt::format("{} refuses a device at {} that claims the GID of {}; "
                  "VERBENA_SOFT_ANY_SOURCE=1 allows it",
                  rnic_.name(), IpText(connection.source.address), IpText(greeting.sender.gid)));
  return false;
}

// Somebody else says that it has the name of a peer. Whoever listens under that name knows.
void TcpWire::Probe(TcpSession& session) {
  if (session.dialing != 0 || now_ < session.probe_again) return;
  session.probe_again = SaturatingAdd(now_, kProbePause);
  Dial(session, TcpGreeting::Kind::kControl, {});
}

absl::Status TcpWire::OnProbed(TcpSession& session, TcpWireConnection& connection,
                               const TcpGreeting& greeting) {
  // A peer that has the session refuses a second one.
  if (greeting.verdict != TcpGreeting::Verdict::kAccepted) {
    return absl::AbortedError("the peer stands by its session");
  }
  if (greeting.kind != TcpGreeting::Kind::kControl || greeting.sender != session.address) {
    return absl::InvalidArgumentError(fmt::format(
        "{} answers under {}", AddressText(greeting.sender), AddressText(session.address)));
  }
  const DeviceAddress address = session.address;
  // The session that ends does not take this connection along.
  session.dialing = 0;
  connection.address = {};
  EndSession(address, absl::AbortedError("another device listens under its name"));
  connection.address = address;
  connection.share.reset();
  VERBENA_ASSIGN_OR_RETURN(TcpShares::Share share, TakePeer(address.gid));
  TcpSession& owners = AddSession(address, std::move(share));
  owners.our_secret = connection.secret;
  owners.dialed = true;
  return OpenSession(owners, connection, greeting.session);
}

}  // namespace verbena::internal::soft
