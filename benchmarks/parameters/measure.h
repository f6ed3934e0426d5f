// Measurements of a comparison: the latency of a ping-pong and the rate of a stream between two
// ends. One thread drives both ends, so a figure includes the cost of both sides on one core,
// besides the device's own work. MeasureWaitingUs() alone has two threads, because a sleeper needs
// another thread to wake it.

#ifndef VERBENA_BENCHMARKS_PARAMETERS_MEASURE_H_
#define VERBENA_BENCHMARKS_PARAMETERS_MEASURE_H_

#include <chrono>

#include "verbena/benchmarks/parameters/verbs_end.h"

namespace verbena::benchmarks {

enum class Waiting { kBusy, kAdaptive, kEvent };

struct PingPong {
  ibv_wr_opcode opcode = IBV_WR_SEND;  // a READ has no pong: its latency is that of one READ
  uint32_t bytes = 32;
  bool inline_data = false;
  std::chrono::nanoseconds duration = std::chrono::milliseconds(200);
};

// The median latency in microseconds: of a READ as a whole, otherwise half of a round trip.
double MeasureLatencyUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test);

// The same for SENDs between two threads. Each waits for completions as `waiting` says.
double MeasureWaitingUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test, Waiting waiting);

// How a request's payload gets to the server, which then answers.
enum class RequestWay {
  kGrantedWrite,  // the client WRITEs it to memory granted in advance, then SENDs the request
  kAskedWrite,    // the client asks for memory and gets an answer, then goes on as above
  kServerRead,    // the server READs it after the request has come
  kInMessage,     // it is copied into the request's message, and out of it
};

// The median time from the request to the response, in microseconds. The payload has `bytes`, and
// every message 32 bytes.
double MeasureRequestUs(VerbsEnd& client, VerbsEnd& server, RequestWay way, uint32_t bytes,
                        std::chrono::nanoseconds duration);

struct Stream {
  uint32_t bytes = 32;
  bool inline_data = false;
  int signal_every = 16;
  int batch = 1;  // WRs per doorbell
  int qps = 1;    // batches go to the QPs in turn
  bool srq = true;
  int send_depth = 256;
  int receive_depth = 256;
  std::chrono::nanoseconds duration = std::chrono::milliseconds(200);
};

// SENDs per second from one end to the other. The receiver reposts the buffer of each.
double MeasureRate(VerbsEnd& sender, VerbsEnd& receiver, const Stream& test);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PARAMETERS_MEASURE_H_
