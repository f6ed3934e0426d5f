// grpc_stream_bench: messages per second that a client reads from gRPC's streams, beside gRPC's
// unary calls per second of the same size, over TCP on the loopback interface, between two
// processes pinned to two cores. Its slices are those of stream_bench. Built by build_grpc.sh where
// gRPC is installed, never by Bazel.

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "stream.grpc.pb.h"
#include "verbena/benchmarks/harness/cores.h"
#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/benchmarks/harness/stream_table.h"
#include "verbena/benchmarks/rpc/allocation_count.h"

namespace verbena::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using peers::PullRequest;
using peers::StreamMessage;
using peers::StreamService;

constexpr std::chrono::milliseconds kSlice(kStreamSliceMs);

// The same marks as stream_bench's: a message's number in its first and its last byte.
void Mark(std::string& data, uint32_t number) {
  data.front() = static_cast<char>(number);
  data.back() = static_cast<char>(~number);
}

bool HasMarks(const std::string& data, int size, uint32_t number) {
  return data.size() == static_cast<size_t>(size) && data.front() == static_cast<char>(number) &&
         data.back() == static_cast<char>(~number);
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One call at the server: each starts the next of its kind, and deletes itself.
class AnyCall {
 public:
  virtual ~AnyCall() = default;
  virtual void Proceed(bool ok) = 0;
};

class EchoCall final : public AnyCall {
 public:
  EchoCall(StreamService::AsyncService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue), responder_(&context_) {
    service.RequestEcho(&context_, &message_, &responder_, &queue, &queue,
                        static_cast<AnyCall*>(this));
  }

  void Proceed(bool ok) override {
    if (!ok || answered_) {
      delete this;
      return;
    }
    new EchoCall(service_, queue_);
    answered_ = true;
    responder_.Finish(message_, grpc::Status::OK, static_cast<AnyCall*>(this));
  }

 private:
  StreamService::AsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  StreamMessage message_;
  grpc::ServerAsyncResponseWriter<StreamMessage> responder_;
  bool answered_ = false;
};

// Writes messages as fast as gRPC takes them, until the client cancels.
class PullCall final : public AnyCall {
 public:
  PullCall(StreamService::AsyncService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue), writer_(&context_) {
    service.RequestPull(&context_, &request_, &writer_, &queue, &queue,
                        static_cast<AnyCall*>(this));
  }

  void Proceed(bool ok) override {
    if (finished_ || (!ok && !began_)) {
      delete this;
      return;
    }
    if (!ok) {
      finished_ = true;
      writer_.Finish(grpc::Status::CANCELLED, static_cast<AnyCall*>(this));
      return;
    }
    if (!began_) {
      began_ = true;
      new PullCall(service_, queue_);
      message_.mutable_data()->resize(request_.size());
    }
    Mark(*message_.mutable_data(), number_++);
    writer_.Write(message_, static_cast<AnyCall*>(this));
  }

 private:
  StreamService::AsyncService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  PullRequest request_;
  StreamMessage message_;
  grpc::ServerAsyncWriter<StreamMessage> writer_;
  uint32_t number_ = 0;
  bool began_ = false;
  bool finished_ = false;
};

// Serves on the thread that polls the completion queue, as grpc_bench does.
absl::Status Serve(int core, const Ready& ready) {
  if (absl::Status status = PinToCore(core); !status.ok()) return status;
  StreamService::AsyncService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return absl::UnavailableError("gRPC did not start");
  ready(fmt::format("127.0.0.1:{}", port));
  new EchoCall(service, *queue);
  new PullCall(service, *queue);
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<AnyCall*>(tag)->Proceed(ok);
  return absl::OkStatus();
}

// Unary calls in flight on one completion queue, driven by one thread.
class Caller {
 public:
  Caller(StreamService::Stub& stub, int size) : stub_(stub), calls_(kCallsBesideStreams) {
    for (Call& call : calls_) call.request.mutable_data()->resize(size);
  }

  // Returns the calls per second of one slice. Replies wait behind the messages that cancelled
  // streams left in the connection, so each call is made once before the slice begins.
  absl::StatusOr<double> RunSlice() {
    if (absl::StatusOr<uint64_t> warm = RunUntil(Clock::now()); !warm.ok()) return warm.status();
    const Clock::time_point start = Clock::now();
    absl::StatusOr<uint64_t> done = RunUntil(start + kSlice);
    if (!done.ok()) return done.status();
    return static_cast<double>(*done) / SecondsSince(start);
  }

 private:
  struct Call {
    StreamMessage request;
    StreamMessage reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<StreamMessage>> reader;
  };

  // Makes each call at least once, and again until `end`. Returns how many calls were made.
  absl::StatusOr<uint64_t> RunUntil(Clock::time_point end) {
    for (Call& call : calls_) Start(call);
    size_t in_flight = calls_.size();
    uint64_t done = 0;
    absl::Status status;
    while (in_flight > 0) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue_.Next(&tag, &ok)) return absl::InternalError("the completion queue ended");
      Call& call = *static_cast<Call*>(tag);
      --in_flight;
      ++done;
      if (!ok || !call.status.ok()) {
        status = absl::UnavailableError("gRPC: " + call.status.error_message());
      } else if (call.reply.data() != call.request.data()) {
        status = absl::DataLossError("gRPC: a reply differs from its request");
      }
      if (Clock::now() >= end || !status.ok()) continue;  // drains what is in flight
      Start(call);
      ++in_flight;
    }
    if (!status.ok()) return status;
    return done;
  }

  void Start(Call& call) {
    Mark(*call.request.mutable_data(), number_++);
    call.context = std::make_unique<grpc::ClientContext>();
    call.reader = stub_.AsyncEcho(call.context.get(), call.request, &queue_);
    call.reader->Finish(&call.reply, &call.status, &call);
  }

  StreamService::Stub& stub_;
  grpc::CompletionQueue queue_;
  std::vector<Call> calls_;
  uint32_t number_ = 0;
};

