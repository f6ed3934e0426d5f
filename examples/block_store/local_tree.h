// WalkTree: the directories and regular files below a path, for copying.
//
// Symbolic links and special files (devices, sockets, pipes) are not followed or opened: they are
// named, and left out. A path that is a regular file is a tree of that one. Blocks; any thread.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/tree.h"

namespace block_store {

struct LocalTree {
  std::string root;  // what the tree's paths are relative to
  Tree tree;         // without digests and places; in the order of their paths
  struct Skipped {
    std::string path;
    const char* what;  // "symbolic link"
  };
  std::vector<Skipped> skipped;
};

// Fails as soon as something cannot be looked at, and names it.
absl::StatusOr<LocalTree> WalkTree(const std::string& path);

// Makes `directory`, if it is not there, and in it the tree's directories and its files, empty.
// ALREADY_EXISTS names what is there before.
absl::Status MakeTree(const std::string& directory, const Tree& tree);
// Gives all of them their permissions, once they are complete.
absl::Status SetModes(const std::string& directory, const Tree& tree);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_
