// Demo: the block store at work. Starts block_store_server as a process on a directory of its own,
// stores a directory tree in a volume, reads it back with many reads in flight, and compares the
// SHA-256 of every file. Prints the times, beside those of cp on the same disk and of memcpy.
//
// Called once, on the main thread, before there are other threads.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_DEMO_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_DEMO_H_

#include <string>

#include "examples/block_store/tree_copy.h"
#include "verbena/rpc/runtime.h"

namespace block_store {

struct DemoOptions {
  std::string path;       // the tree to store
  std::string directory;  // the demo makes its own below this one, for the volume and for cp
  std::string server;     // the path of block_store_server
  std::string address;    // the server listens on it
  verbena::ExecutorMode mode = verbena::ExecutorMode::kAdaptive;
  std::string mode_name;
  int server_namespaces = 0;  // CLONE_NEW…: those of the server's own
  CopyOptions copy;
};

// The process's exit status: 0, 1 after one line that says what went wrong, or 128 and the number
// of the signal that ended it.
int RunDemo(const DemoOptions& options);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_DEMO_H_
