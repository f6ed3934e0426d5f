#include "verbena/rpc/naming/etcd/client.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/http.h"
#include "verbena/rpc/naming/etcd/messages.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/mailbox.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/blocking.h"

namespace verbena {
namespace {

using internal::EtcdAnswer;
using internal::EtcdExchange;

// The thread that reads small files and large answers for all clients. The threads of RunBlocking()
// may be busy for long with what servers do for their clients. A lease that waited for them would
// end, and a channel would find no servers. Never destroyed.
BlockingPool& Reader() {
  static BlockingPool* reader = new BlockingPool(1);
  // A child of fork() has a copy whose thread is not there, so it begins with none.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { reader = new BlockingPool(1); });
  return *reader;
}

template <typename Read>
VERBENA_CORO_WRAPPER auto ReadElsewhere(Read read) {
  return internal::RunBlockingOn(Reader(), std::move(read));
}

// Larger answers take an executor milliseconds to read.
constexpr size_t kReadHere = size_t{64} << 10;

// Whether etcd may have done what was asked, although it answers with an error. RESOURCE_EXHAUSTED
// is not among those that say no: the transaction that fills etcd's quota is applied, and then
// answered with "database space exceeded".
Outcome OutcomeOfAnswer(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return Outcome::kNotExecuted;
    default:
      return Outcome::kMaybeExecuted;
  }
}

absl::Status Explained(const EtcdAnswer& answer, const char* path, const absl::Status& status,
                       Outcome outcome) {
  return WithOutcome(absl::Status(status.code(), fmt::format("etcd at {}, {}: {}", answer.endpoint,
                                                             path, std::string(status.message()))),
                     outcome);
}

absl::Status NoAnswer(const EtcdAnswer& answer, const char* path) {
  return Explained(answer, path, absl::UnavailableError(answer.text),
                   answer.sent ? Outcome::kMaybeExecuted : Outcome::kNotExecuted);
}

// The exchange's next answer; a Status if none came or etcd reported a failure.
Task<absl::StatusOr<EtcdAnswer>> Take(EtcdExchange& exchange, const char* path) {
  VERBENA_CO_ASSIGN_OR_RETURN(EtcdAnswer answer, co_await exchange.answers().Pop());
  exchange.Took(answer.text.size());
  if (answer.http_status == 0) co_return NoAnswer(answer, path);
  if (answer.http_status != 200) {
    const absl::Status why = internal::DecodeFailure(answer.http_status, answer.text);
    // Such as an endpoint that has lost its leader.
    if (absl::IsUnavailable(why)) exchange.Avoid();
    co_return Explained(answer, path, why, OutcomeOfAnswer(why.code()));
  }
  co_return answer;
}

// Decodes an answer. Another thread reads a large one, if there is one, and to the end also when
// the caller cancels: etcd has answered, so what it says is not lost.
template <typename Result>
Task<absl::StatusOr<Result>> Decoded(const std::string& text,
                                     absl::StatusOr<Result> (*decode)(std::string_view)) {
  absl::StatusOr<Result> result;
  const auto read = [&] { result = decode(text); };
  if (text.size() <= kReadHere) {
    read();
    co_return result;
  }
  try {
    co_await ReadElsewhere(read);
  } catch (const std::system_error&) {
    // There is no other thread.
    read();
  }
  co_return result;
}

constexpr const char* kRange = "/v3/kv/range";
constexpr const char* kTxn = "/v3/kv/txn";
constexpr const char* kWatch = "/v3/watch";

// Blocks. The first line of the file.
absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  std::ifstream file(path);
  std::string password;
  if (!std::getline(file, password) || password.empty()) {
    return WithOutcome(
        absl::InvalidArgumentError(fmt::format(
            "EtcdOptions::password_file: {} cannot be read, or its first line is empty", path)),
        Outcome::kNotExecuted);
  }
  return password;
}

