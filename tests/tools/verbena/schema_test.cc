// Schema takes the .proto files of a server that means harm: they cost it no stack, and the types
// that protobuf's JSON knows by name stay this program's.

#include "tools/verbena/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "google/protobuf/descriptor.pb.h"

namespace verbena::command {
namespace schema_test {

using ::google::protobuf::FieldDescriptorProto;
using ::google::protobuf::FileDescriptorProto;
using ::testing::HasSubstr;

FileDescriptorProto File(const std::string& name, const std::string& package) {
  FileDescriptorProto file;
  file.set_name(name);
  file.set_package(package);
  file.set_syntax("proto3");
  return file;
}

void AddField(google::protobuf::DescriptorProto& type, int inner,
              FieldDescriptorProto::Label label) {
  FieldDescriptorProto& field = *type.add_field();
  field.set_number(type.field_size());
  field.set_name(fmt::format("f{}", type.field_size()));
  field.set_label(label);
  field.set_type(FieldDescriptorProto::TYPE_MESSAGE);
  field.set_type_name(fmt::format(".chain.M{}", inner));
}

// M0, which has a field M1, which has a field M2 ...
FileDescriptorProto Chain(int types) {
  FileDescriptorProto file = File("chain.proto", "chain");
  for (int i = 0; i < types; ++i) {
    google::protobuf::DescriptorProto& type = *file.add_message_type();
    type.set_name(fmt::format("M{}", i));
    if (i + 1 < types) AddField(type, i + 1, FieldDescriptorProto::LABEL_OPTIONAL);
  }
  return file;
}

void AddMethod(FileDescriptorProto& file, const std::string& type) {
  google::protobuf::ServiceDescriptorProto& service = *file.add_service();
  service.set_name("Service");
  google::protobuf::MethodDescriptorProto& method = *service.add_method();
  method.set_name("Method");
  method.set_input_type(type);
  method.set_output_type(type);
}

absl::StatusOr<std::unique_ptr<Schema>> Build(const std::vector<FileDescriptorProto>& files) {
  std::vector<std::string> bytes;
  for (const FileDescriptorProto& file : files) bytes.push_back(file.SerializeAsString());
  return Schema::Build(bytes);
}

void ExpectRefused(const std::vector<FileDescriptorProto>& files, const std::string& text) {
  const absl::StatusOr<std::unique_ptr<Schema>> schema = Build(files);
  EXPECT_EQ(absl::StatusCode::kDataLoss, schema.status().code()) << schema.status();
  EXPECT_THAT(std::string(schema.status().message()), HasSubstr(text));
}

TEST(SchemaTest, RefusesMoreThanAThousandFiles) {
  std::vector<FileDescriptorProto> files;
  for (int i = 0; i <= 1000; ++i) {
    files.push_back(File(fmt::format("f{}.proto", i), "files"));
    if (i == 0) continue;
    files.back().add_dependency(fmt::format("f{}.proto", i - 1));
    files.back().add_public_dependency(0);
  }
  ExpectRefused(files, "1001 .proto files");
  files.pop_back();
  EXPECT_TRUE(Build(files).ok());
}

TEST(SchemaTest, TypesNestAThousandDeepAndNoDeeper) {
  FileDescriptorProto file = Chain(1000);
  AddMethod(file, ".chain.M0");
  absl::StatusOr<std::unique_ptr<Schema>> schema = Build({file});
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_TRUE((*schema)->Method("chain.Service", "Method").ok());
  ExpectRefused({Chain(1001)}, "messages nest more than 1000 deep: chain.M0");
  ExpectRefused({Chain(30'000)}, "messages nest more than 1000 deep: chain.M");
}

TEST(SchemaTest, TypesThatReachEachOtherNestAsDeepAsTheyAreMany) {
  FileDescriptorProto file = Chain(2000);
  AddField(*file.mutable_message_type(1999), 0, FieldDescriptorProto::LABEL_OPTIONAL);
  ExpectRefused({file}, "nest more than 1000 deep");
  FileDescriptorProto fits = Chain(900);
  AddField(*fits.mutable_message_type(899), 0, FieldDescriptorProto::LABEL_REPEATED);
  AddMethod(fits, ".chain.M450");
  absl::StatusOr<std::unique_ptr<Schema>> schema = Build({fits});
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_TRUE((*schema)->Method("chain.Service", "Method").ok());
}

TEST(SchemaTest, FieldsThatGoAheadHideNoDepth) {
  // The first type has a repeated field of each, the last first: a walk that follows these meets
  // every type near its start. Protobuf does not follow them.
  FileDescriptorProto file = Chain(2000);
  google::protobuf::DescriptorProto& first = *file.mutable_message_type(0);
  first.clear_field();
  for (int i = 1999; i > 0; --i) AddField(first, i, FieldDescriptorProto::LABEL_REPEATED);
  ExpectRefused({file}, "nest more than 1000 deep");
}

TEST(SchemaTest, WellKnownTypesAreThisPrograms) {
  FileDescriptorProto fake = File("google/protobuf/struct.proto", "google.protobuf");
  fake.add_message_type()->set_name("Struct");
  FileDescriptorProto user = File("user.proto", "user");
  user.add_dependency("google/protobuf/struct.proto");
  AddMethod(user, ".google.protobuf.Struct");
  absl::StatusOr<std::unique_ptr<Schema>> schema = Build({fake, user});
  ASSERT_TRUE(schema.ok()) << schema.status();
  const absl::StatusOr<std::string> text = (*schema)->Text("google.protobuf.Struct");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("fields = 1"));
}

TEST(SchemaTest, RefusesTypesThatPassForWellKnownOnes) {
  FileDescriptorProto elsewhere = File("elsewhere.proto", "google.protobuf");
  elsewhere.add_message_type()->set_name("Struct");
  ExpectRefused({elsewhere}, "types of google.protobuf");
  FileDescriptorProto unknown = File("google/protobuf/unknown.proto", "google.protobuf");
  ExpectRefused({unknown}, "types of google.protobuf");
  FileDescriptorProto inside = File("inside.proto", "google");
  google::protobuf::DescriptorProto& outer = *inside.add_message_type();
  outer.set_name("protobuf");
  outer.add_nested_type()->set_name("Struct");
  ExpectRefused({inside}, "types of google.protobuf");
}

TEST(SchemaTest, RefusesFilesThatAreWrong) {
  EXPECT_EQ(absl::StatusCode::kDataLoss, Schema::Build({"\xff"}).status().code());
  FileDescriptorProto file = Chain(1);
  AddField(*file.mutable_message_type(0), 7, FieldDescriptorProto::LABEL_OPTIONAL);
  ExpectRefused({file}, "chain.M7");
}

}  // namespace schema_test
}  // namespace verbena::command
