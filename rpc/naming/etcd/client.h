// EtcdCore: what stands behind an EtcdClient (etcd.h): its way to etcd, and its login.
//
// The EtcdClient owns it, and it must outlive the Tasks of its requests. Any thread.

#ifndef VERBENA_RPC_NAMING_ETCD_CLIENT_H_
#define VERBENA_RPC_NAMING_ETCD_CLIENT_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/http.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class EtcdCore {
 public:
  // A client over `wire`, which is EtcdClient::Start()'s or a test's. Of the options, only the user
  // counts.
  static std::unique_ptr<EtcdClient> MakeClient(std::unique_ptr<EtcdWire> wire,
                                                const EtcdOptions& options = {});

  // EtcdClient::Start() on another thread, since it reads files. None of RunBlocking().
  static Task<absl::StatusOr<std::unique_ptr<EtcdClient>>> StartClient(EtcdOptions options);

  EtcdCore(std::unique_ptr<EtcdWire> wire, const EtcdOptions& options);

  // Sends a request, after a login if one is needed.
  template <typename Result>
  Task<absl::StatusOr<Result>> Ask(const char* path, std::string body,
                                   absl::StatusOr<Result> (*decode)(std::string_view));
  // A request whose answers are a watch's, with the token that there is.
  std::unique_ptr<EtcdExchange> Watch(std::string body);
  bool has_user() const { return !user_.empty(); }
  // Whether a request must wait for LogIn().
  bool needs_login() const { return has_user() && Token().empty(); }
  Task<absl::Status> LogIn();
  // A request has failed with `status`.
  Task<void> NoteFailure(const absl::Status& status);

 private:
  template <typename Result>
  Task<absl::StatusOr<Result>> AskOnce(const char* path, std::string body,
                                       absl::StatusOr<Result> (*decode)(std::string_view));
  std::string Token() const;

  const std::unique_ptr<EtcdWire> wire_;
  const std::string user_;  // "": nobody logs in
  const std::string password_file_;
  mutable std::mutex mutex_;
  std::string token_;  // under mutex_; "": none yet
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_CLIENT_H_
