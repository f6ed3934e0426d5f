// Generated names compile: include guards are distinct identifiers, methods are escaped as protobuf
// escapes them, and no part of a .proto's comment becomes code. The plugin ends in words rather
// than write what its own rules exclude.

#include <set>
#include <string>

#include "google/protobuf/compiler/cpp/names.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "verbena/rpc/codegen/names.h"
#include "verbena/rpc/codegen/protobuf.h"
#include "verbena/rpc/codegen/writers.h"

namespace verbena::codegen {
namespace names_test {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptorProto;

std::string GuardOf(const std::string& file) {
  FileDescriptorProto proto;
  proto.set_name(file);
  DescriptorPool pool;
  return GuardName(*pool.BuildFile(proto));
}

TEST(GuardNameTest, FilesWithSimilarNamesHaveDifferentGuards) {
  std::set<std::string> guards;
  for (const char* file : {"a/b.proto", "a_b.proto", "a-b.proto", "a.b.proto", "a_2fb.proto",
                           "A/b.proto", "a/b.protodevel"}) {
    EXPECT_TRUE(guards.insert(GuardOf(file)).second) << file;
  }
}

TEST(GuardNameTest, IsAnIdentifier) {
  EXPECT_EQ("VERBENA_GENERATED_a_2fB9_2d_5f_2eproto", GuardOf("a/B9-_.proto"));
}

std::string CppNameOfMethod(const std::string& name) {
  FileDescriptorProto proto;
  proto.set_name("a.proto");
  proto.add_message_type()->set_name("M");
  auto& service = *proto.add_service();
  service.set_name("S");
  auto& method = *service.add_method();
  method.set_name(name);
  method.set_input_type(".M");
  method.set_output_type(".M");
  DescriptorPool pool;
  const auto* file = pool.BuildFile(proto);
  return file == nullptr ? "" : CppName(*file->service(0)->method(0));
}

TEST(KeywordTest, MacrosOfGnuDialectsAreEscapedInMethodNames) {
  EXPECT_EQ("linux_", CppNameOfMethod("linux"));
  EXPECT_EQ("unix_", CppNameOfMethod("unix"));
  EXPECT_EQ("Linux", CppNameOfMethod("Linux"));
}

// A word that protobuf escapes and we do not would be a method that does not compile.
TEST(KeywordTest, WhateverProtobufEscapesIsEscapedInMethodNames) {
  for (const char* word :
       {"NULL",     "alignas", "and",       "asm",      "bool",      "case",   "char",   "class",
        "compl",    "const",   "constexpr", "default",  "delete",    "enum",   "export", "float",
        "for",      "goto",    "if",        "int",      "namespace", "new",    "not_eq", "nullptr",
        "operator", "or",      "private",   "register", "return",    "signed", "static", "struct",
        "switch",   "this",    "throw",     "true",     "typeid",    "union",  "using",  "virtual",
        "void",     "wchar_t", "while",     "xor_eq"}) {
    FileDescriptorProto proto;
    proto.set_name("a.proto");
    proto.add_message_type()->set_name(word);
    auto& service = *proto.add_service();
    service.set_name("S");
    auto& method = *service.add_method();
    method.set_name(word);
    method.set_input_type(std::string(".") + word);
    method.set_output_type(method.input_type());
    DescriptorPool pool;
    const auto* file = pool.BuildFile(proto);
    ASSERT_NE(nullptr, file) << word;
    EXPECT_EQ(google::protobuf::compiler::cpp::ClassName(file->message_type(0)),
              CppName(*file->service(0)->method(0)));
  }
}

TEST(KeywordTest, OrdinaryNamesStayAsTheyAre) {
  for (const char* word : {"Class", "classes", "Get", "_", "aligna", "xor_eqq"}) {
    EXPECT_FALSE(IsKeyword(word)) << word;
  }
}

TEST(CommentTest, NothingInACommentReachesCode) {
  EXPECT_EQ("// a\n//\n// b\n", AsComment(" a\n\n b\n"));
  EXPECT_EQ("// a\n// b\n", AsComment("a\r\nb\r\n"));
  EXPECT_EQ("// a\n// b\n", AsComment("a\rb"));
  EXPECT_EQ("// a\n", AsComment("\n\n a  \n \n"));
  EXPECT_EQ("// ends in \\ //\n// int x;\n", AsComment(" ends in \\  \n int x;\n"));
  EXPECT_EQ("", AsComment(""));
  EXPECT_EQ("", AsComment(" \n"));
}

std::string Printed(const std::string& comment) {
  std::string text;
  {
    google::protobuf::io::StringOutputStream stream(&text);
    Printer printer(&stream, '$');
    PrintComment(comment, printer);
  }
  return text;
}

TEST(CommentDeathTest, WhatIsNoCommentIsNotPrintedAsOne) {
  EXPECT_EQ("// a\n//\n", Printed("// a\n//\n"));
  EXPECT_DEATH(Printed("// a"), "a fault of the plugin: what is printed as a comment is none");
  EXPECT_DEATH(Printed("// a\nint x;\n"), "what is printed as a comment is none");
}

TEST(WriterDeathTest, NothingIsWrittenForAFileWithAProblem) {
  FileDescriptorProto proto;
  proto.set_name("a.proto");
  proto.mutable_options()->set_cc_generic_services(true);
  proto.add_service()->set_name("S");
  DescriptorPool pool;
  const google::protobuf::FileDescriptor& file = *pool.BuildFile(proto);
  std::string text;
  google::protobuf::io::StringOutputStream stream(&text);
  Printer printer(&stream, '$');
  for (auto* write : {&WriteHeader, &WriteSource, &WriteMocks}) {
    EXPECT_DEATH(write(file, {}, printer), "code is asked for in spite of a.proto: option");
  }
}

TEST(StreamDeathTest, AMethodWithoutAStreamHasNoKindOfStream) {
  FileDescriptorProto proto;
  proto.set_name("a.proto");
  proto.add_message_type()->set_name("M");
  auto& method = *proto.add_service()->add_method();
  proto.mutable_service(0)->set_name("S");
  method.set_name("Get");
  method.set_input_type("M");
  method.set_output_type("M");
  DescriptorPool pool;
  const auto& unary = *pool.BuildFile(proto)->service(0)->method(0);
  EXPECT_DEATH((void)StreamsName(unary), "S.Get is no stream");
  EXPECT_DEATH((void)ClientStreamType(unary), "S.Get is no stream");
}

}  // namespace names_test
}  // namespace verbena::codegen
