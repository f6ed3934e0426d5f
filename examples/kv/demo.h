// Demo: the key-value store at work. Starts kv_server as a process, puts every line of some files
// into it, reads them back with many calls in flight, compares every byte, does the same on a store
// of its own without calls, and prints the times.
//
// Called once, on the main thread, before there are other threads.

#ifndef VERBENA_EXAMPLES_KV_DEMO_H_
#define VERBENA_EXAMPLES_KV_DEMO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "examples/kv/open_store.h"
#include "verbena/rpc/runtime.h"

namespace kv {

struct DemoOptions {
  std::vector<std::string> paths;
  std::string server;   // the path of kv_server
  std::string address;  // the server listens on it
  int executors = 1;    // on each side
  verbena::ExecutorMode mode = verbena::ExecutorMode::kAdaptive;
  std::string mode_name;
  // RocksDB without a directory gets a new one, which goes with the demo. max_bytes bounds the
  // files, too.
  StoreChoice store;
  int in_flight = 64;
  uint64_t rounds = 1;
};

// The process's exit status: 0, 1 after one line that says what went wrong, or 128 and the number
// of the signal that ended it.
int RunDemo(const DemoOptions& options);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_DEMO_H_
