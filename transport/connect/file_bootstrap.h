// Bootstrapping through a directory that all hosts share: FileBootstrap.
//
// The program owns it. Its thread does all work on files (file_spool.h).

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/connect/bootstrap.h"

namespace verbena::internal {

class FilePoller;
class IoThread;

}  // namespace verbena::internal

namespace verbena {

// FileBootstrap: a bootstrap through a directory that all hosts share.
//
// For clusters whose control plane is a shared file system (a job's scratch directory on NFS, say)
// and where processes may not listen on TCP. A listener is a name in the directory; a connection is
// a directory below it, and a message a file (FileSpool). A message takes milliseconds, which
// delays nothing but connecting. A process that dies lets go of its locks, which ends its streams;
// a host that loses the file system's lock server is noticed by the links' PINGs instead.
//
// Other exchanges (a key-value store, say) are further implementations of Bootstrap.
//
//   VERBENA_ASSIGN_OR_RETURN(auto bootstrap, FileBootstrap::Create("/shared/job-17"));
//   Runtime::Start({.use_bootstrap = bootstrap.get()});
//   Server::Start(*runtime, {&store}, {.address = "store-0"});   // and Channel(runtime, "store-0")
class VERBENA_EXPORT FileBootstrap final : public Bootstrap {
 public:
  // NOT_FOUND or PERMISSION_DENIED if `directory` is not there, or this process may not write to
  // it.
  static absl::StatusOr<std::unique_ptr<FileBootstrap>> Create(const std::string& directory);
  // Streams and listeners end; their awaits return.
  ~FileBootstrap() override;

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  // A name of at most 128 bytes without '/', which does not begin with a dot; one that ends in ":0"
  // gets a free number instead.
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  FileBootstrap(std::string directory, std::shared_ptr<internal::IoThread> io,
                std::shared_ptr<internal::FilePoller> poller);

  const std::string directory_;
  const std::shared_ptr<internal::IoThread> io_;
  const std::shared_ptr<internal::FilePoller> poller_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_BOOTSTRAP_H_
