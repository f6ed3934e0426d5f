// grpc_bench: the same unary echo through gRPC C++, over TCP on the loopback interface, between two
// processes pinned to two cores. Built by build_grpc.sh where gRPC is installed, never by Bazel.

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

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "echo.grpc.pb.h"
#include "verbena/benchmarks/floor/floor.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/median.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using peers::EchoMessage;
using peers::EchoService;

constexpr auto kSlice = std::chrono::milliseconds(100);

// Answers on the thread that polls the completion queue: on one core, the fastest of gRPC's
// servers.
class EchoServer {
 public:
  // Returns the port, or 0.
  int Start() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    return server_ == nullptr ? 0 : port;
  }

  [[noreturn]] void Serve() {
    new Call(this);  // each call starts the next, and deletes itself
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
    _exit(0);
  }

 private:
  class Call {
   public:
    explicit Call(EchoServer* server) : server_(server), responder_(&context_) {
      server->service_.RequestEcho(&context_, &message_, &responder_, server->queue_.get(),
                                   server->queue_.get(), this);
    }

    void Proceed(bool ok) {
      if (!ok || answered_) {
        delete this;
        return;
      }
      new Call(server_);
      answered_ = true;
      responder_.Finish(message_, grpc::Status::OK, this);
    }

   private:
    EchoServer* server_;
    grpc::ServerContext context_;
    EchoMessage message_;
    grpc::ServerAsyncResponseWriter<EchoMessage> responder_;
    bool answered_ = false;
  };

  EchoService::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
};

// The server process. `requests` yields one byte per floor slice, so that nothing spins between
// them; the port goes to `port`.
[[noreturn]] void ServerProcess(FloorMapping& mapping, int core, pid_t client, int requests,
                                int port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != client || !PinToCore(core).ok()) _exit(1);
  EchoServer server;
  const int number = server.Start();
  if (number == 0 || write(port, &number, sizeof(number)) != sizeof(number)) _exit(1);
  std::thread([&mapping, requests] {
    char byte = 0;
    while (read(requests, &byte, 1) == 1 && ServeFloorSlice(mapping).ok()) {
    }
  }).detach();
  server.Serve();
}

// Calls in flight on one completion queue, driven by one thread.
class EchoClient {
 public:
  EchoClient(EchoService::Stub& stub, int size, int outstanding) : stub_(stub) {
    for (int i = 0; i < outstanding; ++i) {
      calls_.push_back(std::make_unique<Call>());
      calls_.back()->request.set_payload(
          std::string(static_cast<std::size_t>(size), char('a' + i % 26)));
    }
  }

  absl::Status RunSlice(LatencyHistogram& latencies, double& calls_per_s) {
    const Clock::time_point start = Clock::now();
    for (auto& call : calls_) Start(*call);
    std::size_t in_flight = calls_.size();
    absl::Status status;
    std::uint64_t done = 0;
    Clock::time_point last = start;
    while (in_flight > 0) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue_.Next(&tag, &ok)) return absl::InternalError("the completion queue ended");
      Call& call = *static_cast<Call*>(tag);
      const Clock::time_point now = Clock::now();
      --in_flight;
      if (!ok || !call.status.ok()) {
        status = absl::UnavailableError("gRPC: " + call.status.error_message());
      } else if (call.reply.payload() != call.request.payload()) {
        status = absl::DataLossError("gRPC: an answer is wrong");
      }
      if (now - start >= kSlice || !status.ok()) continue;  // drains what is in flight
      latencies.Record(static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now - call.start).count()));
      ++done;
      last = now;
      Start(call);
      ++in_flight;
    }
    calls_per_s =
        double(done) / std::max(1e-9, std::chrono::duration<double>(last - start).count());
    return status;
  }

 private:
  struct Call {
    EchoMessage request;
    EchoMessage reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<EchoMessage>> reader;
    Clock::time_point start;
  };

  void Start(Call& call) {
    call.start = Clock::now();
    call.context = std::make_unique<grpc::ClientContext>();
    call.reader = stub_.AsyncEcho(call.context.get(), call.request, &queue_);
    call.reader->Finish(&call.reply, &call.status, &call);
  }

  EchoService::Stub& stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

absl::StatusOr<Row> Measure(EchoService::Stub& stub, FloorMapping& mapping, int floor_requests,
                            int size, int outstanding, double seconds) {
  std::vector<double> p50;
  std::vector<double> p99;
  std::vector<double> rate;
  std::vector<double> floor;
  EchoClient client(stub, size, outstanding);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  do {
    LatencyHistogram latencies;
    double calls_per_s = 0;
    if (absl::Status status = client.RunSlice(latencies, calls_per_s); !status.ok()) return status;
    p50.push_back(latencies.PercentileNs(50));
    p99.push_back(latencies.PercentileNs(99));
    rate.push_back(calls_per_s);
    if (write(floor_requests, "", 1) != 1) return absl::InternalError("the server is gone");
    absl::StatusOr<FloorSample> sample = RunFloorSlice(
        mapping, {.size = size, .outstanding = outstanding, .duration_ms = int(kSlice.count())});
    if (!sample.ok()) return sample.status();
    floor.push_back(sample->p50_ns);
  } while (Clock::now() < end);
  return Row{.bench = "grpc",
             .device = "tcp",
             .mode = "event",
             .size = size,
             .outstanding = outstanding,
             .p50_us = Median(p50) / 1e3,
             .p99_us = Median(p99) / 1e3,
             .calls_per_s = Median(rate),
             .floor_p50_us = Median(floor) / 1e3};
}

absl::Status Run(const Options& options) {
  absl::StatusOr<Report> report = Report::Open(options.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  absl::StatusOr<FloorMapping> mapping = FloorMapping::Create();
  if (!mapping.ok()) return mapping.status();
  int ports[2];
  int requests[2];
  if (pipe(ports) != 0 || pipe(requests) != 0) return absl::InternalError("pipe failed");

  // Forked before gRPC has started a thread here.
  const pid_t parent = getpid();
  const pid_t server = fork();
  if (server < 0) return absl::InternalError("fork failed");
  if (server == 0) ServerProcess(*mapping, cores->server, parent, requests[0], ports[1]);
  absl::Cleanup end_server = [server] {
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
  };
  close(ports[1]);
  int port = 0;
  if (read(ports[0], &port, sizeof(port)) != sizeof(port)) {
    return absl::UnavailableError("the gRPC server did not start");
  }
  if (absl::Status status = PinToCore(cores->client); !status.ok()) return status;

  auto channel =
      grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials());
  std::unique_ptr<EchoService::Stub> stub = EchoService::NewStub(channel);
  for (int size : options.sizes) {
    for (int outstanding : options.outstanding) {
      absl::StatusOr<Row> row =
          Measure(*stub, *mapping, requests[1], size, outstanding, options.seconds);
      if (!row.ok()) return row.status();
      report->Add(*row);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  using namespace verbena::benchmarks;
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest);
  if (!options.ok()) {
    fmt::print(stderr, "grpc_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (!rest.empty()) {
    fmt::print("usage: grpc_bench [options]\n\n{}", kOptionsHelp);
    return rest[0] == "--help" ? 0 : 2;
  }
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "grpc_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}
