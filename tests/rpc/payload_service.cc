#include "tests/rpc/payload_service.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

void FillPattern(const BufferView& view, uint64_t from) {
  for (size_t i = 0; i < view.size(); ++i) view.data()[i] = PatternAt(from + i);
}

bool IsPattern(const BufferView& view, bool inverted) {
  for (size_t i = 0; i < view.size(); ++i) {
    if (view.data()[i] != (inverted ? ~PatternAt(i) : PatternAt(i))) return false;
  }
  return true;
}

Task<absl::Status> PayloadService::Put(ServerContext& context, const testing::PutRequest&,
                                       testing::PutReply& reply) {
  ++puts;
  Buffer payload = context.TakeRequestPayload();
  reply.set_bytes(payload.size());
  reply.set_has_payload(context.has_request_payload());
  reply.set_right(IsPattern(payload.view()));
  if (!reply.right()) ++wrong;
  if (keep) kept.push_back(std::move(payload));
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadService::Get(ServerContext& context, const testing::GetRequest& request,
                                       testing::GetReply& reply) {
  reply.mutable_filler()->assign(request.filler_bytes(), 'f');
  if (request.how() == testing::EMPTY) {
    context.SetResponsePayload(Payload::Empty());
    co_return absl::OkStatus();
  }
  if (request.bytes() > 0) VERBENA_CO_RETURN_IF_ERROR(co_await Answer(context, request));
  if (request.fail_code() != 0) {
    co_return absl::Status(static_cast<absl::StatusCode>(request.fail_code()), "as asked");
  }
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadService::Swap(ServerContext& context, const testing::PutRequest&,
                                        testing::PutReply& reply) {
  Buffer payload = context.TakeRequestPayload();
  reply.set_right(IsPattern(payload.view()));
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer answer, co_await context.AllocateBuffer(payload.size()));
  for (size_t i = 0; i < payload.size(); ++i) {
    answer.data()[i] = static_cast<char>(~payload.data()[i]);
  }
  context.SetResponsePayload(std::move(answer));
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadService::Hold(ServerContext& context, const testing::HoldRequest& request,
                                        testing::PutReply&) {
  ++holding;
  (void)co_await SleepUntil(kNever);
  // A cancelled handler runs on. The caller's memory is still leased when the handler writes to
  // it.
  const TimePoint until = Clock::Real().Now() + std::chrono::microseconds(request.linger_us());
  while (Clock::Real().Now() < until && !let_go) {
  }
  absl::StatusOr<Buffer> answer = co_await context.AllocateBuffer(context.response_payload_room());
  if (answer.ok() && *answer) {
    std::memset(answer->data(), 'L', answer->size());
    context.SetResponsePayload(*std::move(answer));
  }
  ++released;
  co_return absl::OkStatus();
}

Task<absl::Status> PayloadService::Surprise(ServerContext& context,
                                            const testing::GetRequest& request,
                                            testing::GetReply&) {
  co_return co_await Answer(context, request);
}

Task<absl::Status> PayloadService::Answer(ServerContext& context,
                                          const testing::GetRequest& request) {
  const size_t bytes = request.bytes();
  if (request.how() == testing::PIECES) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer piece, co_await context.AllocateBuffer(10'000));
    for (size_t done = 0; done < bytes;) {
      piece.set_size(std::min<size_t>(10'000, bytes - done));
      FillPattern(piece.view(), done);
      VERBENA_CO_RETURN_IF_ERROR(co_await context.WriteResponsePayload(piece.view()));
      done += piece.size();
      // The view may be used again.
      std::memset(piece.data(), 'x', piece.size());
    }
    co_return absl::OkStatus();
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer answer, co_await context.AllocateBuffer(bytes));
  if (request.how() != testing::RAW) FillPattern(answer.view());
  if (request.how() == testing::SLICES) {
    Payload payload;
    const size_t a = bytes / 3;
    const size_t b = bytes / 2;
    payload.Add(std::move(answer), {{0, a}, {a, b - a}, {b, bytes - b}});
    context.SetResponsePayload(std::move(payload));
  } else {
    context.SetResponsePayload(std::move(answer));
  }
  co_return absl::OkStatus();
}

void PayloadFixture::StartServer(RuntimeOptions options) { StartServer(std::move(options), {}); }

void PayloadFixture::StartServer(RuntimeOptions options, internal::TestDevice device) {
  server_runtime_ = StartRuntime(std::move(options), std::move(device));
  ServeWith(service_);
}

void PayloadFixture::StartClient(RuntimeOptions options) { StartClient(std::move(options), {}); }

void PayloadFixture::StartClient(RuntimeOptions options, internal::TestDevice device) {
  StartClientOf(server_->address(), std::move(options), std::move(device));
}

void PayloadFixture::StartClientOf(const std::string& address, RuntimeOptions options) {
  StartClientOf(address, std::move(options), {});
}

void PayloadFixture::StartClientOf(const std::string& address, RuntimeOptions options,
                                   internal::TestDevice device) {
  client_runtime_ = StartRuntime(std::move(options), std::move(device));
  channel_ = std::make_unique<Channel>(*client_runtime_, address);
  stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  // On a slow machine, connecting alone could take longer than a test's deadlines.
  EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
}

void PayloadFixture::StartBoth(const LinkLimits& limits) {
  StartServer({.limits = limits});
  StartClient({.limits = limits});
}

void PayloadFixture::StopBoth() {
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  server_.reset();
  server_runtime_.reset();
}

Task<absl::StatusOr<Buffer>> PayloadFixture::Filled(size_t bytes) {
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
  FillPattern(buffer.view());
  co_return buffer;
}

Task<PayloadFixture::Held> PayloadFixture::CountHeld(Runtime& runtime) {
  Held held;
  absl::StatusOr<Endpoint*> endpoint = CoreOf(runtime).shard(0).EndpointOn(0);
  if (!endpoint.ok()) co_return held;
  const PayloadMemory& memory = (*endpoint)->memory();
  for (const BufferPool* pool : {&memory.send(), &memory.receive(), &memory.landing()}) {
    held.bytes += pool->stats().bytes_in_use;
  }
  held.leases = (*endpoint)->leases();
  co_return held;
}

Task<std::vector<Buffer>> PayloadFixture::TakeAll(BufferPool& pool, size_t bytes, size_t most) {
  std::vector<Buffer> all;
  while (all.size() < most) {
    absl::StatusOr<Buffer> buffer = pool.TryAllocate(bytes);
    if (buffer.ok()) {
      all.push_back(*std::move(buffer));
    } else if (pool.stats().growing_bytes > 0) {
      (void)co_await Yield();
    } else {
      break;
    }
  }
  co_return all;
}

Task<size_t> PayloadFixture::LentNow() {
  absl::StatusOr<Endpoint*> endpoint = CoreOf(*client_runtime_).shard(0).EndpointOn(0);
  co_return endpoint.ok() ? (*endpoint)->leases() : 0;
}

void PayloadFixture::ExpectNothingHeld() {
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the client's memory is home");
  Eventually([this] { return HeldBy(*server_runtime_).bytes == server_->stats().granted_bytes; },
             "the server's memory is home, but for what it has granted");
  EXPECT_EQ(HeldBy(*client_runtime_).leases, 0u);
}

}  // namespace verbena::internal
