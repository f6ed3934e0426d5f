// Follower: one stream of the log from a primary to a backup, from its first message to its end.
//
// It asks how far the backup's disk is. If the primary's memory has the rest, it sends that.
// Otherwise, or if the backup has entries that this log has not, the backup leaves the in-sync set
// and gets a copy of all data. Then entries follow as they come, and once the backup is close it
// joins the set. A backup that says nothing for kPatience is lost. The primary must outlive it.
//
//   absl::Status lost = co_await Follower(primary, peer).Run();

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_FOLLOWER_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_FOLLOWER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "examples/replicated_kv/primary.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "examples/replicated_kv/replicated_kv.verbena.pb.h"
#include "verbena/rpc/client_stream.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

class Follower {
 public:
  Follower(Primary& primary, Peer& peer);

  // Ends with the stream, with the reason.
  verbena::Task<absl::Status> Run();

 private:
  verbena::Task<absl::Status> Meet();
  verbena::Task<absl::Status> SendCopy();
  // Entries up to `sequence` that were not sent yet.
  verbena::Task<absl::Status> SendUpTo(uint64_t sequence);
  verbena::Task<absl::Status> SendLog();
  verbena::Task<absl::Status> TakeAcknowledgements();
  // A message without content.
  v1::LogMessage Message() const;

  Primary& primary_;
  ReplicaLog& log_;
  const std::string name_;
  verbena::ClientReaderWriter<v1::LogMessage, v1::Acknowledgement> stream_;
  uint64_t sent_ = 0;  // the last entry that was sent, or that the backup had
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_FOLLOWER_H_
