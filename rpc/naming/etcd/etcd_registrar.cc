#include "verbena/rpc/naming/etcd/etcd_registrar.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/run_blocking.h"

namespace verbena::internal {
namespace {

constexpr Duration kFirstRegistrationPause = std::chrono::milliseconds(100);
// Short beside the least time to live, so that a short loss of etcd costs no lease.
constexpr Duration kLongestRegistrationPause = std::chrono::seconds(2);

}  // namespace

EtcdRegistrar::EtcdRegistrar(EtcdOptions options, std::string key, std::string value, Duration ttl)
    : options_(std::move(options)),
      key_(std::move(key)),
      value_(std::move(value)),
      ttl_(ttl),
      pause_(kFirstRegistrationPause, kLongestRegistrationPause) {}

EtcdRegistrar::EtcdRegistrar(std::unique_ptr<EtcdClient> client, std::string key, std::string value,
                             Duration ttl, Random& random)
    : key_(std::move(key)),
      value_(std::move(value)),
      ttl_(ttl),
      client_(std::move(client)),
      pause_(kFirstRegistrationPause, kLongestRegistrationPause, random) {}

Task<void> EtcdRegistrar::Run() {
  for (;;) {
    absl::Status status = co_await Register();
    if (status.ok()) {
      pause_.Reset();
      last_failure_.clear();
      registered_ = true;
      Log(LogLevel::kInfo, fmt::format("registered in etcd as {}", key_));
      status = co_await Keep();
      registered_ = false;
      if (absl::IsNotFound(status)) {
        Log(LogLevel::kWarning, fmt::format("etcd's lease of {} has ended: register again", key_));
        continue;
      }
    }
    if (!co_await Pause(status)) co_return;
  }
}

Task<bool> EtcdRegistrar::Pause(const absl::Status& failure) {
  const CancelScope* cancel = (co_await CurrentContext()).cancel;
  if (cancel != nullptr && cancel->requested()) co_return false;
  std::string why(failure.message());
  if (why != last_failure_) {
    Log(LogLevel::kWarning, fmt::format("{} is not kept in etcd: {}", key_, why));
    last_failure_ = std::move(why);
  }
  co_return (co_await Sleep(pause_.Next())).ok();
}

Task<absl::Status> EtcdRegistrar::Register() {
  if (client_ == nullptr) {
    // Reads files of certificates.
    VERBENA_CO_ASSIGN_OR_RETURN(
        client_, co_await RunBlocking([this] { return EtcdClient::Start(options_); }));
  }
  // A lease whose key could not be put is used again. If etcd has ended it, the next one is new.
  if (lease_ == 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(const EtcdLease lease, co_await client_->GrantLease(ttl_));
    lease_ = lease.id;
  }
  const absl::Status put = (co_await client_->Commit(EtcdTxn().Put(key_, value_, lease_))).status();
  if (absl::IsNotFound(put)) lease_ = 0;
  co_return put;
}

Task<absl::Status> EtcdRegistrar::Keep() {
  for (;;) {
    VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(ttl_ / 3));
    for (;;) {
      const absl::Status kept = co_await KeepOnce();
      if (kept.ok()) break;
      if (absl::IsNotFound(kept)) {
        lease_ = 0;
        co_return kept;
      }
      if (!co_await Pause(kept)) co_return kept;
    }
    pause_.Reset();
    last_failure_.clear();
  }
}

Task<absl::Status> EtcdRegistrar::KeepOnce() {
  VERBENA_CO_RETURN_IF_ERROR((co_await client_->KeepAlive(lease_)).status());
  co_return (co_await client_->Commit(EtcdTxn().IfAbsent(key_).Put(key_, value_, lease_))).status();
}

Task<absl::Status> EtcdRegistrar::Remove() {
  registered_ = false;
  // Nothing was put, as far as is known; a key that was put nevertheless goes with its lease.
  if (lease_ == 0) co_return absl::OkStatus();
  const absl::Status revoked = co_await client_->Revoke(std::exchange(lease_, 0));
  co_return absl::IsNotFound(revoked) ? absl::OkStatus() : revoked;
}

}  // namespace verbena::internal
