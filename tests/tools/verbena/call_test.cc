// The command `verbena call` calls methods of each shape by what reflection says of them, and says
// in one line what is wrong with its arguments, the JSON, or the server.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/types/span.h"
#include "tests/rpc/stream_payload_testing.pb.h"
#include "tests/tools/verbena/served_command.h"
#include "tools/verbena/calls.h"
#include "verbena/reflection.pb.h"
#include "verbena/rpc/reflection/methods.h"
#include "verbena/rpc/service.h"

namespace verbena::command {
namespace call_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using CallTest = ServedCommand;

// A failure before any call is one line, and exit status 2.
void ExpectMistake(const std::string& error, int exit, const std::string& text) {
  EXPECT_EQ(kMistake, exit);
  EXPECT_THAT(error, StartsWith("verbena: "));
  EXPECT_THAT(error, HasSubstr(text));
  EXPECT_EQ(1, std::count(error.begin(), error.end(), '\n')) << error;
}

TEST_F(CallTest, PrintsTheReplyAsOneLineOfJson) {
  Serve();
  const Result result = Call("Testing/Echo", {R"({"number": "7", "data": "YWI="})"});
  EXPECT_EQ(0, result.exit) << result.error;
  EXPECT_EQ("{\"number\":\"7\",\"data\":\"YWI=\"}\n", result.output);
  EXPECT_THAT(result.error, IsEmpty());
}

TEST_F(CallTest, TakesTheRequestFromStandardInputAFileOrNowhere) {
  Serve();
  EXPECT_EQ("{\"number\":\"7\"}\n", Call("Testing/Echo", {"-"}, "{\n\"number\": 7\n}\n").output);
  const std::string file = Write("request.json", R"({"number": 8})");
  EXPECT_EQ("{\"number\":\"8\"}\n", Call("Testing.Echo", {"@" + file}).output);
  EXPECT_EQ("{}\n", Call("Testing/Echo", {}).output);
  EXPECT_EQ("{\"number\":\"0\",\"data\":\"\"}\n", Call("Testing/Echo", {"--defaults"}).output);
}

TEST_F(CallTest, AFailureIsOneLineWithTheOutcomeAndAnExitStatusByItsCode) {
  Serve();
  const Result result =
      Call("Testing/Fail", {R"({"code": 5, "message": "no\nblock\u001b[31m 7"})"});
  EXPECT_EQ(69, result.exit);
  EXPECT_EQ("verbena: NOT_FOUND: no\\nblock\\u001b[31m 7 (executed)\n", result.error);
  EXPECT_THAT(result.output, IsEmpty());
}

TEST_F(CallTest, AServersFailureIsNeverTheUsersMistake) {
  Serve();
  const Result result = Call(
      "Testing/Fail",
      {R"({"code": 5, "message": "no", "detail_url": "verbena.command/mistake", "detail": "eA=="})"});
  EXPECT_EQ(69, result.exit);
  EXPECT_EQ("verbena: NOT_FOUND: no (executed)\n", result.error);
}

// A service of reflection whose names would command the terminal.
class StrangeNames final : public Service {
 public:
  const char* full_name() const override { return internal::kReflectionService; }
  absl::Span<const ServerMethod> methods() const override {
    static const std::array<ServerMethod, 1> methods = {
        ServerMethod{&internal::kListServices, &reflection::v1::ListRequest::default_instance(),
                     &reflection::v1::ListReply::default_instance(), &List}};
    return methods;
  }

 private:
  static Task<absl::Status> List(Service&, ServerContext&, const google::protobuf::MessageLite&,
                                 google::protobuf::MessageLite& reply) {
    reflection::v1::ListReply::Service& service =
        *static_cast<reflection::v1::ListReply&>(reply).add_services();
    service.set_name("a.\x1b[31mB");
    service.add_methods("C\nd.E/F\xc2\x9b");
    co_return absl::OkStatus();
  }
};

TEST_F(CallTest, NamesOfAServerDoNotReachTheTerminalRaw) {
  StrangeNames names;
  Serve({&names});
  EXPECT_EQ("a.\\u001b[31mB\n", Run({"list", address()}).output);
  EXPECT_EQ("a.\\u001b[31mB/C\\nd.E/F\\u009b\n", Run({"list", address(), "--methods"}).output);
  server_.reset();
}

TEST_F(CallTest, ADeadlineEndsTheCall) {
  Serve();
  const Result result = Call("Testing/Wait", {"--deadline", "2s"});
  EXPECT_EQ(68, result.exit) << result.error;
  EXPECT_THAT(result.error, HasSubstr("DEADLINE_EXCEEDED"));
  for (const char* wrong : {"5 parsecs", "5", "-1s", "0s", "", "nan"}) {
    const Result refused = Call("Testing/Wait", {std::string("--deadline=") + wrong});
    ExpectMistake(refused.error, refused.exit, "");
  }
}

TEST_F(CallTest, ADeviceThatIsNotThereIsAMistake) {
  Serve();
  const Result result = Call("Testing/Echo", {"--device", "nosuch"});
  ExpectMistake(result.error, result.exit, "nosuch");
  EXPECT_EQ(0u, testing_.echoes());
}

TEST_F(CallTest, AServerThatIsNotThereIsUnavailable) {
  Serve();
  const std::string gone = address();
  server_.reset();
  const Result result = Run({"call", gone, "verbena.testing.Testing/Echo"});
  EXPECT_EQ(78, result.exit) << result.error;
  EXPECT_THAT(result.error, HasSubstr("UNAVAILABLE"));
  EXPECT_THAT(result.error, HasSubstr("(not_executed)"));
}

TEST_F(CallTest, SaysWhereJsonIsWrongAndCallsNothing) {
  Serve();
  const struct {
    std::string json;
    std::string text;
  } cases[] = {
      {"{\"number\": 7,\n  \"data\" 8}", "the argument:2:10: this is no JSON"},
      {R"({"numbr": 7})",
       "the argument:1:2: verbena.testing.EchoRequest has no field \"numbr\"; did you mean "
       "'number'?"},
      {"{\n\n   \"number\": \"seven\"}", "the argument:3:14: "},
      {"[1]", "the argument:1:1: here must be an object"},
      {"{\"number\": 1e99}", "the argument:1:12: "},
  };
  for (const auto& [json, text] : cases) {
    const Result result = Call("Testing/Echo", {json});
    ExpectMistake(result.error, result.exit, text);
  }
  const std::string file = Write("wrong.json", "{\"data\": \"*\"}");
  const Result result = Call("Testing/Echo", {"@" + file});
  ExpectMistake(result.error, result.exit, file + ":1:10: ");
  EXPECT_EQ(0u, testing_.echoes());
}

TEST_F(CallTest, RefusesInputThatIsTooLongOrNotThere) {
  Serve();
  const Result missing = Call("Testing/Echo", {"@/no/such/file"});
  ExpectMistake(missing.error, missing.exit, "/no/such/file");
  const Result longest = Call("Testing/Echo", {"-"}, std::string((1 << 20) + 1, ' '));
  ExpectMistake(longest.error, longest.exit, "standard input has more than 1048576 bytes");
  const Result deep = Call("Testing/Echo", {std::string(10'000, '[')});
  ExpectMistake(deep.error, deep.exit, "the argument:1:");
}

TEST_F(CallTest, NamesTheNearestServicesAndMethods) {
  Serve();
  const Result service = Call("Testin/Echo", {});
  ExpectMistake(service.error, service.exit, "did you mean 'verbena.testing.Testing'");
  const Result bare = Run({"call", address(), "Payloads/Get"});
  ExpectMistake(bare.error, bare.exit, "did you mean 'verbena.testing.Payloads'");
  const Result method = Call("Testing/Ecko", {});
  ExpectMistake(method.error, method.exit,
                "verbena.testing.Testing has no method 'Ecko'; did you mean 'Echo'?");
  const Result far = Call("Testing/Qwertyuiop", {});
  ExpectMistake(far.error, far.exit, "has no method 'Qwertyuiop'\n");
}

TEST_F(CallTest, SaysWhatAServerWithoutReflectionMustLink) {
  Serve({&testing_});
  const Result result = Call("Testing/Echo", {});
  EXPECT_EQ(76, result.exit);
  for (const char* text : {"Verbena::reflection", "verbena-reflection", "@verbena//rpc:reflection",
                           "verbena::ReflectionService"}) {
    EXPECT_THAT(result.error, HasSubstr(text));
  }
}

TEST_F(CallTest, SaysThatLiteMessagesCannotBeCalled) {
  Serve();
  const Result result = Call("lite.Notes/Keep", {});
  EXPECT_EQ(73, result.exit);
  EXPECT_THAT(result.error, HasSubstr("LITE_RUNTIME"));
}

TEST_F(CallTest, SendsMetadataAndShowsWhatComesBack) {
  Serve();
  EXPECT_EQ(0, Call("Testing/Echo", {"-m", "tenant=a=b", "-m", "token-bin=AAE="}).exit);
  const Result key = Call("Testing/Echo", {"-m", "Tenant=blue"});
  ExpectMistake(key.error, key.exit, "Tenant");
  const Result equals = Call("Testing/Echo", {"-m", "tenant"});
  ExpectMistake(equals.error, equals.exit, "--metadata 'tenant' has no '='");
  const Result base64 = Call("Testing/Echo", {"-m", "token-bin=*"});
  ExpectMistake(base64.error, base64.exit, "base64");
  EXPECT_THAT(Call("Testing/Echo", {"-v"}).error, HasSubstr(" ms; request 0 bytes, reply"));
}

TEST_F(CallTest, SendsAPayloadAndKeepsTheReplys) {
  Serve();
  std::string content(100'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  const std::string file = Write("payload", content);
  const std::string out = Path("swapped");
  const Result result = Call("Payloads/Swap", {"--payload", file, "--payload-out", out});
  EXPECT_EQ(0, result.exit) << result.error;
  std::string swapped = content;
  for (char& c : swapped) c = static_cast<char>(~c);
  EXPECT_TRUE(Read("swapped") == swapped);
  EXPECT_THAT(Call("Payloads/Swap", {"--payload", file}).error,
              HasSubstr("a payload of 100000 bytes came, too: --payload-out FILE keeps it"));
}

TEST_F(CallTest, RefusesPayloadsThatTheMethodDoesNotHave) {
  Serve();
  const std::string file = Write("small", "x");
  const Result in = Call("Testing/Echo", {"--payload", file});
  ExpectMistake(in.error, in.exit, "verbena.testing.Testing/Echo takes no payload");
  const Result out = Call("Testing/Echo", {"--payload-out", Path("out")});
  ExpectMistake(out.error, out.exit, "sends no payload");
  const Result two = Call("Payloads/Put", {"--payload", file, "--payload", file});
  ExpectMistake(two.error, two.exit, "one --payload");
  const Result missing = Call("Payloads/Put", {"--payload", "/no/such/file"});
  ExpectMistake(missing.error, missing.exit, "/no/such/file");
}

TEST_F(CallTest, ReadsAndWritesStreamsAsLines) {
  Serve();
  EXPECT_EQ("{}\n{\"number\":\"1\"}\n", Call("Streaming/Count", {R"({"count": 2})"}).output);
  EXPECT_EQ("{\"count\":\"2\",\"bytes\":\"2\"}\n",
            Call("Streaming/Sum", {"-"}, "{\"data\": \"YQ==\"}\n\n{\"data\": \"YQ==\"}\n").output);
  const Result echo = Call("Streaming/Echo", {"-"}, "{\"number\": 3}\n{\"number\": 4}");
  EXPECT_EQ(0, echo.exit) << echo.error;
  EXPECT_EQ("{\"number\":\"3\"}\n{\"number\":\"4\"}\n", echo.output);
  EXPECT_EQ(73, Call("Streaming/Count", {R"({"count": 1, "code": 9})"}).exit);
}

TEST_F(CallTest, AClientsStreamEndsWithItsCallThoughTheInputStaysOpen) {
  Serve();
  for (const size_t filler : {0, 100'000}) {
    streams_.reply_filler = filler;
    int ends[2];
    ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
    // Sum answers when it has read this number, and does not wait for the end of the stream.
    const std::string line = "{\"number\": \"1099511627776\"}\n";
    ASSERT_EQ(static_cast<ssize_t>(line.size()), write(ends[1], line.data(), line.size()));
    const Result result =
        RunFrom(ends[0], {"call", address(), "verbena.testing.Streaming/Sum", "-"});
    close(ends[0]);
    close(ends[1]);
    EXPECT_EQ(0, result.exit) << result.error;
    // Bytes are base64 in JSON.
    const std::string reply =
        "{\"filler\":\"" + absl::Base64Escape(std::string(filler, 'f')) + "\"}\n";
    EXPECT_EQ(filler == 0 ? "{}\n" : reply, result.output);
  }
}

TEST_F(CallTest, AWrongLineOfAStreamGivesTheCallUp) {
  Serve();
  for (const char* method : {"Streaming/Sum", "Streaming/Echo"}) {
    const Result result = Call(method, {"-"}, "{\"number\": 1}\n{\"nmber\": 2}\n");
    ExpectMistake(result.error, result.exit, "standard input:2:2: ");
  }
}

TEST_F(CallTest, EachMessageOfAStreamHasItsPayload) {
  // Its file declares no message, so nothing else has the linker keep its descriptors.
  const void* volatile linked = &descriptor_table_tests_2frpc_2fstream_5fpayload_5ftesting_2eproto;
  ASSERT_NE(nullptr, linked);
  Serve();
  const std::string first = Write("first", "one,");
  const std::string second = Write("second", "two");
  const Result result =
      Call("PayloadStreams/Echo",
           {"-", "--payload", first, "--payload", second, "--payload-out", Path("both")},
           "{\"number\": 1}\n{\"number\": 2}\n");
  EXPECT_EQ(0, result.exit) << result.error;
  EXPECT_EQ("{\"number\":\"1\"}\n{\"number\":\"2\"}\n", result.output);
  EXPECT_EQ("one,two", Read("both"));
}

}  // namespace call_test
}  // namespace verbena::command
