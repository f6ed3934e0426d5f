// grpc_payload_bench: payloads read and written through gRPC C++, as a bytes field, over TCP on the
// loopback interface, between two processes pinned to two cores; beside the floor of payload_bench.
// Built by build_grpc.sh where gRPC is installed, never by Bazel.

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "payload.grpc.pb.h"
#include "verbena/benchmarks/floor/copy_floor.h"
#include "verbena/benchmarks/floor/payload_table.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/cpu_time.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/harness/stamps.h"

namespace verbena::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using peers::Block;
using peers::PayloadService;
using peers::ReadRequest;
using peers::Written;

Stamps Which(bool all_words) { return all_words ? Stamps::kAllWords : Stamps::kPages; }

grpc::Status Answer(const ReadRequest& request, Block& block) {
  block.mutable_payload()->resize(request.bytes());
  WriteStamps(block.mutable_payload()->data(), request.bytes(), request.number(),
              Which(request.all_words()));
  return grpc::Status::OK;
}

grpc::Status Answer(const Block& block, Written&) {
  if (HasStamps(block.payload().data(), block.payload().size(), block.number(),
                Which(block.all_words()))) {
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::DATA_LOSS, "a payload is wrong"};
}

// One call at the server: each starts the next of its kind, and deletes itself.
class AnyCall {
 public:
  virtual ~AnyCall() = default;
  virtual void Proceed(bool ok) = 0;
};

template <typename Request, typename Reply>
class Call final : public AnyCall {
 public:
  using Accept = void (PayloadService::AsyncService::*)(grpc::ServerContext*, Request*,
                                                        grpc::ServerAsyncResponseWriter<Reply>*,
                                                        grpc::CompletionQueue*,
                                                        grpc::ServerCompletionQueue*, void*);

  Call(PayloadService::AsyncService& service, Accept accept, grpc::ServerCompletionQueue& queue)
      : service_(service), accept_(accept), queue_(queue), responder_(&context_) {
    (service.*accept)(&context_, &request_, &responder_, &queue, &queue,
                      static_cast<AnyCall*>(this));
  }

  void Proceed(bool ok) override {
    if (!ok || answered_) {
      delete this;
      return;
    }
    new Call(service_, accept_, queue_);
    answered_ = true;
    Reply reply;
    const grpc::Status status = Answer(request_, reply);
    responder_.Finish(reply, status, static_cast<AnyCall*>(this));
  }

 private:
  PayloadService::AsyncService& service_;
  const Accept accept_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  Request request_;
  grpc::ServerAsyncResponseWriter<Reply> responder_;
  bool answered_ = false;
};

// Answers on the thread that polls the completion queue: on one core, the fastest of gRPC's
// servers. A byte from `floor_requests` begins a slice of the floor.
absl::Status Serve(CopyFloor& floor, int core, int floor_requests, const Ready& ready) {
  if (absl::Status status = PinToCore(core); !status.ok()) return status;
  PayloadService::AsyncService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("gRPC did not start");
  std::thread([&floor, floor_requests] {
    char byte = 0;
    while (read(floor_requests, &byte, 1) == 1 && ServeCopySlice(floor).ok()) {
    }
  }).detach();
  ready(fmt::format("127.0.0.1:{}", port));
  new Call<ReadRequest, Block>(service, &PayloadService::AsyncService::RequestRead, *queue);
  new Call<Block, Written>(service, &PayloadService::AsyncService::RequestWrite, *queue);
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<AnyCall*>(tag)->Proceed(ok);
  return absl::OkStatus();
}

// The parts of one call in flight at the client.
struct ReadCall {
  using Request = ReadRequest;
  using Reply = Block;
  static void Fill(Request& request, size_t bytes, uint64_t number, bool all_words) {
    request.set_number(number);
    request.set_bytes(bytes);
    request.set_all_words(all_words);
  }
  static bool Good(const Reply& reply, size_t bytes, uint64_t number, bool all_words) {
    return reply.payload().size() == bytes &&
           HasStamps(reply.payload().data(), bytes, number, Which(all_words));
  }
  static auto Start(PayloadService::Stub& stub, grpc::ClientContext* context,
                    const Request& request, grpc::CompletionQueue* queue) {
    return stub.AsyncRead(context, request, queue);
  }
};

struct WriteCall {
  using Request = Block;
  using Reply = Written;
  static void Fill(Request& request, size_t bytes, uint64_t number, bool all_words) {
    request.set_number(number);
    request.set_all_words(all_words);
    request.mutable_payload()->resize(bytes);
    WriteStamps(request.mutable_payload()->data(), bytes, number, Which(all_words));
  }
  static bool Good(const Reply&, size_t, uint64_t, bool) { return true; }  // the server looked
  static auto Start(PayloadService::Stub& stub, grpc::ClientContext* context,
                    const Request& request, grpc::CompletionQueue* queue) {
    return stub.AsyncWrite(context, request, queue);
  }
};

// Calls in flight on one completion queue, driven by one thread.
template <typename Kind>
class Client {
 public:
  Client(PayloadService::Stub& stub, int size, int outstanding, bool all_words)
      : stub_(stub), size_(static_cast<size_t>(size)), all_words_(all_words), calls_(outstanding) {}

