// LogReceiver: a backup's end of the stream of the log. It takes entries in order, says what its
// disk has, and lets a copy replace all that it has.
//
// One for each stream, in the handler's frame. The gate lets the newest stream go on, and ends
// those of primaries that were replaced. Gate, turn, store and log must outlive it.
//
//   co_return co_await LogReceiver(gate, turn, store, log, stream).Run(first_message);

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "examples/replicated_kv/epoch_gate.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "verbena/rpc/server_stream.h"
#include "verbena/rpc/sync.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

// What a replica says of its log.
v1::Acknowledgement AcknowledgementOf(const ReplicaLog& log);

class LogReceiver {
 public:
  using Stream = verbena::ServerReaderWriter<v1::LogMessage, v1::Acknowledgement>;

  // `turn` keeps one stream out until the one before has ended.
  LogReceiver(EpochGate& gate, verbena::Mutex& turn, ReplicaStore& store, ReplicaLog& log,
              Stream& stream)
      : gate_(gate), turn_(turn), store_(store), log_(log), stream_(stream) {}

  // `hello` is the stream's first message.
  verbena::Task<absl::Status> Run(const v1::LogMessage& hello);

 private:
  verbena::Task<absl::Status> TakeMessages();
  verbena::Task<absl::Status> Take(const v1::LogMessage& message);
  verbena::Task<absl::Status> TakeEntry(const v1::Entry& entry);
  verbena::Task<absl::Status> SayWhatIsDurable();

  EpochGate& gate_;
  verbena::Mutex& turn_;
  ReplicaStore& store_;
  ReplicaLog& log_;
  Stream& stream_;
  uint64_t pass_ = 0;
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_
