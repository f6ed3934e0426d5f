// Generated files, and the golden files of testdata/ that they are compared with.

#ifndef VERBENA_TESTS_RPC_CODEGEN_GOLDEN_FILES_H_
#define VERBENA_TESTS_RPC_CODEGEN_GOLDEN_FILES_H_

#include <filesystem>
#include <map>
#include <string>

namespace verbena::testing {

// The folder of this test below the workspace's top, and below a test's working directory.
inline constexpr char kGoldenFolder[] = "tests/rpc/codegen";

// "unary.verbena.pb.h" → what protoc-gen-verbena makes of it now, for each .proto of testdata/.
std::map<std::string, std::string> GeneratedFiles();

// The path, below `folder`, of the golden file that belongs to `generated`.
std::filesystem::path GoldenPath(const std::filesystem::path& folder, const std::string& generated);

// The bytes of a file; empty if it cannot be read.
std::string ReadFile(const std::filesystem::path& path);

}  // namespace verbena::testing

#endif  // VERBENA_TESTS_RPC_CODEGEN_GOLDEN_FILES_H_
