#include "tests/docs/block_client.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "tests/docs/blocks.pb.h"
#include "tests/docs/blocks.verbena.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"

namespace guide {

using namespace std::chrono_literals;
using verbena::Buffer;
using verbena::Channel;
using verbena::ClientWriter;
using verbena::OutcomeOf;
using verbena::RetryAfterOf;
using verbena::Task;
using verbena::WithPayload;

Task<absl::StatusOr<uint64_t>> SizeOf(Channel& channel, std::string name) {
  const v1::Blocks::Stub blocks(channel);
  v1::StatRequest request;
  request.set_name(std::move(name));
  absl::StatusOr<v1::StatReply> reply = co_await blocks.Stat(request, {.deadline = 1s});
  if (!reply.ok()) co_return reply.status();
  co_return reply->bytes();
}

Task<absl::Status> WriteBlock(Channel& channel, std::string name, std::string_view bytes) {
  const v1::Blocks::Stub blocks(channel);
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(bytes.size()));
  std::memcpy(block.data(), bytes.data(), bytes.size());
  v1::WriteRequest request;
  request.set_name(std::move(name));
  v1::WriteReply reply;
  co_return co_await blocks.Write(request, reply,
                                  {.deadline = 1s, .request_payload = std::move(block)});
}

Task<absl::StatusOr<std::string>> ReadBlock(Channel& channel, std::string name) {
  const v1::Blocks::Stub blocks(channel);
  v1::ReadRequest request;
  request.set_name(std::move(name));
  v1::ReadReply reply;
  VERBENA_CO_ASSIGN_OR_RETURN(
      WithPayload<v1::ReadReply> got,
      co_await blocks.Read(request, {.deadline = 1s, .max_response_payload = 1 << 20}));
  co_return std::string(got.payload.data(), got.payload.size());
}

Task<absl::Status> WriteBlockWithRetries(Channel& channel, std::string name, std::string bytes) {
  for (int attempt = 1;; ++attempt) {
    const absl::Status status = co_await WriteBlock(channel, name, bytes);
    const bool may_pass = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
    if (attempt == 3 || !may_pass || OutcomeOf(status) != verbena::Outcome::kNotExecuted) {
      co_return status;
    }
    VERBENA_CO_RETURN_IF_ERROR(co_await verbena::Sleep(RetryAfterOf(status).value_or(10ms)));
  }
}

Task<absl::StatusOr<uint64_t>> ReserveNames(Channel& channel, std::vector<std::string> wanted) {
  const v1::Names::Stub names(channel);
  ClientWriter<v1::Name, v1::ReserveReply> writer = names.Reserve();
  v1::Name name;
  for (const std::string& next : wanted) {
    name.set_name(next);
    if (!(co_await writer.Write(name)).ok()) break;  // Finish() says why
  }
  absl::StatusOr<v1::ReserveReply> reply = co_await writer.Finish();
  if (!reply.ok()) co_return reply.status();
  co_return reply->count();
}

}  // namespace guide