  absl::StatusOr<PayloadSample> RunSlice(std::chrono::milliseconds length) {
    const Clock::time_point start = Clock::now();
    const uint64_t cpu = CpuNanoseconds();
    for (Flying& call : calls_) Start(call);
    size_t in_flight = calls_.size();
    uint64_t done = 0;
    absl::Status status;
    LatencyHistogram latencies;
    Clock::time_point now = start;
    while (in_flight > 0) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue_.Next(&tag, &ok)) return absl::InternalError("the completion queue ended");
      Flying& call = *static_cast<Flying*>(tag);
      --in_flight;
      if (!ok || !call.status.ok()) {
        status = absl::UnavailableError("gRPC: " + call.status.error_message());
      } else if (!Kind::Good(call.reply, size_, call.number, all_words_)) {
        status = absl::DataLossError("gRPC: a payload is wrong");
      }
      now = Clock::now();
      latencies.Record(static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now - call.start).count()));
      ++done;
      if (now - start >= length || !status.ok()) continue;  // drains what is in flight
      Start(call);
      ++in_flight;
    }
    if (!status.ok()) return status;
    return PayloadSample{
        .p50_ns = latencies.PercentileNs(50),
        .p99_ns = latencies.PercentileNs(99),
        .calls_per_s = double(done) / std::chrono::duration<double>(now - start).count(),
        .calls = done,
        .client_cpu_ns = CpuNanoseconds() - cpu};
  }

 private:
  struct Flying {
    typename Kind::Request request;
    typename Kind::Reply reply;
    uint64_t number = 0;
    grpc::Status status;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<typename Kind::Reply>> reader;
    Clock::time_point start;
  };

  void Start(Flying& call) {
    call.start = Clock::now();
    call.number = number_++;
    Kind::Fill(call.request, size_, call.number, all_words_);
    call.context = std::make_unique<grpc::ClientContext>();
    call.reader = Kind::Start(stub_, call.context.get(), call.request, &queue_);
    call.reader->Finish(&call.reply, &call.status, &call);
  }

  PayloadService::Stub& stub_;
  const size_t size_;
  const bool all_words_;
  grpc::CompletionQueue queue_;
  std::vector<Flying> calls_;
  uint64_t number_ = 0;
};

struct Sides {
  PayloadService::Stub& stub;
  CopyFloor& floor;
  pid_t server;
  int floor_requests;
};

template <typename Kind>
absl::Status Measure(const Sides& sides, CopyDirection direction, int size, int outstanding,
                     double seconds, Report& report) {
  constexpr std::chrono::milliseconds kSlice(kPayloadSliceMs);
  Client<Kind> verifying(sides.stub, size, outstanding, /*all_words=*/true);
  if (auto verified = verifying.RunSlice(kSlice / 10); !verified.ok()) return verified.status();
  Client<Kind> client(sides.stub, size, outstanding, /*all_words=*/false);
  PayloadPoint point(direction, size, outstanding);
  const int rounds = PayloadRounds(seconds);
  for (int i = -1; i < rounds; ++i) {
    const uint64_t server_cpu = CpuNanoseconds(sides.server);
    absl::StatusOr<PayloadSample> sample = client.RunSlice(kSlice);
    if (!sample.ok()) return sample.status();
    sample->server_cpu_ns = CpuNanoseconds(sides.server) - server_cpu;
    if (write(sides.floor_requests, "", 1) != 1) return absl::InternalError("the server is gone");
    absl::StatusOr<CopySample> copies = RunCopySlice(sides.floor, point.floor_slice());
    if (!copies.ok()) return copies.status();
    if (i < 0) continue;  // warmed up
    point.Add(*sample);
    point.AddFloor(*copies);
  }
  PrintPayloadRow(point.ToRow("grpc", "", "tcp", "event"), report);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  absl::StatusOr<Report> report = Report::Open(options.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<CopyFloor> floor =
      CopyFloor::Create(CopyFloor::BytesFor(options.sizes, options.outstanding));
  if (!floor.ok()) return floor.status();
  int requests[2];
  if (pipe(requests) != 0) return absl::InternalError("pipe failed");
  // Forked before gRPC has started a thread here.
  absl::StatusOr<ServerProcess> server = ServerProcess::Start(
      "grpc_payload_bench",
      [&](const Ready& ready) { return Serve(*floor, cores->server, requests[0], ready); });
  if (!server.ok()) return server.status();
  if (absl::Status status = PinToCore(cores->client); !status.ok()) return status;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  auto channel =
      grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), arguments);
  std::unique_ptr<PayloadService::Stub> stub = PayloadService::NewStub(channel);
  const Sides sides{*stub, *floor, server->pid(), requests[1]};
  for (const CopyDirection direction : {CopyDirection::kToClient, CopyDirection::kToServer}) {
    const auto measure =
        direction == CopyDirection::kToClient ? &Measure<ReadCall> : &Measure<WriteCall>;
    for (const int size : options.sizes) {
      for (const int outstanding : options.outstanding) {
        absl::Status status =
            measure(sides, direction, size, outstanding, options.seconds, *report);
        if (!status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, PayloadDefaults());
  if (!options.ok()) {
    fmt::print(stderr, "grpc_payload_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (!rest.empty()) {
    fmt::print("usage: grpc_payload_bench [options]\n\n{}", kOptionsHelp);
    return rest[0] == "--help" ? 0 : 2;
  }
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "grpc_payload_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
