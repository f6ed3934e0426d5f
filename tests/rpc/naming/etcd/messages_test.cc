// Requests to etcd's gateway are as etcd 3.4 reads them, its answers are read as it writes them,
// and whatever else comes is an error that says what is wrong.

#include "verbena/rpc/naming/etcd/messages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"

namespace verbena::internal {
namespace {

using std::chrono::seconds;

TEST(EtcdRequestTest, KeysAreBase64AndNumbersText) {
  EXPECT_EQ(EncodeRange("a/x", EtcdRangeKind::kKey, 0), R"({"key":"YS94"})");
  EXPECT_EQ(EncodeRange("a/", EtcdRangeKind::kPrefix, 7),
            R"({"key":"YS8=","range_end":"YTA=","limit":"7"})");
  EXPECT_EQ(EncodeRange("a/", EtcdRangeKind::kNewest, 1),
            R"({"key":"YS8=","range_end":"YTA=","sort_order":"DESCEND","sort_target":"MOD",)"
            R"("keys_only":true,"limit":"1"})");
  EXPECT_EQ(EncodeWatch("a/", 5),
            R"({"create_request":{"key":"YS8=","range_end":"YTA=","start_revision":"5",)"
            R"("fragment":true}})");
  EXPECT_EQ(EncodeGrant(10), R"({"TTL":"10"})");
  EXPECT_EQ(EncodeLease(7), R"({"ID":"7"})");
}

TEST(EtcdRequestTest, ThePrefixEndsWithTheNextKey) {
  EXPECT_EQ(EndOfPrefix("a/"), "a0");
  EXPECT_EQ(EndOfPrefix("a\xff\xff"), "b");
  EXPECT_EQ(EndOfPrefix("\xff"), std::string(1, '\0'));
  EXPECT_EQ(EndOfPrefix("\x7f"), "\x80");
}

TEST(EtcdAnswerTest, ARangeHasItsKeys) {
  const auto range = DecodeRange(
      R"({"header":{"cluster_id":"3249525912","member_id":"33198","revision":"2","raft_term":"2"},)"
      R"("kvs":[{"key":"YS94","create_revision":"1","mod_revision":"2","version":"3",)"
      R"("value":"djE=","lease":"2324035614858113799"}],"count":"5"})");
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(range->revision, 2);
  EXPECT_EQ(range->count, 5);
  ASSERT_EQ(range->entries.size(), 1u);
  EXPECT_EQ(range->entries[0].key, "a/x");
  EXPECT_EQ(range->entries[0].value, "v1");
  EXPECT_EQ(range->entries[0].create_revision, 1);
  EXPECT_EQ(range->entries[0].mod_revision, 2);
  EXPECT_EQ(range->entries[0].version, 3);
  EXPECT_EQ(range->entries[0].lease, 2324035614858113799);
}

TEST(EtcdAnswerTest, ATransactionTellsWhetherItsConditionsHeld) {
  const auto held = DecodeTxn(R"({"header":{"revision":"3"},"succeeded":true,"responses":[)"
                              R"({"response_put":{"header":{"revision":"3"}}}]})");
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_TRUE(held->succeeded);
  const auto failed = DecodeTxn(
      R"({"header":{"revision":"2"},"responses":[{"response_range":{"header":{"revision":"2"},)"
      R"("kvs":[{"key":"YS94","value":"djE="}],"count":"1"}}]})");
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_FALSE(failed->succeeded);
  ASSERT_EQ(failed->read.size(), 1u);
  EXPECT_EQ(failed->read[0].value, "v1");
}

TEST(EtcdAnswerTest, ALeaseWithoutATimeToLiveHasEnded) {
  const auto lease = DecodeKeepAlive(R"({"result":{"header":{},"ID":"7","TTL":"5"}})");
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->id, 7);
  EXPECT_EQ(lease->ttl, seconds(5));
  EXPECT_TRUE(absl::IsNotFound(DecodeKeepAlive(R"({"result":{"header":{},"ID":"7"}})").status()));
}

TEST(EtcdAnswerTest, AWatchTellsOfChangesAndOfCompaction) {
  const auto created = DecodeWatch(R"({"result":{"header":{"revision":"3"},"created":true}})");
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_TRUE(created->events.empty());
  const auto changes = DecodeWatch(
      R"({"result":{"header":{"revision":"3"},"events":[{"kv":{"key":"YS94","mod_revision":"2",)"
      R"("value":"djE="}},{"type":"DELETE","kv":{"key":"YS94","mod_revision":"3"}}]}})");
  ASSERT_TRUE(changes.ok()) << changes.status();
  ASSERT_EQ(changes->events.size(), 2u);
  EXPECT_FALSE(changes->events[0].deleted);
  EXPECT_EQ(changes->events[0].entry.value, "v1");
  EXPECT_TRUE(changes->events[1].deleted);
  EXPECT_EQ(changes->events[1].entry.mod_revision, 3);
  EXPECT_TRUE(absl::IsOutOfRange(
      DecodeWatch(R"({"result":{"header":{},"canceled":true,"compact_revision":"4"}})").status()));
  EXPECT_TRUE(
      absl::IsUnavailable(DecodeWatch(R"({"result":{"header":{},"canceled":true}})").status()));
  const auto ended = [](const std::string& why) {
    return DecodeWatch(R"({"result":{"header":{},"canceled":true,"cancel_reason":")" + why + "\"}}")
        .status();
  };
  for (const char* why :
       {"etcdserver: invalid auth token", "etcdserver: revision of auth store is old",
        "etcdserver: user name is empty"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(ended(why))) << ended(why);
  }
  EXPECT_TRUE(absl::IsPermissionDenied(ended("etcdserver: permission denied")));
  EXPECT_TRUE(absl::IsUnavailable(ended("etcdserver: no leader")));
}

