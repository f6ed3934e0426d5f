#include "verbena/rpc/server/call_messages.h"

namespace verbena::internal {

void CallMessages::DropRequestBeyond(size_t most) {
  if (request_bytes_ <= most) return;
  request_.reset(method_.request_prototype->New());
  request_bytes_ = 0;
}

void CallMessages::DropReplyBeyond(size_t most) {
  if (reply_bytes_ <= most) return;
  reply_.reset(method_.reply_prototype->New());
  reply_bytes_ = 0;
}

}  // namespace verbena::internal