// Etcd has changed nothing, and may do so after a login: the token is too old, or of before a
// change of users and roles.
bool IsTokenRefused(const absl::Status& status) {
  return absl::IsUnauthenticated(status) ||
         (absl::IsInvalidArgument(status) &&
          status.message().find("revision of auth store is old") != std::string::npos);
}

// The same of a watch. Etcd 3.4 refuses one whose token it does not know as one without permission.
bool IsWatchRefused(const absl::Status& status) {
  return IsTokenRefused(status) || absl::IsPermissionDenied(status);
}

std::string Base64(const std::string& bytes) { return absl::Base64Escape(bytes); }

}  // namespace

EtcdTxn& EtcdTxn::IfAbsent(std::string key) {
  conditions_.push_back({std::move(key), Target::kVersion, "0"});
  return *this;
}
EtcdTxn& EtcdTxn::IfModRevision(std::string key, int64_t revision) {
  conditions_.push_back({std::move(key), Target::kModRevision, fmt::format("{}", revision)});
  return *this;
}
EtcdTxn& EtcdTxn::IfValue(std::string key, std::string value) {
  conditions_.push_back({std::move(key), Target::kValue, std::move(value)});
  return *this;
}
EtcdTxn& EtcdTxn::IfLease(std::string key, int64_t lease) {
  conditions_.push_back({std::move(key), Target::kLease, fmt::format("{}", lease)});
  return *this;
}
EtcdTxn& EtcdTxn::Put(std::string key, std::string value, int64_t lease) {
  changes_.push_back({.key = std::move(key), .value = std::move(value), .lease = lease});
  return *this;
}
EtcdTxn& EtcdTxn::Delete(std::string key) {
  changes_.push_back({.key = std::move(key), .deletes = true});
  return *this;
}
EtcdTxn& EtcdTxn::OrGet(std::string key) {
  reads_.push_back(std::move(key));
  return *this;
}

std::string EtcdTxn::Encode() const {
  // By Target.
  constexpr const char* kTargets[] = {"VERSION", "MOD", "VALUE", "LEASE"};
  constexpr const char* kFields[] = {"version", "mod_revision", "value", "lease"};
  std::string body = R"({"compare":[)";
  const char* comma = "";
  for (const Condition& each : conditions_) {
    const auto target = static_cast<size_t>(each.target);
    body += fmt::format(R"({}{{"key":"{}","target":"{}","result":"EQUAL","{}":"{}"}})", comma,
                        Base64(each.key), kTargets[target], kFields[target],
                        each.target == Target::kValue ? Base64(each.value) : each.value);
    comma = ",";
  }
  body += R"(],"success":[)";
  comma = "";
  for (const Change& each : changes_) {
    body +=
        each.deletes
            ? fmt::format(R"({}{{"request_delete_range":{{"key":"{}"}}}})", comma, Base64(each.key))
            : fmt::format(R"({}{{"request_put":{{"key":"{}","value":"{}","lease":"{}"}}}})", comma,
                          Base64(each.key), Base64(each.value), each.lease);
    comma = ",";
  }
  body += R"(],"failure":[)";
  comma = "";
  for (const std::string& each : reads_) {
    body += fmt::format(R"({}{{"request_range":{{"key":"{}"}}}})", comma, Base64(each));
    comma = ",";
  }
  return body + "]}";
}