// One slice of streams, read side by side on one completion queue by one thread. Used once.
class Readers {
 public:
  Readers(StreamService::Stub& stub, int size, int streams) : size_(size), streams_(streams) {
    PullRequest request;
    request.set_size(size);
    for (Stream& stream : streams_) {
      stream.reader = stub.AsyncPull(&stream.context, request, &queue_, &stream);
    }
  }

  absl::StatusOr<StreamSample> RunSlice() {
    size_t live = streams_.size();
    while (live > 0) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue_.Next(&tag, &ok)) return absl::InternalError("the completion queue ended");
      Stream& stream = *static_cast<Stream*>(tag);
      if (stream.finished) {
        --live;
        if (!stopped_) Stop(Ended(stream.status));
        continue;
      }
      if (ok && !stopped_ && stream.began) Take(stream);
      stream.began = true;
      if (ok && !stopped_) {
        stream.reader->Read(&stream.message, &stream);
      } else {
        stream.finished = true;
        stream.reader->Finish(&stream.status, &stream);
      }
    }
    if (!status_.ok()) return status_;
    return sample_;
  }

 private:
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncReader<StreamMessage>> reader;
    StreamMessage message;
    grpc::Status status;
    uint32_t number = 0;    // of the message that is read next
    bool began = false;     // the call has started: what completes now is a Read
    bool finished = false;  // Finish is under way
  };

  static absl::Status Ended(const grpc::Status& status) {
    if (status.ok()) return absl::DataLossError("gRPC: a stream has ended");
    return absl::UnavailableError("gRPC: " + status.error_message());
  }

  // Messages count from when all streams are warm, until one finds that the slice is over.
  void Take(Stream& stream) {
    const uint32_t number = stream.number++;
    if (!HasMarks(stream.message.data(), size_, number)) {
      Stop(absl::DataLossError("gRPC: a message is not the next one"));
      return;
    }
    if (number == kStreamWarmUp && ++warm_ == streams_.size()) {
      start_ = Clock::now();
      allocations_before_ = AllocationCount();
    }
    if (warm_ < streams_.size()) return;
    ++sample_.messages;
    if (number % kMessagesPerLookAtTheClock != 0 || Clock::now() - start_ < kSlice) return;
    sample_.messages_per_s = static_cast<double>(sample_.messages) / SecondsSince(start_);
    sample_.allocations = AllocationCount() - allocations_before_;
    Stop(absl::OkStatus());
  }

  // Cancels all streams. RunSlice returns once each has ended.
  void Stop(absl::Status status) {
    stopped_ = true;
    status_ = std::move(status);
    for (Stream& stream : streams_) stream.context.TryCancel();
  }

  const int size_;
  grpc::CompletionQueue queue_;
  std::vector<Stream> streams_;
  size_t warm_ = 0;  // of the streams
  bool stopped_ = false;
  absl::Status status_;
  Clock::time_point start_;
  uint64_t allocations_before_ = 0;
  StreamSample sample_;
};

absl::StatusOr<Row> MeasurePoint(StreamService::Stub& stub, int size, int streams, double seconds) {
  Caller caller(stub, size);
  StreamPoint point(size, streams);
  const int rounds = StreamRounds(seconds);
  for (int i = 0; i <= rounds; ++i) {
    absl::StatusOr<double> calls_per_s = caller.RunSlice();
    if (!calls_per_s.ok()) return calls_per_s.status();
    absl::StatusOr<StreamSample> read = Readers(stub, size, streams).RunSlice();
    if (!read.ok()) return read.status();
    if (i == 0) continue;  // both are warm now
    point.AddUnary(*calls_per_s);
    point.Add(*read);
  }
  return point.ToRow("grpc_stream", "tcp", "event");
}

absl::Status Run(const Options& options) {
  absl::StatusOr<Report> report = Report::Open(options.json);
  if (!report.ok()) return report.status();
  absl::StatusOr<TwoCores> cores = ChooseTwoCores();
  if (!cores.ok()) return cores.status();
  // Forked before gRPC has started a thread here.
  absl::StatusOr<ServerProcess> server = ServerProcess::Start(
      "grpc_stream_bench", [&](const Ready& ready) { return Serve(cores->server, ready); });
  if (!server.ok()) return server.status();
  if (absl::Status status = PinToCore(cores->client); !status.ok()) return status;
  auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  std::unique_ptr<StreamService::Stub> stub = StreamService::NewStub(channel);
  for (const int size : options.sizes) {
    for (const int streams : kStreamCounts) {
      absl::StatusOr<Row> row = MeasurePoint(*stub, size, streams, options.seconds);
      if (!row.ok()) return row.status();
      PrintStreamRow(*row, *report);
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  absl::StatusOr<Options> options = ParseOptions(argc, argv, rest, StreamDefaults());
  if (!options.ok()) {
    fmt::print(stderr, "grpc_stream_bench: {}\n", std::string(options.status().message()));
    return 2;
  }
  if (!rest.empty()) {
    fmt::print("usage: grpc_stream_bench [options]\n\n{}", kOptionsHelp);
    return rest[0] == "--help" ? 0 : 2;
  }
  if (absl::Status status = Run(*options); !status.ok()) {
    fmt::print(stderr, "grpc_stream_bench: {}\n", status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) { return verbena::benchmarks::Main(argc, argv); }
