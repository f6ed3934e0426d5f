// Makes calls from one process to another, small ones and ones with payloads both ways, and
// compares every reply and every byte of a payload.
//
// Proves that what a compiler made of both sides loses, changes and mixes up nothing. The server is
// a child process. Sizes of payloads are drawn evenly by logarithm from 1 byte to 1 MiB. Prints the
// seed, the counts and the rates; exits with 1 if one reply is wrong or one call fails.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "examples/common/amounts.h"
#include "examples/common/server_process.h"
#include "examples/common/signals.h"
#include "exchange.verbena.pb.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

ABSL_FLAG(uint64_t, calls, 100'000, "Small calls.");
ABSL_FLAG(uint64_t, payload_calls, 1'000, "Calls with a payload each way.");
ABSL_FLAG(int, in_flight, 64, "Calls that are under way at once.");
ABSL_FLAG(uint64_t, seed, 0, "Of the payloads' bytes and sizes; 0: a random one.");
ABSL_FLAG(bool, serve, false, "For the program's own use: be the server.");

namespace exchange {
namespace {

using examples::Grouped;
using verbena::Buffer;
using verbena::Channel;
using verbena::Runtime;
using verbena::Server;
using verbena::Task;

constexpr size_t kLargestPayload = 1 << 20;
constexpr std::chrono::seconds kDeadline(120);

// splitmix64: each word becomes another one.
uint64_t Mixed(uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

// The bytes that payloads are parts of. Both processes make the same of one seed.
class Pool {
 public:
  explicit Pool(uint64_t seed) : words_(2 * kLargestPayload / sizeof(uint64_t)) {
    for (uint64_t& word : words_) word = seed = Mixed(seed);
  }

  // A part whose size is drawn evenly by logarithm.
  template <typename Random>
  void Draw(Random& random, PoolPart& part) const {
    const double exponent = std::uniform_real_distribution<>(0, std::log2(kLargestPayload))(random);
    part.set_bytes(static_cast<uint32_t>(std::lround(std::exp2(exponent))));
    part.set_offset(std::uniform_int_distribution<uint32_t>(0, kLargestPayload)(random));
  }
  // Precondition of both: the part lies in the pool, and `into` has its size.
  void Copy(const PoolPart& part, const Buffer& into) const {
    std::memcpy(into.data(), bytes() + part.offset(), part.bytes());
  }
  bool Has(const PoolPart& part, const Buffer& payload) const {
    return payload.size() == part.bytes() &&
           std::memcmp(payload.data(), bytes() + part.offset(), part.bytes()) == 0;
  }

 private:
  const char* bytes() const { return reinterpret_cast<const char*>(words_.data()); }

  std::vector<uint64_t> words_;
};

// --- The server.

class ExchangeService final : public Exchange::Service {
 public:
  explicit ExchangeService(const Pool& pool) : pool_(pool) {}

 private:
  Task<absl::Status> Echo(verbena::ServerContext&, const EchoRequest& request,
                          EchoReply& reply) override {
    reply.set_number(request.number());
    reply.set_word(Mixed(request.word()));
    co_return absl::OkStatus();
  }
  Task<absl::Status> Move(verbena::ServerContext& context, const MoveRequest& request,
                          MoveReply& reply) override {
    const Buffer sent = context.TakeRequestPayload();
    if (!pool_.Has(request.sent(), sent)) co_return absl::DataLossError("a request's payload");
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer wanted,
                                co_await context.AllocateBuffer(request.wanted().bytes()));
    pool_.Copy(request.wanted(), wanted);
    context.SetResponsePayload(std::move(wanted));
    reply.set_number(request.number());
    co_return absl::OkStatus();
  }

  const Pool& pool_;
};

int Serve(examples::StopSignals& signals) {
  const Pool pool(absl::GetFlag(FLAGS_seed));
  ExchangeService service(pool);
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << "\n", 1;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(**runtime, {&service});
  if (!server.ok()) return std::cerr << server.status() << "\n", 1;
  std::cout << "listening on " << (*server)->address() << std::endl;
  signals.WaitForLast();
  return 0;
}

// --- The client. All of it runs on one executor.

// What its coroutines share: the calls that are left, and what became of the others.
struct Load {
  uint64_t calls;
  uint64_t begun = 0;
  uint64_t right = 0;
  uint64_t wrong = 0;
  uint64_t failed = 0;
  uint64_t payload_bytes = 0;

  bool Begin(uint64_t& number) {
    if (begun == calls) return false;
    number = begun++;
    return true;
  }
  void Ended(const absl::Status& status, bool is_right) {
    if (!status.ok()) {
      if (failed++ == 0) std::cerr << status << "\n";
      calls = begun;  // the others would take long to fail
    } else {
      ++(is_right ? right : wrong);
    }
  }
};

Task<void> EchoAll(Channel& channel, uint64_t seed, Load& load) {
  const Exchange::Stub stub(channel);
  EchoRequest request;
  EchoReply reply;
  for (uint64_t number; load.Begin(number);) {
    request.set_number(number);
    request.set_word(Mixed(seed ^ number));
    const absl::Status status = co_await stub.Echo(request, reply, {.deadline = kDeadline});
    load.Ended(status, reply.number() == number && reply.word() == Mixed(request.word()));
  }
}

// The memory for a reply's payload: the caller's own, memory of a size that the caller says, or
// memory that the caller says nothing of.
Task<absl::StatusOr<verbena::CallOptions>> OptionsFor(Channel& channel, const Pool& pool,
                                                      const MoveRequest& request) {
  verbena::CallOptions options{.deadline = kDeadline};
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer sent, co_await channel.AllocateBuffer(request.sent().bytes()));
  pool.Copy(request.sent(), sent);
  options.request_payload = std::move(sent);
  if (request.number() % 3 == 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(options.response_payload_into,
                                co_await channel.AllocateBuffer(request.wanted().bytes()));
  } else if (request.number() % 3 == 1) {
    options.max_response_payload = request.wanted().bytes();
  }
  co_return options;
}

Task<void> MoveAll(Channel& channel, const Pool& pool, std::mt19937_64& random, Load& load) {
  const Exchange::Stub stub(channel);
  MoveRequest request;
  for (uint64_t number; load.Begin(number);) {
    request.set_number(number);
    pool.Draw(random, *request.mutable_sent());
    pool.Draw(random, *request.mutable_wanted());
    absl::StatusOr<verbena::CallOptions> options = co_await OptionsFor(channel, pool, request);
    if (!options.ok()) {
      load.Ended(options.status(), false);
      continue;
    }
    const absl::StatusOr<verbena::WithPayload<MoveReply>> reply =
        co_await stub.Move(request, *std::move(options));
    load.payload_bytes += request.sent().bytes() + request.wanted().bytes();
    load.Ended(reply.status(), reply.ok() && (*reply)->number() == number &&
                                   pool.Has(request.wanted(), reply->payload));
  }
}

// Runs `callers`, prints what became of the calls, and returns whether all were right.
bool Run(Runtime& runtime, std::vector<Task<void>> callers, const char* what, const Load& load,
         uint64_t calls) {
  const auto begin = std::chrono::steady_clock::now();
  runtime.BlockOn(verbena::WhenAll(std::move(callers)));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << Grouped(calls) << " " << what << ": " << Grouped(load.right) << " right, "
            << load.wrong << " wrong, " << load.failed << " failed, "
            << Grouped(static_cast<uint64_t>(static_cast<double>(load.right) / seconds))
            << " calls/s";
  if (load.payload_bytes > 0) std::cout << ", " << examples::Sized(load.payload_bytes);
  std::cout << std::endl;
  return load.right == calls;
}

int Call(examples::StopSignals& signals) {
  uint64_t seed = absl::GetFlag(FLAGS_seed);
  while (seed == 0) seed = (uint64_t{std::random_device()()} << 32) + std::random_device()();
  std::cout << "--seed=" << seed << std::endl;
  absl::StatusOr<std::unique_ptr<examples::ServerProcess>> server = examples::ServerProcess::Start(
      "/proc/self/exe", {"--serve", "--seed=" + std::to_string(seed)});
  if (!server.ok()) return std::cerr << server.status() << "\n", 1;
  if (const absl::Status ready = (*server)->WaitUntilReady(signals); !ready.ok()) {
    return std::cerr << ready << "\n", 1;
  }
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Start();
  if (!runtime.ok()) return std::cerr << runtime.status() << "\n", 1;
  Channel channel(**runtime, (*server)->address());

  const int in_flight = std::max(1, absl::GetFlag(FLAGS_in_flight));
  std::vector<Task<void>> callers;
  Load echoes{.calls = absl::GetFlag(FLAGS_calls)};
  for (int i = 0; i < in_flight; ++i) callers.push_back(EchoAll(channel, seed, echoes));
  bool right = Run(**runtime, std::move(callers), "small calls", echoes, echoes.calls);

  const Pool pool(seed);
  std::mt19937_64 random(seed);
  callers.clear();
  Load moves{.calls = absl::GetFlag(FLAGS_payload_calls)};
  for (int i = 0; i < in_flight; ++i) callers.push_back(MoveAll(channel, pool, random, moves));
  right &= Run(**runtime, std::move(callers), "calls with payloads", moves, moves.calls);

  const absl::Status stopped = (*server)->Stop(signals);
  if (!stopped.ok()) std::cerr << stopped << "\n";
  return right && stopped.ok() ? 0 : 1;
}

int Main() {
  absl::StatusOr<std::unique_ptr<examples::StopSignals>> signals = examples::StopSignals::Block();
  if (!signals.ok()) return std::cerr << signals.status() << "\n", 1;
  return absl::GetFlag(FLAGS_serve) ? Serve(**signals) : Call(**signals);
}

}  // namespace
}  // namespace exchange

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return exchange::Main();
}
