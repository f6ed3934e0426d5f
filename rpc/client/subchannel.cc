#include "verbena/rpc/client/subchannel.h"

#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {

Subchannel::Subchannel(SubchannelOwner& owner, Connections& connections, ResolvedServer server,
                       uint32_t id, uint32_t executor)
    : owner_(owner),
      connections_(connections),
      server_(std::move(server)),
      id_(id),
      executor_(executor),
      hash_(executor == 0 ? StableHash(server_.name)
                          : MixBits(StableHash(server_.name) + executor)) {}

Subchannel::~Subchannel() {
  VERBENA_CHECK(connection_ == nullptr) << server_.name << " is destroyed while it is open";
}

void Subchannel::Open(const ExecutorWish& wish) {
  if (connection_ != nullptr) return;
  refusal_ = absl::OkStatus();
  outlier_ = {};
  const std::vector<std::string> others(server_.addresses.begin() + 1, server_.addresses.end());
  connection_ = &connections_.To(server_.addresses.front(), wish, others);
  connection_->AddListener(*this);
  task_ = KeepConnected();
  task_.StartLater(connection_->shard().executor(), nullptr, this);
  // Another channel may have connected already.
  owner_.OnReadiness();
}

void Subchannel::Close(Connections::End end) {
  if (connection_ == nullptr) return;
  task_ = {};
  connection_->RemoveListener(*this);
  connections_.Release(*std::exchange(connection_, nullptr), end);
  owner_.OnReadiness();
}

Task<void> Subchannel::KeepConnected() {
  Connection& connection = *connection_;
  const Shard& shard = connection.shard();
  while (!shard.closing()) {
    const absl::Status ready = co_await connection.Ready();
    if (shard.closing()) break;
    if (ready.ok()) {
      const TimePoint opened = shard.executor().now();
      warned_ = false;
      owner_.OnReady(*this);
      if (connection.usable_session() != nullptr) {
        lost_.Reset();
        (void)co_await lost_.Wait();
      }
      const TimePoint next = PauseAfter(opened);
      if (!flapping_.ok()) owner_.OnFailed(*this);
      (void)co_await SleepUntil(next);
    } else {
      if (!std::exchange(warned_, true)) {
        Log(LogLevel::kWarning, fmt::format("the server {} of a set cannot be reached: {}",
                                            server_.name, std::string(ready.message())));
      }
      owner_.OnFailed(*this);
      (void)co_await SleepUntil(connection.next_attempt());
    }
  }
}

TimePoint Subchannel::PauseAfter(TimePoint opened) {
  const TimePoint now = connection_->shard().executor().now();
  if (now - opened >= Connection::kMaxBackoff) {
    flaps_ = 0;
    flapping_ = absl::OkStatus();
    flap_backoff_.Reset();
    return now;
  }
  // One may be a restart.
  if (++flaps_ > 1) {
    flapping_ = absl::UnavailableError(
        fmt::format("{} lost {} links soon after they opened", server_.name, flaps_));
  }
  return SaturatingAdd(now, flap_backoff_.Next());
}

void Subchannel::OnReadiness(Connection& connection) {
  if (connection.usable_session() == nullptr) lost_.Set();
  owner_.OnReadiness();
}

ChannelServer Subchannel::Describe() const {
  if (connection_ == nullptr) return {.server = server_, .last_error = refusal_};
  ChannelServer described = DescribeConnection(*connection_, server_);
  if (described.state != ChannelServer::State::kReady && !flapping_.ok()) {
    described.state = ChannelServer::State::kFailing;
    described.last_error = flapping_;
  }
  if (described.state == ChannelServer::State::kReady && outlier_.ejected) {
    described.state = ChannelServer::State::kEjected;
    described.last_error = absl::UnavailableError(
        fmt::format("{} takes no calls for a while: {}", server_.name, outlier_.why));
  }
  // Its Task connects.
  if (described.state == ChannelServer::State::kIdle) {
    described.state = ChannelServer::State::kConnecting;
  }
  return described;
}

ChannelServer DescribeConnection(const Connection& connection, ResolvedServer server) {
  using State = ChannelServer::State;
  ChannelServer described{.server = std::move(server),
                          .in_flight = connection.calls_in_flight(),
                          .failures = connection.failures(),
                          .last_error = connection.last_error()};
  if (connection.usable_session() != nullptr) {
    described.state = State::kReady;
  } else if (!connection.last_error().ok()) {
    described.state = State::kFailing;
  } else if (connection.connecting()) {
    described.state = State::kConnecting;
  }
  return described;
}

}  // namespace verbena::internal
