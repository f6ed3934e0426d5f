// Measurements of a comparison: the latency of a ping-pong, and the rate of a stream, between two
// ends that one thread drives. Only ways of waiting need two threads: a sleeper needs another
// thread to wake it. A figure is therefore what both sides cost together on one core, beside what
// the device does by itself.

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

// Median of one way, half of a round trip, in microseconds; of a READ, the whole of it.
double MeasureLatencyUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test);

// The same for SENDs between two threads, each of which waits for completions in this way.
double MeasureWaitingUs(VerbsEnd& one, VerbsEnd& other, const PingPong& test, Waiting waiting);

// How a request's payload gets to the server, which then answers.
enum class RequestWay {
  kGrantedWrite,  // written to memory that was granted before, and the request behind it
  kAskedWrite,    // the request asks for memory, and what follows it is written there
  kServerRead,    // the server reads it
};

// Median from the request to the response, in microseconds; `bytes` are of the payload, and all
// messages have 32.
double MeasureRequestUs(VerbsEnd& client, VerbsEnd& server, RequestWay way, uint32_t bytes,
                        std::chrono::nanoseconds duration);

struct Stream {
  uint32_t bytes = 32;
  bool inline_data = false;
  int signal_every = 16;
  int batch = 1;  // WRs a doorbell
  int qps = 1;    // taken in turn
  bool srq = true;
  int send_depth = 256;
  int receive_depth = 256;
  std::chrono::nanoseconds duration = std::chrono::milliseconds(200);
};

// SENDs a second from one to the other, every one received and its buffer reposted.
double MeasureRate(VerbsEnd& sender, VerbsEnd& receiver, const Stream& test);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PARAMETERS_MEASURE_H_
