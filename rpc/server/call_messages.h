// CallMessages: the request and the reply of a server's call, kept from call to call.
//
// Part of a ServerCall, on its executor's thread. Messages that were large on the wire are freed
// when their call no longer needs them, so that an idle call holds little.

#ifndef VERBENA_RPC_SERVER_CALL_MESSAGES_H_
#define VERBENA_RPC_SERVER_CALL_MESSAGES_H_

#include <cstddef>
#include <memory>

#include "google/protobuf/message_lite.h"
#include "verbena/rpc/service.h"

namespace verbena::internal {

class CallMessages {
 public:
  // Messages that were larger than this on the wire are not kept for the next call.
  static constexpr size_t kMaxPooledBytes = 16 * 1024;
  // Requests that were larger than this are not kept while their response waits for room: parsed, a
  // message of small parts takes up to twenty times its bytes.
  static constexpr size_t kMaxWaitingRequestBytes = 256;

  // `method` must outlive it.
  explicit CallMessages(const ServerMethod& method)
      : method_(method),
        request_(method.request_prototype->New()),
        reply_(method.reply_prototype->New()) {}

  google::protobuf::MessageLite& request() const { return *request_; }
  google::protobuf::MessageLite& reply() const { return *reply_; }

  // Their sizes on the wire, as their owner has noted them.
  size_t request_bytes() const { return request_bytes_; }
  size_t reply_bytes() const { return reply_bytes_; }
  void NoteRequest(size_t bytes) { request_bytes_ = bytes; }
  void NoteReply(size_t bytes) { reply_bytes_ = bytes; }

  // Each frees its message if that is larger than `most` bytes.
  [[gnu::noinline]] void DropRequestBeyond(size_t most);
  [[gnu::noinline]] void DropReplyBeyond(size_t most);

  // The call has ended: empties the reply. A request is emptied when the next one is parsed.
  void Clear() {
    if (request_bytes_ > kMaxPooledBytes || reply_bytes_ > kMaxPooledBytes) [[unlikely]] {
      DropRequestBeyond(kMaxPooledBytes);
      DropReplyBeyond(kMaxPooledBytes);
    }
    reply_->Clear();
  }

 private:
  const ServerMethod& method_;
  std::unique_ptr<google::protobuf::MessageLite> request_;
  std::unique_ptr<google::protobuf::MessageLite> reply_;
  size_t request_bytes_ = 0;
  size_t reply_bytes_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_CALL_MESSAGES_H_
