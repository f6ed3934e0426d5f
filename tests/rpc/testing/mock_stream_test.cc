// Code that takes a StubInterface streams over a server through an adapter, and in its place with
// played messages and GoogleMock's streams.

#include "verbena/rpc/testing/mock_stream.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/testing/notes.verbena.pb.h"
#include "tests/rpc/testing/notes_mock.verbena.pb.h"
#include "tests/rpc/testing/notes_service.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/memory.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream.h"
#include "verbena/rpc/task.h"
#include "verbena/testing.h"

namespace verbena::testing::notes {
namespace mock_stream_test {

using std::chrono_literals::operator""s;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ByMove;
using ::testing::DoAll;
using ::testing::ElementsAre;
using ::testing::InSequence;
using ::testing::Return;
using ::testing::SetArgReferee;

MATCHER_P(HasText, text, "") { return arg.text() == text; }

// The messages that a stream gave, and its end.
struct Heard {
  std::vector<std::string> texts;
  absl::Status status;
};

// The code under test, one for each kind of stream.
Task<Heard> Spelled(Notes::StubInterface& notes, std::string text) {
  std::unique_ptr<ClientReaderInterface<Text>> letters = notes.Spell(TextOf(std::move(text)));
  Heard heard;
  Text letter;
  while (co_await letters->Read(letter)) heard.texts.push_back(letter.text());
  heard.status = co_await letters->Finish();
  co_return heard;
}

Task<absl::StatusOr<Text>> Joined(Notes::StubInterface& notes, std::vector<std::string> texts) {
  std::unique_ptr<ClientWriterInterface<Text, Text>> writer = notes.Join();
  for (const std::string& text : texts) {
    if (!(co_await writer->Write(TextOf(text))).ok()) break;
  }
  VERBENA_CO_RETURN_IF_ERROR(co_await writer->WritesDone());
  co_return co_await writer->Finish();
}

Task<Heard> Chatted(Notes::StubInterface& notes, std::vector<std::string> texts) {
  std::unique_ptr<ClientReaderWriterInterface<Text, Text>> chat = notes.Chat();
  Heard heard;
  for (const std::string& text : texts) {
    if (!(co_await chat->Write(TextOf(text))).ok()) break;
    std::optional<Text> answer = co_await chat->Read();
    if (!answer) break;
    heard.texts.push_back(answer->text());
  }
  (void)co_await chat->WritesDone();
  heard.status = co_await chat->Finish();
  co_return heard;
}

// With payloads. Each part is told as its bytes, or as "-" if it has no payload.
using Part = WithPayload<Text>;

std::string Told(const Part& part) {
  return part.has_payload ? std::string(part.payload.data(), part.payload.size()) : "-";
}

Task<Heard> WordsOf(Notes::StubInterface& notes, std::string text) {
  std::unique_ptr<ClientReaderInterface<Part>> words = notes.Words(TextOf(std::move(text)));
  Heard heard;
  Part part;
  while (co_await words->Read(part)) heard.texts.push_back(Told(part));
  heard.status = co_await words->Finish();
  co_return heard;
}

Task<absl::StatusOr<Text>> Gathered(Notes::StubInterface& notes, BufferView payload) {
  std::unique_ptr<ClientWriterInterface<Part, Text>> writer = notes.Gather();
  VERBENA_CO_RETURN_IF_ERROR(co_await writer->Write(TextOf("a"), payload));
  VERBENA_CO_RETURN_IF_ERROR(co_await writer->Write(TextOf("b")));
  VERBENA_CO_RETURN_IF_ERROR(co_await writer->Write(TextOf("c"), BufferView()));
  co_return co_await writer->Finish();
}

Task<Heard> Mirrored(Notes::StubInterface& notes, BufferView payload) {
  std::unique_ptr<ClientReaderWriterInterface<Part, Part>> mirror = notes.Mirror();
  Heard heard;
  (void)co_await mirror->Write(TextOf("a"), payload);
  (void)co_await mirror->Write(TextOf("b"));
  for (int i = 0; i < 2; ++i) {
    std::optional<Part> part = co_await mirror->Read();
    heard.texts.push_back(part.has_value() ? Told(*part) : "no more");
  }
  (void)co_await mirror->WritesDone();
  heard.status = co_await mirror->Finish();
  co_return heard;
}

Task<Heard> Relayed(Notes::StubInterface& notes, std::string text) {
  std::unique_ptr<ClientReaderInterface<Part>> words = notes.Words(TextOf(std::move(text)));
  std::unique_ptr<ClientReaderWriterInterface<Part, Part>> mirror = notes.Mirror();
  Heard heard;
  Part part;
  while (co_await words->Read(part)) {
    if (!(co_await mirror->Write(part)).ok()) break;
    std::optional<Part> back = co_await mirror->Read();
    heard.texts.push_back(back.has_value() ? Told(*back) : "no more");
  }
  heard.status = co_await mirror->Finish();
  co_return heard;
}

Task<Buffer> Filled(Channel& channel, std::string bytes) {
  absl::StatusOr<Buffer> buffer = co_await channel.AllocateBuffer(bytes.size());
  EXPECT_THAT(buffer, IsOk());
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  co_return *std::move(buffer);
}

class StubAdapterTest : public ::testing::Test {
 protected:
  InProcess<NotesService> server_{{}, "re: "};
  Notes::StubAdapter notes_{Notes::Stub(server_.channel())};
};

TEST_F(StubAdapterTest, AReaderGivesTheServersMessagesAndItsStatus) {
  Heard heard = server_.Run(Spelled(notes_, "abc"));
  EXPECT_THAT(heard.texts, ElementsAre("a", "b", "c"));
  EXPECT_THAT(heard.status, IsOk());
  heard = server_.Run(Spelled(notes_, "ab!c"));
  EXPECT_THAT(heard.texts, ElementsAre("a", "b"));
  EXPECT_THAT(heard.status, AllOf(StatusIs(absl::StatusCode::kDataLoss, "a '!'"),
                                  HasOutcome(Outcome::kExecuted)));
}

TEST_F(StubAdapterTest, AWriterSendsAllAndGivesTheReply) {
  EXPECT_THAT(server_.Run(Joined(notes_, {"a", "b", "c"})), IsOkAndHolds(HasText("abc")));
  EXPECT_THAT(server_.Run(Joined(notes_, {"a", ""})), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(StubAdapterTest, AReaderWriterDoesBothInTurns) {
  const Heard heard = server_.Run(Chatted(notes_, {"a", "b"}));
  EXPECT_THAT(heard.texts, ElementsAre("re: a", "re: b"));
  EXPECT_THAT(heard.status, IsOk());
}

TEST_F(StubAdapterTest, AStreamOutlivesTheAdapterAndTheRequest) {
  auto outlive = [&]() -> Task<std::optional<Text>> {
    std::unique_ptr<ClientReaderInterface<Text>> letters;
    {
      Notes::StubAdapter notes{Notes::Stub(server_.channel())};
      const Text request = TextOf(std::string(1000, 'x'));
      letters = notes.Spell(request);
    }
    co_return co_await letters->Read();
  };
  EXPECT_THAT(server_.Run(outlive()), ::testing::Optional(HasText("x")));
}

TEST_F(StubAdapterTest, PayloadsGoWithTheMessages) {
  const Heard words = server_.Run(WordsOf(notes_, "one - two  three"));
  EXPECT_THAT(words.texts, ElementsAre("one", "-", "two", "", "three"));
  EXPECT_THAT(words.status, IsOk());
  const Buffer payload = server_.Run(Filled(server_.channel(), "bytes"));
  EXPECT_THAT(server_.Run(Gathered(notes_, payload.view())), IsOkAndHolds(HasText("bytes-")));
  const Heard mirrored = server_.Run(Mirrored(notes_, payload.view()));
  EXPECT_THAT(mirrored.texts, ElementsAre("bytes", "-"));
  EXPECT_THAT(mirrored.status, IsOk());
}

TEST_F(StubAdapterTest, AWriteSendsWhatAReadGave) {
  const Heard relayed = server_.Run(Relayed(notes_, "one - two  three"));
  EXPECT_THAT(relayed.texts, ElementsAre("one", "-", "two", "", "three"));
  EXPECT_THAT(relayed.status, IsOk());
}

TEST(StubAdapterOptionsTest, AStreamHasTheDeadlineOfItsOptions) {
  InProcess<NotesService> server({.fake_clock = true});
  auto listen = [&]() -> Task<absl::Status> {
    Notes::StubAdapter notes{Notes::Stub(server.channel())};
    std::unique_ptr<ClientReaderWriterInterface<Text, Text>> chat = notes.Chat({.deadline = 1s});
    EXPECT_FALSE(co_await chat->Read());
    co_return co_await chat->Finish();
  };
  JoinHandle<absl::Status> listened = server.runtime().Spawn(listen());
  server.Advance(1s);
  EXPECT_THAT(listened.Join(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

class MockStreamTest : public ::testing::Test {
 protected:
  // An executor to run on.
  InProcessServer fixture_;
  ::testing::StrictMock<MockNotesStub> mock_;
};

TEST_F(MockStreamTest, PlayedMessagesEndWithTheirStatus) {
  EXPECT_CALL(mock_, Spell(HasText("word"), _))
      .WillOnce(PlayMessages<Text>({TextOf("x"), TextOf("y"), TextOf("z")},
                                   absl::DataLossError("the disk")));
  const Heard heard = fixture_.Run(Spelled(mock_, "word"));
  EXPECT_THAT(heard.texts, ElementsAre("x", "y", "z"));
  EXPECT_THAT(heard.status, StatusIs(absl::StatusCode::kDataLoss, "the disk"));
}

TEST_F(MockStreamTest, EachCallOfAnActionPlaysFromTheStart) {
  EXPECT_CALL(mock_, Spell).WillRepeatedly(PlayMessages<Text>({TextOf("x")}));
  for (int i = 0; i < 2; ++i) {
    const Heard heard = fixture_.Run(Spelled(mock_, "word"));
    EXPECT_THAT(heard.texts, ElementsAre("x"));
    EXPECT_THAT(heard.status, IsOk());
  }
}

TEST_F(MockStreamTest, PlayedMessagesTakeWritesUntilTheyAreOver) {
  EXPECT_CALL(mock_, Chat)
      .WillOnce(PlayMessages<Text>({TextOf("x"), TextOf("y")}, absl::UnavailableError("gone")));
  auto chat = [&]() -> Task<void> {
    std::unique_ptr<ClientReaderWriterInterface<Text, Text>> stream = mock_.Chat({});
    for (const char* text : {"x", "y"}) {
      EXPECT_THAT(co_await stream->Write(TextOf("a")), IsOk());
      EXPECT_THAT(co_await stream->Read(), ::testing::Optional(HasText(text)));
    }
    EXPECT_THAT(co_await stream->Write(TextOf("a")), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(co_await stream->Read(), std::nullopt);
    EXPECT_THAT(co_await stream->Finish(), StatusIs(absl::StatusCode::kUnavailable, "gone"));
  };
  fixture_.Run(chat());
}

TEST_F(MockStreamTest, APlayedReplyTakesAllMessages) {
  EXPECT_CALL(mock_, Join)
      .WillOnce(PlayReply<Text>(TextOf("ab")))
      .WillOnce(PlayReply<Text>(absl::UnavailableError("gone")));
  EXPECT_THAT(fixture_.Run(Joined(mock_, {"a", "b"})), IsOkAndHolds(HasText("ab")));
  EXPECT_THAT(fixture_.Run(Joined(mock_, {"a", "b"})), StatusIs(absl::StatusCode::kUnavailable));
}

// Payloads take memory of a channel, whatever its server is for.
class MockPayloadStreamTest : public MockStreamTest {
 protected:
  MockPayloadStreamTest() { fixture_.Serve({&service_}); }
  ~MockPayloadStreamTest() override { fixture_.Stop(); }

  NotesService service_;
};

TEST_F(MockPayloadStreamTest, PlayedMessagesGiveTheirPayloads) {
  EXPECT_CALL(mock_, Words)
      .Times(2)
      .WillRepeatedly(PlayMessages<Part>(fixture_.channel(),
                                         {{TextOf("x"), "one"},
                                          {TextOf("y")},
                                          {TextOf("z"), "longer than one"},
                                          {TextOf("z"), ""}},
                                         absl::DataLossError("the disk")));
  for (int i = 0; i < 2; ++i) {
    const Heard heard = fixture_.Run(WordsOf(mock_, "words"));
    EXPECT_THAT(heard.texts, ElementsAre("one", "-", "longer than one", ""));
    EXPECT_THAT(heard.status, StatusIs(absl::StatusCode::kDataLoss, "the disk"));
  }
}

TEST_F(MockStreamTest, PlayedMessagesWithoutPayloadsTakeNoMemory) {
  EXPECT_CALL(mock_, Mirror).WillOnce(PlayMessages<Part>({{TextOf("x")}, {TextOf("y"), ""}}));
  EXPECT_THAT(fixture_.Run(Mirrored(mock_, BufferView())).texts, ElementsAre("-", ""));
  EXPECT_CALL(mock_, Gather).WillOnce(PlayReply<Text>(TextOf("ab")));
  EXPECT_THAT(fixture_.Run(Gathered(mock_, BufferView())), IsOkAndHolds(HasText("ab")));
}

TEST_F(MockPayloadStreamTest, AMockOfAWriterSeesEachPayload) {
  const Buffer payload = fixture_.Run(Filled(fixture_.channel(), "bytes"));
  auto writer = std::make_unique<MockClientWriter<Part, Text>>();
  {
    InSequence in_order;
    EXPECT_CALL(*writer, Write(HasText("a"), ::testing::Property(&BufferView::size, 5)));
    EXPECT_CALL(*writer, Write(HasText("b")));
    EXPECT_CALL(*writer, Write(HasText("c"), _)).WillOnce(Return(absl::UnavailableError("gone")));
  }
  EXPECT_CALL(mock_, Gather).WillOnce(Return(ByMove(std::move(writer))));
  EXPECT_THAT(fixture_.Run(Gathered(mock_, payload.view())),
              StatusIs(absl::StatusCode::kUnavailable, "gone"));
}

TEST_F(MockStreamTest, AMockOfAReaderAnswersEachRead) {
  auto reader = std::make_unique<MockClientReader<Text>>();
  {
    InSequence in_order;
    EXPECT_CALL(*reader, Read).WillOnce(DoAll(SetArgReferee<0>(TextOf("x")), Return(true)));
    EXPECT_CALL(*reader, Read).WillOnce(InvokeTask([](Text& into) -> Task<bool> {
      EXPECT_THAT(co_await Sleep(Duration::zero()), IsOk());
      into = TextOf("y");
      co_return true;
    }));
    EXPECT_CALL(*reader, Read);
    EXPECT_CALL(*reader, Finish).WillOnce(Return(absl::OkStatus()));
  }
  EXPECT_CALL(mock_, Spell).WillOnce(Return(ByMove(std::move(reader))));
  const Heard heard = fixture_.Run(Spelled(mock_, "word"));
  EXPECT_THAT(heard.texts, ElementsAre("x", "y"));
  EXPECT_THAT(heard.status, IsOk());
}

TEST_F(MockStreamTest, AMockOfAWriterSeesEachWrite) {
  auto writer = std::make_unique<MockClientWriter<Text, Text>>();
  {
    InSequence in_order;
    EXPECT_CALL(*writer, Write(HasText("a")));
    EXPECT_CALL(*writer, Write(HasText("b"))).WillOnce(Return(absl::UnavailableError("gone")));
    EXPECT_CALL(*writer, WritesDone);
    EXPECT_CALL(*writer, Finish).WillOnce(Return(TextOf("a")));
  }
  EXPECT_CALL(mock_, Join).WillOnce(Return(ByMove(std::move(writer))));
  EXPECT_THAT(fixture_.Run(Joined(mock_, {"a", "b", "c"})), IsOkAndHolds(HasText("a")));
}

TEST_F(MockStreamTest, AMockOfAReaderWriterDoesBoth) {
  auto chat = std::make_unique<MockClientReaderWriter<Text, Text>>();
  {
    InSequence in_order;
    EXPECT_CALL(*chat, Write(HasText("a")));
    EXPECT_CALL(*chat, Read).WillOnce(DoAll(SetArgReferee<0>(TextOf("x")), Return(true)));
    EXPECT_CALL(*chat, Write(HasText("b")));
    EXPECT_CALL(*chat, Read);
    EXPECT_CALL(*chat, WritesDone);
    EXPECT_CALL(*chat, Finish);
  }
  EXPECT_CALL(mock_, Chat).WillOnce(Return(ByMove(std::move(chat))));
  const Heard heard = fixture_.Run(Chatted(mock_, {"a", "b", "c"}));
  EXPECT_THAT(heard.texts, ElementsAre("x"));
  EXPECT_THAT(heard.status, StatusIs(absl::StatusCode::kUnimplemented));
}

TEST_F(MockStreamTest, AMethodWithoutAnActionSaysSo) {
  EXPECT_CALL(mock_, Spell);
  EXPECT_CALL(mock_, Join);
  EXPECT_CALL(mock_, Chat);
  EXPECT_THAT(fixture_.Run(Spelled(mock_, "word")).status,
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(fixture_.Run(Joined(mock_, {"a"})), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(fixture_.Run(Chatted(mock_, {"a"})).status,
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_CALL(mock_, Words);
  EXPECT_THAT(fixture_.Run(WordsOf(mock_, "word")).status,
              StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace mock_stream_test
}  // namespace verbena::testing::notes
