#include "verbena/rpc/server_shard.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/coro/poison.h"
#include "verbena/transport/log/log.h"

namespace verbena {
namespace {

// How long a shutdown waits for clients to close links that have nothing left to do.
constexpr Duration kCloseGrace = std::chrono::seconds(1);

}  // namespace

ServerShard::ServerShard(Shard& shard, const MethodTable& methods, uint32_t max_concurrent_calls)
    : shard_(shard),
      methods_(methods),
      max_concurrent_calls_(max_concurrent_calls),
      free_(methods.size()),
      tasks_(shard.executor()) {}

ServerShard::~ServerShard() {
  for (const auto& calls : free_) {
    for (ServerCall* call : calls) UnpoisonMemory(call, sizeof(*call));
  }
}

void ServerShard::Serve(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  tasks_.Spawn(Accept(std::move(stream), std::move(offer)));
}

Task<void> ServerShard::Accept(std::unique_ptr<MessageStream> stream, LinkParameters offer) {
  finished_.clear();
  const uint64_t number = ++accepted_;
  auto owned = std::make_unique<ServerLink>(*this, stream->peer(), number);
  ServerLink* server_link = owned.get();
  links_.push_back(std::move(owned));
  absl::StatusOr<Link*> link = co_await Open(std::move(stream), std::move(offer), *server_link);
  if (link.ok()) {
    server_link->Attach(**link);
    if (draining_) server_link->SendGoAway();
    co_return;
  }
  Log(LogLevel::kInfo, fmt::format("a link was not accepted: {}", link.status().ToString()));
  // Lost after it was open, OnLinkDown() has taken it off already, or will OnCallDone(). Then it
  // may be freed by now, and another be at its address.
  std::erase_if(links_,
                [number](const auto& each) { return each->number() == number && each->idle(); });
}

// On the device of the kind that the client offers.
Task<absl::StatusOr<Link*>> ServerShard::Open(std::unique_ptr<MessageStream> stream,
                                              LinkParameters offer, ServerLink& link) {
  absl::StatusOr<Endpoint*> endpoint = shard_.EndpointFor(offer.kind);
  if (endpoint.ok()) {
    co_return co_await (*endpoint)->Accept(std::move(stream), std::move(offer), link);
  }
  absl::Status told =
      co_await WithDeadline(RefuseOffer(*stream, endpoint.status()),
                            executor().now() + shard_.wanted_limits().connect_timeout);
  if (!told.ok()) Log(LogLevel::kInfo, told.ToString());
  co_return endpoint.status();
}

absl::Status ServerShard::Refusal(uint64_t method_id) {
  ++stats_.refused;
  ++stats_.failures;
  if (draining_) return absl::UnavailableError("the server is shutting down");
  if (methods_.Find(method_id) < 0) {
    return absl::UnimplementedError(
        fmt::format("this server has no method with id {:#x}", method_id));
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} calls run on this executor, the most that it takes", active_));
}

ServerCall* ServerShard::AddCall(int method_index) {
  calls_.push_back(std::make_unique<ServerCall>(*this, method_index));
  BoundedVector<ServerCall*>& pool = free_[method_index];
  pool.Reserve(pool.capacity() + 1);
  return calls_.back().get();
}

void ServerShard::OnLinkDown(ServerLink& link) {
  if (link.idle()) OnLinkIdle(link);
}

void ServerShard::OnLinkIdle(ServerLink& link) {
  auto found = std::find_if(links_.begin(), links_.end(),
                            [&link](const auto& each) { return each.get() == &link; });
  if (found == links_.end()) return;
  finished_.push_back(std::move(*found));
  links_.erase(found);
  if (links_.empty() && draining_) unlinked_.Set();
}

void ServerShard::ReclaimLandings(const Endpoint& endpoint) {
  for (const auto& link : links_) {
    if (link->link() != nullptr && &link->link()->endpoint() == &endpoint) link->RevokeLandings();
  }
}

Task<absl::Status> ServerShard::WaitUntilIdle() {
  if (active_ == 0) co_return absl::OkStatus();
  co_return co_await idle_.Wait();
}

Task<absl::Status> ServerShard::WaitUntilUnlinked() {
  if (links_.empty()) co_return absl::OkStatus();
  co_return co_await unlinked_.Wait();
}

Task<void> ServerShard::Shutdown(Duration grace) {
  draining_ = true;
  for (const auto& link : links_) link->SendGoAway();
  absl::Status drained = co_await WithDeadline(WaitUntilIdle(), executor().now() + grace);
  if (!drained.ok()) {
    Log(LogLevel::kWarning,
        fmt::format("{} calls are cancelled, which did not end within the grace of the shutdown",
                    active_));
    for (const auto& link : links_) link->CancelAll();
    (void)co_await WaitUntilIdle();
  }
  // A client closes its link once it has its last response, which proves that it does; who does not
  // is not waited for.
  (void)co_await WithDeadline(WaitUntilUnlinked(), executor().now() + kCloseGrace);
  std::vector<Link*> open;
  for (const auto& link : links_) {
    if (link->link() != nullptr) open.push_back(link->link());
  }
  for (Link* link : open) link->Close(absl::UnavailableError("the server shut down"));
  tasks_.RequestCancel();
  co_await tasks_.Join();
}

}  // namespace verbena
