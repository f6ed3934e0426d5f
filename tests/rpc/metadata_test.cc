// Metadata refuses what may not be sent, and keeps the rest in order. A context block survives its
// encoding; no malformed one is read, and none makes its reader leave the block.

#include "verbena/rpc/call.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace metadata_test {

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST(MetadataTest, KeepsAllValuesOfAKeyInOrder) {
  Metadata metadata = {{"tenant", "blue"}, {"hop", "a"}, {"token-bin", std::string("\0\xff", 2)}};
  metadata.Add("hop", "b").Add("empty", "");
  EXPECT_EQ(metadata.status(), absl::OkStatus());
  EXPECT_EQ(metadata.size(), 5u);
  EXPECT_EQ(metadata.Get("tenant"), "blue");
  EXPECT_EQ(metadata.Get("token-bin"), std::string("\0\xff", 2));
  EXPECT_EQ(metadata.Get("empty"), "");
  EXPECT_EQ(metadata.Get("none"), std::nullopt);
  EXPECT_EQ(metadata.All("hop"), (std::vector<std::string_view>{"a", "b"}));
  std::string keys;
  for (const auto& [key, value] : metadata) keys += std::string(key) + " ";
  EXPECT_EQ(keys, "tenant hop token-bin hop empty ");
  EXPECT_EQ(metadata.bytes(), 6u + 4 + 4 + 3 + 1 + 4 + 9 + 2 + 4 + 3 + 1 + 4 + 5 + 4);
}

TEST(MetadataTest, RemovesAllEntriesOfAKey) {
  Metadata metadata = {{"hop", "a"}, {"tenant", "blue"}, {"hop", "b"}};
  EXPECT_EQ(metadata.Remove("hop"), 2u);
  EXPECT_EQ(metadata.Remove("hop"), 0u);
  EXPECT_EQ(metadata.size(), 1u);
  EXPECT_EQ(metadata.Get("tenant"), "blue");
}

TEST(MetadataTest, ACopyIsDeepAndAClearedOneIsUntouched) {
  Metadata metadata = {{"hop", "a"}};
  Metadata copy = metadata;
  copy.Add("hop", "b");
  EXPECT_EQ(metadata.size(), 1u);
  EXPECT_EQ(copy.size(), 2u);
  copy.Clear();
  EXPECT_TRUE(copy.untouched());
  EXPECT_EQ(copy.begin(), copy.end());
}

