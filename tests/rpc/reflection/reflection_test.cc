// A client learns from a server which services it serves and the .proto files that these use, and
// nothing else; answers are bounded.

#include "verbena/rpc/reflection.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "tests/rpc/reflection/served.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing_service.h"
#include "verbena/reflection.pb.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/reflection/files.h"
#include "verbena/rpc/reflection/methods.h"

namespace verbena::internal {
namespace reflection_test {

using reflection::v1::DescribeReply;
using reflection::v1::DescribeRequest;
using reflection::v1::ListReply;
using reflection::v1::ListRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReflectionTest : public RuntimePair {
 protected:
  void Serve(const std::vector<Service*>& services) {
    server_runtime_ = StartRuntime();
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*server_runtime_, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  }
  ~ReflectionTest() override { StopAll(); }

  absl::StatusOr<ListReply> List() {
    return client_runtime_->BlockOn(
        UnaryCall<ListRequest, ListReply>(CoreOf(*channel_), kListServices, ListRequest()));
  }
  absl::StatusOr<DescribeReply> Describe(const std::string& name) {
    DescribeRequest request;
    request.set_name(name);
    return client_runtime_->BlockOn(UnaryCall<DescribeRequest, DescribeReply>(
        CoreOf(*channel_), kDescribe, std::move(request)));
  }
  // Builds the files of an answer, which must be in the order in which they can be built.
  static const google::protobuf::FileDescriptor* Build(const DescribeReply& reply,
                                                       google::protobuf::DescriptorPool& pool) {
    const google::protobuf::FileDescriptor* last = nullptr;
    for (const std::string& bytes : reply.files()) {
      google::protobuf::FileDescriptorProto file;
      if (!file.ParseFromString(bytes)) return nullptr;
      last = pool.BuildFile(file);
      if (last == nullptr) return nullptr;
    }
    return last;
  }

  TestingService testing_;
  PartlyService partly_;
  LiteService lite_;
  ReflectionService reflection_;
};

TEST_F(ReflectionTest, ListsTheServedServicesInTheirOrder) {
  Serve({&partly_, &lite_, &reflection_});
  const absl::StatusOr<ListReply> list = List();
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::string> names;
  for (const auto& service : list->services()) names.push_back(service.name());
  EXPECT_THAT(names, ElementsAre("verbena.testing.partly.Served", "verbena.testing.lite.Notes",
                                 "verbena.reflection.v1.Reflection"));
  EXPECT_THAT(list->services(2).methods(), ElementsAre("List", "Describe"));
  EXPECT_EQ(0u, list->methods_left_out());
}

TEST_F(ReflectionTest, DescribesAServiceByFilesThatCanBeBuilt) {
  Serve({&partly_, &reflection_});
  const absl::StatusOr<DescribeReply> reply = Describe("verbena.testing.partly.Served");
  ASSERT_TRUE(reply.ok()) << reply.status();
  google::protobuf::DescriptorPool pool;
  const google::protobuf::FileDescriptor* file = Build(*reply, pool);
  ASSERT_NE(nullptr, file);
  EXPECT_EQ("tests/rpc/reflection/partly.proto", file->name());
  const google::protobuf::ServiceDescriptor* service =
      pool.FindServiceByName("verbena.testing.partly.Served");
  ASSERT_NE(nullptr, service);
  EXPECT_THAT(service->method(0)->DebugString(), HasSubstr("response_payload: true"));
}

TEST_F(ReflectionTest, LeavesOutServicesThatTheServerDoesNotServe) {
  Serve({&partly_, &reflection_});
  const absl::StatusOr<DescribeReply> reply = Describe("verbena.testing.partly.Served");
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (const std::string& file : reply->files()) {
    EXPECT_EQ(std::string::npos, file.find("Unserved"));
  }
  const absl::Status unserved = Describe("verbena.testing.partly.Unserved").status();
  EXPECT_EQ(absl::StatusCode::kNotFound, unserved.code()) << unserved;
}

TEST_F(ReflectionTest, DescribesMessagesAndEnumsThatAServedServiceUses) {
  Serve({&partly_, &reflection_});
  for (const char* name : {"verbena.testing.partly.Question", "verbena.testing.partly.Mood"}) {
    const absl::StatusOr<DescribeReply> reply = Describe(name);
    ASSERT_TRUE(reply.ok()) << reply.status();
    google::protobuf::DescriptorPool pool;
    EXPECT_NE(nullptr, Build(*reply, pool));
    EXPECT_NE(nullptr, pool.FindFileContainingSymbol(name));
  }
}

TEST_F(ReflectionTest, DoesNotTellOfOtherFilesOfTheProcess) {
  Serve({&partly_, &reflection_});
  // Linked into this process, and used by no served service.
  const absl::Status status = Describe("verbena.testing.EchoRequest").status();
  EXPECT_EQ(absl::StatusCode::kNotFound, status.code()) << status;
  EXPECT_THAT(status.message(), HasSubstr("verbena.testing.EchoRequest"));
}

TEST_F(ReflectionTest, SaysThatLiteMessagesHaveNoDescriptors) {
  Serve({&lite_, &reflection_});
  const absl::Status status = Describe("verbena.testing.lite.Notes").status();
  EXPECT_EQ(absl::StatusCode::kFailedPrecondition, status.code()) << status;
  EXPECT_THAT(status.message(), HasSubstr("LITE_RUNTIME"));
}

TEST_F(ReflectionTest, RefusesNamesThatAreTooLong) {
  Serve({&partly_, &reflection_});
  const absl::Status longest =
      Describe(std::string(ReflectionService::kMaxNameBytes, 'a')).status();
  EXPECT_EQ(absl::StatusCode::kNotFound, longest.code()) << longest;
  const absl::Status status =
      Describe(std::string(ReflectionService::kMaxNameBytes + 1, 'a')).status();
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code()) << status;
  EXPECT_THAT(status.message(), HasSubstr("1025 bytes"));
}

TEST_F(ReflectionTest, AnswersNoMoreThanTheBytesThatAnAnswerMayHave) {
  std::vector<const ServerMethod*> served;
  for (const ServerMethod& method : partly_.methods()) served.push_back(&method);
  EXPECT_TRUE(FilesThatDeclare("verbena.testing.partly.Served", served, 1 << 20).ok());
  const absl::Status status =
      FilesThatDeclare("verbena.testing.partly.Served", served, 100).status();
  EXPECT_EQ(absl::StatusCode::kResourceExhausted, status.code()) << status;
}

// A service of methods whose names are longer than an answer may be.
class LongService final : public Service {
 public:
  LongService() {
    for (int i = 0; i < 3; ++i) {
      names_[i] = "long.Service/" + std::string(400'000, static_cast<char>('a' + i));
      descriptors_.push_back(
          std::make_unique<MethodDescriptor>(names_[i].c_str(), Idempotency::kUnknown));
      methods_.push_back({descriptors_.back().get(), &testing::Empty::default_instance(),
                          &testing::Empty::default_instance(), nullptr});
    }
  }
  const char* full_name() const override { return "long.Service"; }
  absl::Span<const ServerMethod> methods() const override { return methods_; }

 private:
  std::string names_[3];
  std::vector<std::unique_ptr<MethodDescriptor>> descriptors_;
  std::vector<ServerMethod> methods_;
};

TEST_F(ReflectionTest, CutsAListOffThatIsTooLongAndSaysSo) {
  static LongService service;  // outlives the server
  Serve({&service, &reflection_});
  const absl::StatusOr<ListReply> list = List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(1, list->services_size());
  EXPECT_EQ(2, list->services(0).methods_size());
  EXPECT_EQ(3u, list->methods_left_out());
}

}  // namespace reflection_test
}  // namespace verbena::internal
