// The method table finds each registered method by its number and nothing for any other number, and
// offers clients each with its shape. A method that is registered twice is refused by name.

#include "verbena/rpc/server/method_table.h"

#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {
namespace method_table_test {

// A service of methods that are only looked up.
class Named final : public Service {
 public:
  explicit Named(std::vector<std::string> names) : names_(std::move(names)) {
    for (const std::string& name : names_) {
      descriptors_.emplace_back(name.c_str(), Idempotency::kUnknown);
      methods_.push_back({&descriptors_.back(), nullptr, nullptr, nullptr});
    }
  }

  const char* full_name() const override { return "test.Named"; }
  absl::Span<const ServerMethod> methods() const override { return methods_; }

 private:
  std::vector<std::string> names_;
  std::deque<MethodDescriptor> descriptors_;
  std::vector<ServerMethod> methods_;
};

std::vector<std::string> Names(int first, int count) {
  std::vector<std::string> names;
  for (int i = first; i < first + count; ++i) {
    names.push_back("test.Named/Method" + std::to_string(i));
  }
  return names;
}

TEST(MethodTableTest, AnEmptyTableKnowsNoNumber) {
  MethodTable table;
  for (uint16_t number : {0, 1, 0xffff}) EXPECT_EQ(table.IndexOf(number), -1) << number;
}

TEST(MethodTableTest, NumbersFollowTheOrderOfTheMethods) {
  Named one(Names(0, 100));
  Named two(Names(100, 57));
  MethodTable table;
  ASSERT_EQ(table.Add(one), absl::OkStatus());
  ASSERT_EQ(table.Add(two), absl::OkStatus());
  ASSERT_EQ(table.size(), 157u);
  ASSERT_EQ(table.offered().size(), 157u);
  for (uint16_t i = 0; i < 157; ++i) {
    const std::string name = "test.Named/Method" + std::to_string(i);
    EXPECT_EQ(table.offered()[i], (OfferedMethod{MethodId(name), 0}));
    const int index = table.IndexOf(static_cast<uint16_t>(i + 1));
    ASSERT_GE(index, 0) << name;
    EXPECT_EQ(table.entry(index).method->descriptor->full_name, name);
    EXPECT_EQ(table.entry(index).service, i < 100 ? static_cast<Service*>(&one) : &two);
  }
  for (uint16_t number : {0, 158, 0x7fff, 0x8000, 0xffff}) {
    EXPECT_EQ(table.IndexOf(number), -1) << number;
  }
}

TEST(MethodTableTest, MoreMethodsThanAHandshakeTellsAreRefused) {
  Named most(Names(0, kMaxMethods));
  Named more(Names(kMaxMethods, 1));
  MethodTable table;
  ASSERT_EQ(table.Add(most), absl::OkStatus());
  const absl::Status status = table.Add(more);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("test.Named/Method4096"), absl::string_view::npos) << status;
}

TEST(MethodTableTest, AMethodTwiceIsRefusedByName) {
  Named service({"test.Named/Get", "test.Named/Put", "test.Named/Get"});
  MethodTable table;
  const absl::Status status = table.Add(service);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(status.message().find("test.Named/Get"), absl::string_view::npos) << status;
}

}  // namespace method_table_test
}  // namespace verbena::internal
