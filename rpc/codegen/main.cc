// protoc-gen-verbena: a plugin of protoc that generates stubs and services.

#include <unistd.h>

#include <string_view>

#include "fmt/format.h"
#include "verbena/rpc/codegen/generator.h"
#include "verbena/rpc/codegen/protobuf.h"
#include "verbena/rpc/version.h"

namespace {

using verbena::codegen::kProtobufVersion;

constexpr char kUsage[] =
    R"(protoc-gen-verbena: generates foo.verbena.pb.{h,cc}, the stubs and services of foo.proto.

It is run by protoc, which talks to it over standard input and output:

  protoc --plugin=protoc-gen-verbena=PATH --cpp_out=DIR --verbena_out=DIR foo.proto

In Bazel use verbena_proto_library of @verbena//tools:proto.bzl.

  --help     this text
  --version  the version
)";

int RunByHand(std::string_view argument) {
  if (argument == "--help" || argument == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (argument == "--version") {
    fmt::print("protoc-gen-verbena {}.{}.{}, with protobuf {}.{}.{}\n", VERBENA_VERSION_MAJOR,
               VERBENA_VERSION_MINOR, VERBENA_VERSION_PATCH, kProtobufVersion / 1000000,
               kProtobufVersion / 1000 % 1000, kProtobufVersion % 1000);
    return 0;
  }
  fmt::print(stderr, "protoc-gen-verbena: unknown argument '{}'; see --help\n", argument);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return RunByHand(argv[1]);
  if (isatty(STDIN_FILENO)) {
    fmt::print(stderr, "{}", kUsage);
    return 1;
  }
  verbena::codegen::Generator generator;
  return verbena::codegen::PluginMain(argc, argv, &generator);
}
