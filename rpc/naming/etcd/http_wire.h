// StartHttpWire: the way to etcd over HTTP/1.1, in the clear or over TLS. Asio, Beast and OpenSSL
// stay inside.

#ifndef VERBENA_RPC_NAMING_ETCD_HTTP_WIRE_H_
#define VERBENA_RPC_NAMING_ETCD_HTTP_WIRE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "verbena/rpc/etcd.h"
#include "verbena/rpc/naming/etcd/wire.h"

namespace verbena::internal {

// Checks the options and reads the files; connects nothing.
absl::StatusOr<std::unique_ptr<EtcdWire>> StartHttpWire(const EtcdOptions& options);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_HTTP_WIRE_H_