namespace internal {

std::unique_ptr<EtcdClient> EtcdCore::MakeClient(std::unique_ptr<EtcdWire> wire,
                                                 const EtcdOptions& options) {
  return std::unique_ptr<EtcdClient>(
      new EtcdClient(std::make_unique<EtcdCore>(std::move(wire), options)));
}

Task<absl::StatusOr<std::unique_ptr<EtcdClient>>> EtcdCore::StartClient(EtcdOptions options) {
  co_return co_await ReadElsewhere([&options] { return EtcdClient::Start(options); });
}

EtcdCore::EtcdCore(std::unique_ptr<EtcdWire> wire, const EtcdOptions& options)
    : wire_(std::move(wire)), user_(options.user), password_file_(options.password_file) {}

template <typename Result>
Task<absl::StatusOr<Result>> EtcdCore::Ask(const char* path, std::string body,
                                           absl::StatusOr<Result> (*decode)(std::string_view)) {
  if (!has_user()) co_return co_await AskOnce(path, std::move(body), decode);
  if (needs_login()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await LogIn());
  }
  absl::StatusOr<Result> result = co_await AskOnce(path, body, decode);
  if (!IsTokenRefused(result.status())) co_return result;
  VERBENA_CO_RETURN_IF_ERROR(co_await LogIn());
  co_return co_await AskOnce(path, std::move(body), decode);
}

Task<absl::Status> EtcdCore::LogIn() {
  const absl::StatusOr<std::string> password =
      co_await ReadElsewhere([this] { return ReadPassword(password_file_); });
  // The request that waits for this has not been sent.
  VERBENA_CO_RETURN_IF_ERROR(WithOutcome(password.status(), Outcome::kNotExecuted));
  absl::StatusOr<std::string> token =
      co_await AskOnce("/v3/auth/authenticate", EncodeLogin(user_, *password), &DecodeLogin);
  // An etcd that demands no login yet: clients are told of their user first.
  if (absl::IsFailedPrecondition(token.status())) co_return absl::OkStatus();
  VERBENA_CO_RETURN_IF_ERROR(WithOutcome(token.status(), Outcome::kNotExecuted));
  std::lock_guard lock(mutex_);
  token_ = *std::move(token);
  co_return absl::OkStatus();
}

std::string EtcdCore::Token() const {
  std::lock_guard lock(mutex_);
  return token_;
}

template <typename Result>
Task<absl::StatusOr<Result>> EtcdCore::AskOnce(const char* path, std::string body,
                                               absl::StatusOr<Result> (*decode)(std::string_view)) {
  const std::unique_ptr<EtcdExchange> exchange =
      wire_->Post({.path = path, .body = std::move(body), .token = Token()});
  const absl::StatusOr<EtcdAnswer> taken = co_await Take(*exchange, path);
  if (!taken.ok()) co_await NoteFailure(taken.status());
  VERBENA_CO_RETURN_IF_ERROR(taken.status());
  const EtcdAnswer& answer = *taken;
  absl::StatusOr<Result> result = co_await Decoded(answer.text, decode);
  if (!result.ok()) {
    co_return Explained(answer, path, result.status(), OutcomeOfAnswer(result.status().code()));
  }
  co_return result;
}

Task<void> EtcdCore::NoteFailure(const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !wire_->has_files()) co_return;
  // A certificate may have run out, here or there, while its successor lies in the file already.
  (void)co_await ReadElsewhere([this] { return wire_->ReadFiles(); });
}

std::unique_ptr<EtcdExchange> EtcdCore::Watch(std::string body) {
  return wire_->Post({.path = kWatch, .body = std::move(body), .token = Token(), .watches = true});
}

}  // namespace internal

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Start(const EtcdOptions& options) {
  if (options.user.empty() != options.password_file.empty()) {
    return absl::InvalidArgumentError(
        "EtcdOptions::user and password_file go together: give both, or none");
  }
  if (!options.user.empty()) {
    VERBENA_RETURN_IF_ERROR(ReadPassword(options.password_file).status());
  }
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<internal::EtcdWire> wire,
                           internal::StartHttpWire(options, {.answer_bytes = kMaxAnswerBytes,
                                                             .endpoints = kMaxEndpoints}));
  return internal::EtcdCore::MakeClient(std::move(wire), options);
}

EtcdClient::EtcdClient(std::unique_ptr<internal::EtcdCore> core) : core_(std::move(core)) {}
EtcdClient::~EtcdClient() = default;

Task<absl::StatusOr<EtcdRange>> EtcdClient::Get(std::string key) {
  co_return co_await core_->Ask(
      kRange, internal::EncodeRange(key, internal::EtcdRangeKind::kKey, 0), &internal::DecodeRange);
}

