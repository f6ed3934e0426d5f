// WalkTree: the directories and regular files below a path, for copying.
//
// Symbolic links and special files (devices, sockets, pipes) in the tree are neither followed nor
// opened: they are listed, and left out. A path that is a regular file is a tree of that file
// alone. Blocks; any thread.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/block_store/tree.h"

namespace block_store {

struct LocalTree {
  std::string root;  // the tree's paths are relative to it
  Tree tree;         // without digests and offsets; each directory's entries are sorted by name
  struct Skipped {
    std::string path;
    const char* what;  // "symbolic link"
  };
  std::vector<Skipped> skipped;
};

// Fails at the first directory or file that cannot be read, and names it.
absl::StatusOr<LocalTree> WalkTree(const std::string& path);

// Makes `directory` unless it exists, and in it the tree's directories and empty files.
// ALREADY_EXISTS names a directory or file of the tree that exists already.
absl::Status MakeTree(const std::string& directory, const Tree& tree);
// Gives the tree's files and directories their permissions. To be called once files are complete.
absl::Status SetModes(const std::string& directory, const Tree& tree);

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_LOCAL_TREE_H_