TEST(EtcdAnswerTest, AFailureHasTheCodeThatEtcdGives) {
  const absl::Status lease =
      DecodeFailure(404, R"({"error":"x","message":"etcdserver: no such lease","code":5})");
  EXPECT_TRUE(absl::IsNotFound(lease)) << lease;
  EXPECT_NE(lease.message().find("no such lease"), std::string::npos) << lease;
  EXPECT_TRUE(absl::IsUnimplemented(DecodeFailure(404, "Not Found")));
  EXPECT_TRUE(absl::IsUnavailable(DecodeFailure(503, "<html>")));
  EXPECT_TRUE(absl::IsUnknown(DecodeFailure(302, "")));
  EXPECT_TRUE(absl::IsUnknown(DecodeFailure(400, R"({"code":99,"message":"x"})")));
  EXPECT_FALSE(DecodeFailure(500, R"({"code":0})").ok());
  EXPECT_LT(DecodeFailure(500, std::string(100000, 'x')).message().size(), 1000u);
}

TEST(EtcdAnswerTest, WhateverIsWrongIsNamed) {
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {
      {"", "no JSON"},
      {"{", "no JSON"},
      {"7", "no JSON object"},
      {"{}", "\"header\" is missing"},
      {R"({"header":7})", "\"header\" is no object"},
      {R"({"header":{}})", "revision is 0"},
      {R"({"header":{"revision":"9999999999999999999"}})", "\"revision\" is no whole number"},
      {R"({"header":{"revision":"1"},"kvs":7})", "\"kvs\" is no array"},
      {R"({"header":{"revision":"1"},"kvs":[7]})", "no JSON object"},
      {R"({"header":{"revision":"1"},"kvs":[{}]})", "\"key\" is missing"},
      {R"({"header":{"revision":"1"},"kvs":[{"key":"*"}]})", "\"key\" is no base64"},
      {R"({"header":{"revision":"1"},"kvs":[{"key":7}]})", "\"key\" is no text"},
  };
  for (const auto& each : kCases) {
    const absl::Status status = DecodeRange(each.text).status();
    EXPECT_TRUE(absl::IsInternal(status)) << each.text << ": " << status;
    EXPECT_NE(status.message().find(each.says), std::string::npos) << each.text << ": " << status;
  }
  EXPECT_FALSE(DecodeRange(std::string(100000, '[')).ok()) << "nested too deep";
  EXPECT_FALSE(DecodeGrant(R"({"ID":"7"})").ok());
  EXPECT_FALSE(DecodeGrant(R"({"ID":"7","TTL":"-1"})").ok());
  EXPECT_FALSE(DecodeGrant(R"({"TTL":"5"})").ok());
  EXPECT_FALSE(DecodeWatch(R"({"result":{"header":{"revision":"1"},"events":[{}]}})").ok());
  EXPECT_FALSE(DecodeWatch(R"({"result":7})").ok());
}

TEST(ServerValueTest, AServerReadsAsItWasWritten) {
  const ServerEntry entry{
      .server = {.addresses = {"a:1", "[::1]:2"}, .name = "storage-7", .weight = 3, .zone = "a"},
      .devices = {"mlx5_0"},
      .executors = 4};
  const auto read = DecodeServerValue("storage-7", EncodeServerValue(entry));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->server, entry.server);
  EXPECT_EQ(read->devices, entry.devices);
  EXPECT_EQ(read->executors, 4u);
}

TEST(ServerValueTest, AServerNeedsOnlyAddresses) {
  const auto read = DecodeServerValue("a", R"({"addresses":["a:1"],"of later versions":{}})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->server.weight, 1u);
  EXPECT_EQ(read->server.zone, "");
}

TEST(ServerValueTest, AValueThatBreaksARuleIsRefused) {
  for (const char* value :
       {"", "[]", "{}", R"({"addresses":[]})", R"({"addresses":"a:1"})", R"({"addresses":[7]})",
        R"({"addresses":["a b"]})", R"({"addresses":[""]})", R"({"addresses":["a:1"],"weight":-1})",
        R"({"addresses":["a:1"],"weight":1001})", R"({"addresses":["a:1"],"weight":4294967297})",
        R"({"addresses":["a:1"],"zone":7})", R"({"addresses":["a:1"],"executors":-1})",
        R"({"addresses":["1","2","3","4","5","6","7","8","9"]})"}) {
    const absl::Status status = DecodeServerValue("a", value).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << value << ": " << status;
  }
  EXPECT_FALSE(DecodeServerValue("", R"({"addresses":["a:1"]})").ok());
  EXPECT_FALSE(DecodeServerValue("a b", R"({"addresses":["a:1"]})").ok());
  EXPECT_FALSE(DecodeServerValue(std::string(256, 'a'), R"({"addresses":["a:1"]})").ok());
  EXPECT_FALSE(
      DecodeServerValue("a", R"({"addresses":["a:1"]})" + std::string(kMaxServerValueBytes, ' '))
          .ok());
}

}  // namespace
}  // namespace verbena::internal
