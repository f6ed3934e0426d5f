// The method table finds each registered method by its id and finds nothing for any other id. A
// method that is registered twice is refused by name.

#include "verbena/rpc/server/method_table.h"

#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace {

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

TEST(MethodTableTest, AnEmptyTableKnowsNoId) {
  MethodTable table;
  for (uint64_t id : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) EXPECT_EQ(table.Find(id), -1);
}

// So many that places collide, and that the table grows several times.
TEST(MethodTableTest, EachMethodIsFoundAndNoOther) {
  Named one(Names(0, 100));
  Named two(Names(100, 57));
  MethodTable table;
  ASSERT_EQ(table.Add(one), absl::OkStatus());
  ASSERT_EQ(table.Add(two), absl::OkStatus());
  ASSERT_EQ(table.size(), 157u);
  for (int i = 0; i < 157; ++i) {
    const std::string name = "test.Named/Method" + std::to_string(i);
    const int index = table.Find(MethodId(name));
    ASSERT_GE(index, 0) << name;
    EXPECT_EQ(table.entry(index).method->descriptor->full_name, name);
    EXPECT_EQ(table.entry(index).service, i < 100 ? static_cast<Service*>(&one) : &two);
  }
  // Ids that a peer makes up: of every place, and none of them a method's.
  for (uint64_t id = 0; id < 4096; ++id) EXPECT_EQ(table.Find(id), -1) << id;
}

TEST(MethodTableTest, AMethodTwiceIsRefusedByName) {
  Named service({"test.Named/Get", "test.Named/Put", "test.Named/Get"});
  MethodTable table;
  const absl::Status status = table.Add(service);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(status.message().find("test.Named/Get"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace verbena::internal
