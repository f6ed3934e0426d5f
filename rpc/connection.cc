#include "verbena/rpc/connection.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/connect_order.h"
#include "verbena/rpc/shard.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/random.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// Spreads reconnects of many clients: 80% to 120% of `backoff`.
Duration Jittered(Duration backoff) {
  return backoff * static_cast<int64_t>(80 + Random::Real().Next() % 41) / 100;
}

// Whether the attempt failed for a reason that may lie in the device. An overloaded or silent
// server is no different over another one.
bool MayGoOverAnotherDevice(const absl::Status& failure) {
  return !absl::IsResourceExhausted(failure) && !absl::IsCancelled(failure) &&
         !absl::IsDeadlineExceeded(failure);
}

}  // namespace

Connection::Connection(Shard& shard, std::string target, uint32_t server_executor)
    : shard_(shard), target_(std::move(target)), server_executor_(server_executor) {}

Connection::~Connection() = default;

Task<absl::Status> Connection::Ready() {
  while (usable_link() == nullptr) {
    if (!connecting_) {
      if (shard_.executor().now() < next_attempt_) co_return last_error_;
      connecting_ = true;
      // Not the caller's own task: other callers wait for the same attempt.
      shard_.tasks().Spawn(Attempt());
    }
    if (absl::Status waited = co_await attempt_ended_.Wait(); !waited.ok()) co_return waited;
    if (!last_error_.ok()) co_return last_error_;
  }
  co_return absl::OkStatus();
}

Task<void> Connection::Attempt() {
  std::erase_if(retired_, [](const auto& link) { return link->link() == nullptr; });
  last_error_ = co_await TryConnect();
  connecting_ = false;
  if (last_error_.ok()) {
    backoff_ = kInitialBackoff;
  } else {
    next_attempt_ = shard_.executor().now() + Jittered(backoff_);
    backoff_ = std::min(backoff_ * 2, kMaxBackoff);
  }
  attempt_ended_.Set();
  attempt_ended_.Reset();
}

Task<absl::Status> Connection::TryConnect() {
  absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await OpenStream();
  if (!stream.ok()) co_return stream.status();
  const std::vector<size_t> order = ConnectOrder(shard_.kinds(), (*stream)->same_host());
  absl::Status last;
  std::string failures;
  for (size_t i = 0; i < order.size(); ++i) {
    // A stream serves one attempt.
    if (i > 0) {
      stream = co_await OpenStream();
      if (!stream.ok()) co_return stream.status();
    }
    last = co_await ConnectOver(order[i], std::exchange(*stream, nullptr));
    if (last.ok() || !MayGoOverAnotherDevice(last)) co_return last;
    failures += fmt::format("{}{}: {}", i == 0 ? "" : "; ", LinkKindName(shard_.kinds()[order[i]]),
                            std::string(last.message()));
  }
  if (order.size() == 1) co_return last;
  co_return absl::Status(last.code(), fmt::format("no device reaches {}: {}", target_, failures));
}

[[clang::coro_wrapper]] Task<absl::StatusOr<std::unique_ptr<MessageStream>>>
Connection::OpenStream() {
  return WithDeadline(shard_.bootstrap().Connect(target_),
                      shard_.executor().now() + shard_.wanted_limits().connect_timeout);
}

Task<absl::Status> Connection::ConnectOver(size_t device, std::unique_ptr<MessageStream> stream) {
  absl::StatusOr<Endpoint*> endpoint = shard_.EndpointOn(device);
  if (!endpoint.ok()) {
    // Another device may have what this one lacks, RESOURCE_EXHAUSTED or not.
    if (shard_.kinds().size() == 1) co_return endpoint.status();
    co_return absl::FailedPreconditionError(std::string(endpoint.status().message()));
  }
  auto client = std::make_unique<ClientLink>(static_cast<ClientLink::Owner&>(*this));
  absl::StatusOr<Link*> link =
      co_await (*endpoint)->Connect(std::move(stream), *client, server_executor_);
  if (!link.ok()) co_return link.status();
  client->Attach(**link);
  current_ = std::move(client);
  Log(LogLevel::kInfo, fmt::format("connected to {} over {} (QPN {:#x})", target_,
                                   (*endpoint)->device_name(), (*link)->qpn()));
  co_return absl::OkStatus();
}

void Connection::OnClientLinkDown(ClientLink& link, const absl::Status&) {
  late_responses_ += link.stats().late_responses;
  if (current_.get() == &link) retired_.push_back(std::move(current_));
}

void Connection::OnClientLinkDraining(ClientLink& link) {
  if (current_.get() == &link) retired_.push_back(std::move(current_));
  if (link.calls_in_flight() == 0) OnClientLinkIdle(link);
}

void Connection::OnClientLinkIdle(ClientLink& link) {
  link.link()->Close(absl::UnavailableError("the server is shutting down"));
}

uint64_t Connection::late_responses() const {
  return late_responses_ + (current_ != nullptr ? current_->stats().late_responses : 0);
}

}  // namespace verbena