TEST(MetadataTest, RefusesKeysThatGrpcWouldRefuse) {
  for (const char* key : {"", "Tenant", "te nant", "ten\xc3\xa4nt", "a:b", "a/b", "a\n"}) {
    const Metadata metadata = {{key, "x"}};
    EXPECT_EQ(metadata.status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_TRUE(metadata.empty());
    EXPECT_FALSE(metadata.untouched());
  }
  EXPECT_TRUE(Mentions(Metadata{{"ten\xc3\xa4nt", "x"}}.status(), "\"ten\\xc3\\xa4nt\""));
  EXPECT_TRUE(Metadata({{std::string(255, 'k'), "x"}}).status().ok());
  EXPECT_EQ(Metadata({{std::string(256, 'k'), "x"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Metadata({{"a-z_0.9", "x"}}).status().ok());
}

TEST(MetadataTest, RefusesKeysThatAreVerbenasOwn) {
  for (const char* key : {"verbena-", "verbena-priority", "traceparent", "tracestate"}) {
    const absl::Status status = Metadata{{key, "x"}}.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_TRUE(Mentions(status, key)) << status;
  }
}

TEST(MetadataTest, TakesBytesUnderABinaryKeyAlone) {
  EXPECT_TRUE(Metadata({{"a-bin", "\xff\n"}}).status().ok());
  for (const char* value : {"\xff", "a\n", "\x7f", "\t"}) {
    const absl::Status status = Metadata{{"text", value}}.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(Mentions(status, "\"text\"")) << status;
  }
  EXPECT_TRUE(Metadata({{"text", " ~"}}).status().ok());
}

TEST(MetadataTest, IsBounded) {
  Metadata metadata = {{"a", std::string(Metadata::kMaxBytes - 5, 'x')}};
  EXPECT_TRUE(metadata.status().ok());
  EXPECT_EQ(metadata.bytes(), Metadata::kMaxBytes);
  metadata.Add("late", "");
  EXPECT_EQ(metadata.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Mentions(metadata.status(), "\"late\"")) << metadata.status();
  EXPECT_EQ(Metadata({{"a", std::string(Metadata::kMaxBytes - 4, 'x')}}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// --- context blocks

TraceContext Trace() {
  return *TraceContext::Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2");
}

CallContext Everything() {
  return {.priority = Priority::kBackground,
          .tells_highest = true,
          .request_id = RequestId{.client = {1, 2, 3}, .number = 0x1122334455667788},
          .trace = Trace(),
          .metadata = {{"tenant", "blue"}, {"token-bin", "\xff"}},
          .dedupe = DedupeName{.id = {.client = {9}, .number = 7},
                               .acknowledged_below = 5,
                               .earlier = 0x8877665544332211,
                               .highest = 8},
          .earlier = {{.link = 0x1234567890, .executor = 3, .slot = 65535, .generation = 9},
                      {.link = 0x1234567891, .slot = 1}}};
}

std::string Encoded(const CallContext& context) {
  std::string block(context.encoded_bytes(), '\0');
  context.Encode(block.data());
  return block;
}

absl::StatusOr<CallContext> Read(const std::string& block) {
  // Memory of exactly this size, so that AddressSanitizer sees a read past it.
  const std::vector<char> bytes(block.begin(), block.end());
  CallContext context;
  VERBENA_RETURN_IF_ERROR(ParseContext(bytes.data(), bytes.size(), context));
  return context;
}

absl::Status Parse(const std::string& block) { return Read(block).status(); }

std::string WithByte(std::string bytes, size_t offset, char value) {
  bytes[offset] = value;
  return bytes;
}

TEST(ContextFormatTest, ABlockSurvivesItsEncoding) {
  const CallContext sent = Everything();
  const std::string block = Encoded(sent);
  const absl::StatusOr<CallContext> read = Read(block);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->priority, sent.priority);
  EXPECT_EQ(read->request_id, sent.request_id);
  EXPECT_EQ(read->trace, sent.trace);
  EXPECT_EQ(read->metadata.size(), 2u);
  EXPECT_EQ(read->metadata.Get("token-bin"), "\xff");
  EXPECT_EQ(read->dedupe, sent.dedupe);
  EXPECT_EQ(read->earlier, sent.earlier);
  EXPECT_EQ(block.size(), 8 + 28 + 7 + 24 + 40 + 8 + (8 + 2 * 16) + (4 + 6 + 4) + (4 + 9 + 1));
}

TEST(ContextFormatTest, EachBeginningOfABlockIsRefused) {
  const std::string block = Encoded(Everything());
  for (size_t bytes = 0; bytes < block.size(); ++bytes) {
    EXPECT_FALSE(Parse(block.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_TRUE(Parse(block).ok());
  EXPECT_FALSE(Parse(block + "x").ok()) << "a byte behind it";
}

TEST(ContextFormatTest, MalformedBlocksAreRefused) {
  const std::string block = Encoded(Everything());
  // Its other parts are right.
  std::string five_earlier = Encoded({.earlier = std::vector<EarlierAttempt>(4)});
  five_earlier = WithByte(five_earlier + five_earlier.substr(16), 8, 5);
  five_earlier.resize(16 + 5 * 16);
  five_earlier = WithByte(five_earlier, 0, static_cast<char>(five_earlier.size()));
  const size_t state = 8 + 28;
  const size_t dedupe = state + 7 + 24;
  const size_t highest = dedupe + 40;
  const size_t earlier = highest + 8;
  const size_t entry = earlier + 8 + 2 * 16;
  const std::vector<std::pair<const char*, std::string>> malformed = {
      {"no block", ""},
      {"too short for itself", WithByte(block, 0, 7)},
      {"huge", WithByte(block, 3, '\x7f')},
      {"unknown flag", WithByte(block, 4, '\x7b')},
      {"highest number of no name", std::string("\x10\0\0\0\x20\0\0\0\0\0\0\0\0\0\0\0", 16)},
      {"highest number that is not the highest", WithByte(block, highest, 6)},
      {"highest number that no client gives", std::string(block).replace(highest, 8, 8, '\xff')},
      {"no earlier attempt", WithByte(block, earlier, 0)},
      {"more earlier attempts than there may be", five_earlier},
      {"reserved of the earlier attempts", WithByte(block, earlier + 1, 1)},
      {"travels and has a trace", WithByte(block, 4, '\x05')},
      {"unknown priority", WithByte(block, 5, 3)},
      {"reserved", WithByte(block, 6, 1)},
      {"no trace id", std::string(block).replace(8, 16, 16, '\0')},
      {"no span id", std::string(block).replace(24, 8, 8, '\0')},
      {"reserved of the trace", WithByte(block, 8 + 25, 1)},
      {"state past the end", WithByte(block, 8 + 27, '\x7f')},
      {"state that is none", WithByte(block, state, '=')},
      {"empty key", WithByte(block, entry, 0)},
      {"metadata cut by an unflagged name", WithByte(block, 4, '\x03')},
      {"key in capitals", WithByte(block, entry + 4, 'T')},
      {"key past the end", WithByte(block, entry + 1, '\xff')},
      {"value past the end", WithByte(block, entry + 3, '\xff')},
      {"value that is no text", WithByte(block, entry + 4 + 6, '\n')},
  };
  for (const auto& [name, bytes] : malformed) {
    EXPECT_EQ(Parse(bytes).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

// Bytes that would pass for the rest of an entry lie behind the block.
TEST(ContextFormatTest, AnEntryEndsWithItsBlockWhateverFollows) {
  const std::string block = Encoded({.metadata = {{"rows", "7"}}});
  const size_t entry = block.size() - 4 - 5;
  for (const size_t length : {entry, entry + 2}) {
    for (const size_t byte : {length, length + 1}) {
      const std::string longer = WithByte(block, byte, '\x7f') + std::string(1 << 17, 'a');
      CallContext context;
      EXPECT_EQ(ParseContext(longer.data(), block.size(), context).code(),
                absl::StatusCode::kInvalidArgument)
          << byte - entry;
    }
  }
}

TEST(ContextFormatTest, AResponseHasMetadataAlone) {
  const auto trailing = [](const CallContext& context) {
    const std::string block = Encoded(context);
    return ParseTrailingMetadata(block.data(), block.size()).status();
  };
  EXPECT_TRUE(trailing({.metadata = {{"rows", "7"}}}).ok());
  EXPECT_FALSE(trailing({.priority = Priority::kControl}).ok());
  EXPECT_FALSE(trailing({.request_id = RequestId{}}).ok());
  EXPECT_FALSE(trailing({.trace = Trace()}).ok());
  EXPECT_FALSE(trailing({.dedupe = DedupeName{.id = {.client = {1}, .number = 1}}}).ok());
}

TEST(ContextFormatTest, ANameOfADeduplicatedCallIsChecked) {
  const auto named = [](const DedupeName& name) { return Parse(Encoded({.dedupe = name})); };
  const RequestId id{.client = {1}, .number = 7};
  EXPECT_TRUE(named({.id = id}).ok());
  EXPECT_TRUE(named({.id = id, .acknowledged_below = 7, .earlier = DedupeName::kSeveral}).ok());
  EXPECT_FALSE(named({.id = id, .acknowledged_below = 8}).ok()) << "its own result, too";
  EXPECT_FALSE(named({.id = {.client = {1}, .number = 0}}).ok());
  EXPECT_FALSE(named({.id = {.client = {}, .number = 7}}).ok());
}

TEST(ContextFormatTest, AHighestNumberMayBeUnknown) {
  CallContext context{.tells_highest = true,
                      .dedupe = DedupeName{.id = {.client = {1}, .number = 7}}};
  for (const uint64_t highest : {uint64_t{0}, uint64_t{7}, ~uint64_t{0} - 1}) {
    context.dedupe->highest = highest;
    const std::string block = Encoded(context);
    const absl::StatusOr<CallContext> read = Read(block);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dedupe->highest, highest);
  }
  context.tells_highest = false;
  const std::string block = Encoded(context);
  EXPECT_EQ(Read(block)->dedupe->highest, 0u);
}

TEST(ContextFormatTest, WhatALinksSidesHaveNotAgreedOnIsAViolation) {
  const DedupeName name{.id = {.client = {1}, .number = 7}};
  const CallContext plain{.dedupe = name};
  const CallContext names{.earlier = {{.link = 1}}};
  const CallContext tells{.tells_highest = true, .dedupe = name};
  for (const bool names_attempts : {false, true}) {
    for (const bool tells_highest : {false, true}) {
      const ContextFeatures agreed{.names_attempts = names_attempts,
                                   .tells_highest = tells_highest};
      EXPECT_TRUE(CheckAnnounced(plain, agreed).ok());
      EXPECT_EQ(CheckAnnounced(names, agreed).ok(), names_attempts);
      EXPECT_EQ(CheckAnnounced(tells, agreed).ok(), tells_highest);
    }
  }
  EXPECT_TRUE(Mentions(CheckAnnounced(tells, {}), "highest number"));
}

TEST(ContextFormatTest, ABlockThatTravelsLeavesItsLengthInTheFrame) {
  std::string header(kContextHeaderBytes, '\0');
  EncodeTravellingContext(kMaxContextBytes, header.data());
  absl::StatusOr<ContextHeader> read = ParseContextHeader(header.data(), header.size());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->travels);
  EXPECT_EQ(read->block_bytes, kMaxContextBytes);
  EXPECT_EQ(read->in_frame(), kContextHeaderBytes);
  EXPECT_FALSE(Parse(header).ok()) << "it is no block";
  EncodeTravellingContext(kMaxContextBytes + 1, header.data());
  EXPECT_FALSE(ParseContextHeader(header.data(), header.size()).ok());
}

}  // namespace metadata_test
}  // namespace verbena::internal
