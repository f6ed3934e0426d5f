// The generator refuses each .proto that it cannot turn into C++ that compiles, with one line for
// each problem that names file, line, service and method. It accepts what only looks like such a
// problem.

#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/codegen/compiled_protos.h"

namespace verbena::testing {
namespace refusal_test {

struct RefusedProto {
  const char* name;
  const char* text;   // of a.proto, after its syntax line
  const char* error;  // all of it
};

void PrintTo(const RefusedProto& refusal, std::ostream* out) { *out << refusal.name; }

class RefusalTest : public ::testing::TestWithParam<RefusedProto> {};

TEST_P(RefusalTest, IsRefusedWithOneLineThatNamesIt) {
  auto response =
      Generate({{"a.proto", std::string("syntax = 'proto3';") + GetParam().text}}, "a.proto");
  EXPECT_EQ(GetParam().error, response.error());
  EXPECT_EQ(0, response.file_size());
}

constexpr RefusedProto kRefusals[] = {
    {"EachProblemHasItsLine",
     "message M {} service S {\nrpc a(M) returns (M); rpc delete(M) returns (M);\n"
     " rpc delete_(M) returns (M);\n rpc new(M) returns (M); rpc new_(M) returns (M); }",
     "a.proto:3:2: service S, method delete_: its C++ name delete_ is also that of method delete; "
     "rename one\n"
     "a.proto:4:26: service S, method new_: its C++ name new_ is also that of method new; rename "
     "one"},
    {"GenericServices", "package p;\noption cc_generic_services = true; message M {} service S {}",
     "a.proto:2:1: option cc_generic_services makes protobuf generate classes of the same names; "
     "remove it"},
    {"PackageThatProtobufCannotCompile", "\npackage p.class.v1; message M {} service S {}",
     "a.proto:2:1: package p.class.v1: 'class' is a C++ keyword that protobuf does not escape; "
     "rename it"},
    {"MessageThatProtobufCannotCompile",
     "package p; message requires {}\nservice S { rpc Get(requires) returns (requires); }",
     "a.proto:2:13: service p.S, method Get: message p.requires cannot be used: 'requires' is a "
     "C++ keyword that protobuf does not escape; rename it"},
    {"MethodsThatBecomeTheSameMember",
     "message M {} service S { rpc delete(M) returns (M);\nrpc delete_(M) returns (M); }",
     "a.proto:2:1: service S, method delete_: its C++ name delete_ is also that of method delete; "
     "rename one"},
    {"ServiceNamedLikeTheClassOfANestedMessage",
     "package p; message A { message B {} }\nservice A_B {}",
     "a.proto:2:1: service p.A_B: its C++ class A_B is also that of p.A.B; rename one"},
    {"ServiceNamedLikeTheClassOfANestedEnum",
     "package p; message A { enum B { ZERO = 0; } }\nservice A_B {}",
     "a.proto:2:1: service p.A_B: its C++ class A_B is also that of p.A.B; rename one"},
    {"PayloadOfTheOneRequestOfAStream",
     "import 'verbena/options.proto'; message M {} service S {\nrpc Get(M) returns (stream M) {\n"
     "option (verbena.method) = { request_payload: true, response_payload: true }; } }",
     "a.proto:2:1: service S, method Get: the one request of a stream has no payload; remove "
     "request_payload, or make the request a stream"},
    {"PayloadOfTheOneReplyToAStream",
     "import 'verbena/options.proto'; message M {} service S {\nrpc Put(stream M) returns (M) {\n"
     "option (verbena.method).response_payload = true; } }",
     "a.proto:2:1: service S, method Put: the one reply to a stream has no payload; remove "
     "response_payload, or make the reply a stream"},
    {"StreamThatIsDeduplicated",
     "import 'verbena/options.proto'; message M {} service S {\nrpc Put(stream M) returns (M) {\n"
     "option (verbena.method).dedupe = true; } }",
     "a.proto:2:1: service S, method Put: a stream cannot be repeated as a whole; remove dedupe, "
     "or make request and reply single messages"},
    {"ServicesThatBecomeTheSameClass", "package p; service class {}\nservice class_ {}",
     "a.proto:2:1: service p.class_: its C++ class class_ is also that of p.class; rename one"},
};

INSTANTIATE_TEST_SUITE_P(All, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(RefusalOfImportsTest, ServiceNamedLikeTheClassOfANestedMessageOfAnImportedFile) {
  auto response =
      Generate({{"a.proto", "syntax = 'proto3'; package p; import 'b.proto';\nservice A_B {}"},
                {"b.proto", "syntax = 'proto3'; package p; message A { message B {} }"}},
               "a.proto");
  EXPECT_EQ("a.proto:2:1: service p.A_B: its C++ class A_B is also that of p.A.B; rename one",
            response.error());
}

TEST(RefusalOfImportsTest, TheSameClassInAnotherPackageIsNoProblem) {
  auto response =
      Generate({{"a.proto", "syntax = 'proto3'; package p; import 'b.proto'; service A_B {}"},
                {"b.proto", "syntax = 'proto3'; package q; message A { message B {} }"}},
               "a.proto");
  EXPECT_EQ("", response.error());
}

// 50777 is not registered with protobuf: it may be another project's own.
TEST(RefusalOfOptionsTest, AnotherProjectsOptionOfTheSameNumberIsNotOurs) {
  auto response = Generate({{"a.proto",
                             "syntax = 'proto3'; import 'google/protobuf/descriptor.proto';"
                             "extend google.protobuf.MethodOptions { string note = 50777; }"
                             "message M {} service S { rpc Get(M) returns (M) { "
                             "option (note) = '\\010\\001'; } }"}},
                           "a.proto");
  EXPECT_EQ("", response.error());
  EXPECT_EQ(2, response.file_size());
}

TEST(RefusalOfParametersTest, AnUnknownParameterIsRefusedWithTheKnownOnes) {
  auto response = Generate({{"a.proto", "syntax = 'proto3';"}}, "a.proto", "lite=true");
  EXPECT_EQ(
      "protoc-gen-verbena: unknown parameter 'lite'; known are export_macro=NAME, "
      "generate_mock_code=true, services_namespace=NAME",
      response.error());
  EXPECT_EQ(0, response.file_size());
}

TEST(RefusalOfParametersTest, AMockOrANamespaceNamedLikeAMessageIsRefused) {
  const ProtoTexts texts = {
      {"a.proto", "syntax = 'proto3'; package p; message MockSStub {}\nservice S {}"}};
  EXPECT_EQ("", Generate(texts, "a.proto").error());
  EXPECT_EQ(
      "a.proto:2:1: service p.S: its C++ mock MockSStub is also that of p.MockSStub; rename one",
      Generate(texts, "a.proto", "generate_mock_code=true").error());
  EXPECT_EQ(
      "a.proto: services_namespace MockSStub is also the C++ name of p.MockSStub; choose another",
      Generate(texts, "a.proto", "services_namespace=MockSStub::v1").error());
}

TEST(RefusalOfNothingTest, AFileWithoutServicesMayContainAnything) {
  auto response =
      Generate({{"a.proto", "syntax = 'proto3'; package class; message requires {}"}}, "a.proto");
  EXPECT_EQ("", response.error());
  EXPECT_EQ(2, response.file_size());
}

TEST(FeaturesTest, OptionalFieldsOfProto3AreSupported) {
  auto response =
      Generate({{"a.proto", "syntax = 'proto3'; message M { optional int32 a = 1; }"}}, "a.proto");
  EXPECT_TRUE(response.supported_features() &
              google::protobuf::compiler::CodeGeneratorResponse::FEATURE_PROTO3_OPTIONAL);
}

}  // namespace refusal_test
}  // namespace verbena::testing
