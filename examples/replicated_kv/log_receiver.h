// ReceiveLog: a backup's end of the stream of the log. It takes entries in order, says what its
// disk has, and lets a copy replace all that it has.
//
// The gate lets the newest stream go on, and ends the streams of primaries that were replaced.
// Everything that the parts refer to must outlive the Task.

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_

#include "absl/status/status.h"
#include "examples/replicated_kv/epoch_gate.h"
#include "examples/replicated_kv/replica_log.h"
#include "examples/replicated_kv/replica_store.h"
#include "examples/replicated_kv/replicated_kv.pb.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"

namespace replicated_kv {

using LogStream = verbena::ServerReaderWriter<v1::LogMessage, v1::Acknowledgement>;

struct ReceiverParts {
  EpochGate& gate;
  verbena::Mutex& turn;  // keeps a stream out until the one before has ended
  ReplicaStore& store;
  ReplicaLog& log;
};

// A replica's account of its log.
v1::Acknowledgement AcknowledgementOf(const ReplicaLog& log);

// `hello` is the stream's first message.
verbena::Task<absl::Status> ReceiveLog(ReceiverParts parts, LogStream& stream,
                                       const v1::LogMessage& hello);

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_LOG_RECEIVER_H_
