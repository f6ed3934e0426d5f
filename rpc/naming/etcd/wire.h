// EtcdWire: carries requests to etcd's JSON gateway and its answers back. The interface;
// http_wire.h has the one over HTTP, and tests bring theirs.

#ifndef VERBENA_RPC_NAMING_ETCD_WIRE_H_
#define VERBENA_RPC_NAMING_ETCD_WIRE_H_

#include <memory>
#include <string>

#include "verbena/transport/connect/mailbox.h"

namespace verbena::internal {

struct EtcdRequest {
  const char* path = nullptr;  // "/v3/kv/range"; a constant
  std::string body = {};       // JSON
  bool watches = false;        // many answers, until one side ends it
};

// The answer to a request, or one message of a watch. Plain values, since it crosses threads.
struct EtcdAnswer {
  int http_status = 0;        // 0: there is no answer, nor will there be, and `text` says why
  std::string text = {};      // the body, or one line of it
  std::string endpoint = {};  // that was asked; of several that did not answer the last
  bool sent = false;          // etcd may have got the request
};

// A request on its way. Destroying it, on any thread, gives the request up.
class EtcdExchange {
 public:
  virtual ~EtcdExchange() = default;
  // A watch has any number of answers, each other request one; one with the status 0 is the last.
  virtual Mailbox<EtcdAnswer>& answers() = 0;
  // The reader took an answer of so many bytes, which makes room for others.
  virtual void Took(size_t bytes) = 0;
  // The endpoint answers, but cannot do its work: begin with another one next time.
  virtual void Avoid() = 0;
};

// Any thread.
class EtcdWire {
 public:
  virtual ~EtcdWire() = default;
  virtual std::unique_ptr<EtcdExchange> Post(EtcdRequest request) = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_WIRE_H_
