// A cache that serves blocks out of its own memory, which is registered once and never copied. The
// client receives the blocks in its own memory, too.

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/own_memory/own_memory.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace {

using verbena::Buffer;
using verbena::RegisteredMemory;
using verbena::Runtime;
using verbena::Task;

constexpr uint64_t kBlocks = 256;
constexpr size_t kBlockBytes = 64 << 10;

class CacheService final : public own_memory::Cache::Service {
 public:
  explicit CacheService(RegisteredMemory& blocks) : blocks_(blocks) {}

 private:
  Task<absl::Status> Get(verbena::ServerContext& context, const own_memory::GetRequest& request,
                         own_memory::GetReply&) override {
    if (request.block() >= kBlocks) co_return absl::NotFoundError("there is no such block");
    // A cache that evicts blocks would also pass a callable that unpins this block.
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block,
                                blocks_.Wrap(request.block() * kBlockBytes, kBlockBytes));
    context.SetResponsePayload(std::move(block));
    co_return absl::OkStatus();
  }

  RegisteredMemory& blocks_;
};

// Every byte of a block is the block's number.
std::vector<char> FilledBlocks() {
  std::vector<char> memory(kBlocks * kBlockBytes);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i / kBlockBytes);
  return memory;
}

// Reads every block into `area`, which has the size of one block.
Task<absl::Status> ReadAll(verbena::Channel& channel, RegisteredMemory& area) {
  own_memory::Cache::Stub cache(channel);
  for (uint64_t number = 0; number < kBlocks; ++number) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, area.Wrap(0, kBlockBytes));
    own_memory::GetRequest request;
    request.set_block(number);
    VERBENA_CO_ASSIGN_OR_RETURN(
        verbena::WithPayload<own_memory::GetReply> got,
        co_await cache.Get(request, {.response_payload_into = std::move(into)}));
    for (size_t i = 0; i < kBlockBytes; ++i) {
      if (got.payload.data()[i] == static_cast<char>(number)) continue;
      co_return absl::DataLossError("another block arrived");
    }
  }
  co_return absl::OkStatus();
}

absl::Status Run() {
  std::vector<char> cache_memory = FilledBlocks();
  std::vector<char> client_memory(kBlockBytes);
  // One device, because memory is registered with one. On a runtime with several,
  // MemoryOptions::device says which.
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Start({.device = "soft"}));
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<RegisteredMemory> blocks,
      runtime->BlockOn(runtime->RegisterMemory(cache_memory.data(), cache_memory.size())));
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<RegisteredMemory> area,
      runtime->BlockOn(runtime->RegisterMemory(client_memory.data(), client_memory.size())));
  CacheService service(*blocks);
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<verbena::Server> server,
                           verbena::Server::Start(*runtime, {&service}));
  {
    verbena::Channel channel(*runtime, server->address());
    VERBENA_RETURN_IF_ERROR(runtime->BlockOn(ReadAll(channel, *area)));
  }
  server.reset();
  // Nothing uses a Buffer any more.
  runtime->BlockOn(runtime->DeregisterMemory(std::move(area)));
  runtime->BlockOn(runtime->DeregisterMemory(std::move(blocks)));
  return absl::OkStatus();
}

}  // namespace

int main() {
  absl::Status status = Run();
  if (!status.ok()) return std::cerr << status << std::endl, 1;
  std::cout << kBlocks << " blocks of " << kBlockBytes << " bytes read" << std::endl;
  return 0;
}
