#include "verbena/rpc/naming/etcd/http_wire.h"

#include <unistd.h>

#include <atomic>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/etcd/endpoints.h"
#include "verbena/rpc/naming/etcd/http_call.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/connect/io_thread.h"

namespace verbena::internal {
namespace {

namespace ssl = boost::asio::ssl;

constexpr Duration kLeastTimeout = std::chrono::milliseconds(10);
constexpr Duration kLongestTimeout = std::chrono::minutes(1);

// How long the end of a process waits for the shared thread.
constexpr std::chrono::seconds kParkPatience(10);

// The thread that all wires share. It stays until the process ends: a wire may be destroyed on an
// executor, which must not wait for a lookup that hangs.
class SharedThread {
 public:
  static SharedThread& Instance() {
    static auto& shared = *new SharedThread;
    return shared;
  }

  absl::StatusOr<std::shared_ptr<IoThread>> Get() {
    std::lock_guard lock(mutex_);
    if (exits_) return absl::UnavailableError("etcd: no client begins while its process exits");
    if (thread_ == nullptr) {
      VERBENA_ASSIGN_OR_RETURN(thread_, IoThread::Start());
    }
    return thread_;
  }

  // Call it once OpenSSL is in use: when the process exits, OpenSSL frees all that it has, while
  // the thread may still end a connection. exit() runs functions in the reverse order of atexit(),
  // so the thread stands still by then.
  static void ParkAtExit() {
    Instance().process_ = getpid();
    static const int registered = std::atexit([] { Instance().Park(); });
    if (registered != 0) Log(LogLevel::kWarning, "etcd: no room for a function that runs at exit");
  }

 private:
  void Park() {
    // A child of fork() has no such thread, and perhaps a mutex that nobody unlocks.
    if (process_ != getpid()) return;
    std::shared_ptr<IoThread> thread;
    {
      std::lock_guard lock(mutex_);
      exits_ = true;
      thread = thread_;
    }
    if (thread != nullptr) thread->Park(kParkPatience);
  }

  std::mutex mutex_;
  std::shared_ptr<IoThread> thread_;
  bool exits_ = false;
  std::atomic<pid_t> process_ = 0;  // the one that uses OpenSSL
};

absl::Status FileError(const char* option, const std::string& path,
                       const boost::system::error_code& error) {
  return absl::InvalidArgumentError(
      fmt::format("EtcdOptions::{}: {}: {}", option, path, error.message()));
}

// nullptr: no TLS.
absl::StatusOr<std::unique_ptr<ssl::context>> TlsOf(const EtcdOptions& options) {
  if (!options.tls) {
    if (options.ca_file.empty() && options.certificate_file.empty() && options.key_file.empty()) {
      return nullptr;
    }
    return absl::InvalidArgumentError(
        "EtcdOptions has files for TLS, but tls is false: set it, or leave the files out");
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError(
        "EtcdOptions::certificate_file and key_file go together: give both, or none");
  }
  auto tls = std::make_unique<ssl::context>(ssl::context::tls_client);
  SharedThread::ParkAtExit();
  boost::system::error_code error;
  tls->set_options(
      ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (options.ca_file.empty()) {
    tls->set_default_verify_paths(error);
  } else {
    tls->load_verify_file(options.ca_file, error);
  }
  if (error) return FileError("ca_file", options.ca_file, error);
  if (options.certificate_file.empty()) return tls;
  tls->use_certificate_chain_file(options.certificate_file, error);
  if (error) return FileError("certificate_file", options.certificate_file, error);
  tls->use_private_key_file(options.key_file, ssl::context::pem, error);
  if (error) return FileError("key_file", options.key_file, error);
  return tls;
}

class HttpExchange final : public EtcdExchange {
 public:
  explicit HttpExchange(std::shared_ptr<HttpCall> call) : call_(std::move(call)) {}
  ~HttpExchange() override { call_->Close(); }
  Mailbox<EtcdAnswer>& answers() override { return call_->answers(); }
  void Took(size_t bytes) override { call_->Took(bytes); }
  void Avoid() override { call_->Avoid(); }

 private:
  const std::shared_ptr<HttpCall> call_;
};

class HttpWire final : public EtcdWire {
 public:
  HttpWire(std::shared_ptr<IoThread> io, std::shared_ptr<EtcdEndpoints> endpoints)
      : io_(std::move(io)), endpoints_(std::move(endpoints)) {}

  std::unique_ptr<EtcdExchange> Post(EtcdRequest request) override {
    std::shared_ptr<HttpCall> call = MakeHttpCall(io_, endpoints_, std::move(request));
    call->Start();
    return std::make_unique<HttpExchange>(std::move(call));
  }

 private:
  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<EtcdEndpoints> endpoints_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdWire>> StartHttpWire(const EtcdOptions& options) {
  if (options.endpoints.empty() || options.endpoints.size() > EtcdClient::kMaxEndpoints) {
    return absl::InvalidArgumentError(
        fmt::format("EtcdOptions::endpoints has {} entries, but must have 1 to {}",
                    options.endpoints.size(), size_t{EtcdClient::kMaxEndpoints}));
  }
  if (options.timeout < kLeastTimeout || options.timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(fmt::format(
        "EtcdOptions::timeout is {} ms: its range is 10 ms to 1 min",
        std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout).count()));
  }
  std::vector<HostPort> hosts;
  for (const std::string& each : options.endpoints) {
    VERBENA_ASSIGN_OR_RETURN(HostPort host, ParseHostPort(each));
    hosts.push_back(std::move(host));
  }
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ssl::context> tls, TlsOf(options));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<IoThread> io, SharedThread::Instance().Get());
  return std::make_unique<HttpWire>(
      std::move(io),
      std::make_shared<EtcdEndpoints>(std::move(hosts), options.timeout, std::move(tls)));
}

}  // namespace verbena::internal
