// A FileSpool as a MessageStream.
//
// Two halves, as with TCP: FileConnection lives on the IoThread and makes the calls that block; the
// user holds the stream. They meet in mailboxes, so that awaits may be cancelled or destroyed while
// the thread works.

#ifndef VERBENA_TRANSPORT_CONNECT_FILE_STREAM_H_
#define VERBENA_TRANSPORT_CONNECT_FILE_STREAM_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/file_poller.h"
#include "verbena/transport/connect/file_spool.h"
#include "verbena/transport/connect/io_thread.h"
#include "verbena/transport/connect/mailbox.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class FileConnection final : public IoObject,
                             public FilePoller::Watched,
                             public std::enable_shared_from_this<FileConnection> {
 public:
  // Says that a message was written.
  struct Sent {};

  // On the thread.
  static std::shared_ptr<FileConnection> Adopt(std::shared_ptr<IoThread> io,
                                               std::shared_ptr<FilePoller> poller, FileSpool spool,
                                               std::string peer);

  // For the executor. Start*() return at once; their results arrive in the mailbox.
  absl::StatusOr<std::shared_ptr<Mailbox<Sent>>> StartSend(std::string message);
  std::shared_ptr<Mailbox<std::string>> StartReceive();
  void Close();
  const std::string& peer() const { return peer_; }

  void CloseOnThread() override;
  bool Look() override;

 private:
  FileConnection(std::shared_ptr<IoThread> io, std::shared_ptr<FilePoller> poller, FileSpool spool,
                 std::string peer);

  const std::shared_ptr<IoThread> io_;
  const std::shared_ptr<FilePoller> poller_;
  const std::string peer_;
  const std::shared_ptr<Mailbox<std::string>> received_ = std::make_shared<Mailbox<std::string>>();
  std::atomic<bool> closed_ = false;

  // The rest belongs to the thread.
  FileSpool spool_;
  bool spool_closed_ = false;
};

// The user's half.
class FileStream final : public MessageStream {
 public:
  explicit FileStream(std::shared_ptr<FileConnection> connection);
  ~FileStream() override;

  Task<absl::Status> Send(std::string message) override;
  Task<absl::StatusOr<std::string>> Receive() override;
  void Close() override;
  const std::string& peer() const override;
  // One for all connections: each belongs to the user whose directory it is, and names no host.
  const std::string& source() const override;
  bool names_source() const override { return false; }

 private:
  const std::shared_ptr<FileConnection> connection_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_FILE_STREAM_H_