Task<absl::StatusOr<EtcdRange>> EtcdClient::List(std::string prefix, size_t most) {
  co_return co_await core_->Ask(
      kRange, internal::EncodeRange(prefix, internal::EtcdRangeKind::kPrefix, most),
      &internal::DecodeRange);
}

Task<absl::StatusOr<EtcdRange>> EtcdClient::Newest(std::string prefix) {
  co_return co_await core_->Ask(kRange,
                                internal::EncodeRange(prefix, internal::EtcdRangeKind::kNewest, 1),
                                &internal::DecodeRange);
}

Task<absl::StatusOr<EtcdTxnResult>> EtcdClient::Commit(EtcdTxn txn) {
  co_return co_await core_->Ask(kTxn, txn.Encode(), &internal::DecodeTxn);
}

Task<absl::StatusOr<EtcdLease>> EtcdClient::GrantLease(Duration ttl) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(ttl).count();
  co_return co_await core_->Ask("/v3/lease/grant",
                                internal::EncodeGrant(std::max<int64_t>(seconds, 1)),
                                &internal::DecodeGrant);
}

Task<absl::StatusOr<EtcdLease>> EtcdClient::KeepAlive(int64_t lease) {
  co_return co_await core_->Ask("/v3/lease/keepalive", internal::EncodeLease(lease),
                                &internal::DecodeKeepAlive);
}

Task<absl::Status> EtcdClient::Revoke(int64_t lease) {
  co_return (co_await core_->Ask("/v3/lease/revoke", internal::EncodeLease(lease),
                                 &internal::DecodeRevision))
      .status();
}

std::unique_ptr<EtcdWatch> EtcdClient::Watch(std::string_view prefix, int64_t from_revision) {
  return std::unique_ptr<EtcdWatch>(
      new EtcdWatch(*core_, internal::EncodeWatch(prefix, from_revision)));
}

EtcdWatch::EtcdWatch(internal::EtcdCore& core, std::string body)
    : core_(core), body_(std::move(body)) {
  if (!core_.needs_login()) exchange_ = core_.Watch(body_);
}
EtcdWatch::~EtcdWatch() = default;

Task<absl::StatusOr<EtcdChanges>> EtcdWatch::NextMessage() {
  if (exchange_ == nullptr) {
    VERBENA_CO_RETURN_IF_ERROR(co_await core_.LogIn());
    exchange_ = core_.Watch(body_);
  }
  const absl::StatusOr<EtcdAnswer> answer = co_await Take(*exchange_, kWatch);
  if (!answer.ok()) co_await core_.NoteFailure(answer.status());
  VERBENA_CO_RETURN_IF_ERROR(answer.status());
  absl::StatusOr<EtcdChanges> changes = co_await Decoded(answer->text, &internal::DecodeWatch);
  if (changes.ok()) co_return changes;
  if (absl::IsUnavailable(changes.status())) exchange_->Avoid();
  co_return Explained(*answer, kWatch, changes.status(), Outcome::kNotExecuted);
}

Task<absl::StatusOr<EtcdChanges>> EtcdWatch::Next() {
  for (;;) {
    absl::StatusOr<EtcdChanges> changes = co_await NextMessage();
    const bool begun = exchange_ != nullptr;
    if (begun && may_log_in_ && core_.has_user() && IsWatchRefused(changes.status())) {
      may_log_in_ = false;
      exchange_.reset();
      continue;
    }
    VERBENA_CO_RETURN_IF_ERROR(changes.status());
    // Etcd has taken the watch. What it told would come again after another login.
    may_log_in_ = false;
    if (!changes->events.empty()) co_return changes;
    // Such messages may come without end.
    VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
  }
}

bool EtcdWatch::HasMore() const { return exchange_ != nullptr && !exchange_->answers().empty(); }

}  // namespace verbena
