// The store that a command line asks for is opened; a choice that means nothing is refused by name.

#include "examples/kv/open_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/kv/scratch_directory.h"
#include "examples/kv/store.h"

namespace kv {
namespace open_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string DescriptionOf(const StoreChoice& choice) {
  const absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(choice);
  return store.ok() ? (*store)->description() : store.status().ToString();
}

TEST(OpenStoreTest, OpensTheEngineThatIsAskedForAndTellsWhichThatIs) {
  EXPECT_THAT(DescriptionOf({}), HasSubstr("memory"));
  const auto scratch = ScratchDirectory::Make("open_store_test").value();
  const std::string directory = scratch->path() + "/store";
  StoreChoice choice;
  choice.engine = "rocksdb";
  choice.directory = directory;
  EXPECT_THAT(DescriptionOf(choice), AllOf(HasSubstr("RocksDB"), HasSubstr(directory),
                                           HasSubstr("synced before they are acknowledged")));
  choice.durable = false;
  EXPECT_THAT(DescriptionOf(choice), AllOf(HasSubstr("RocksDB"), HasSubstr("may lose")));
}

TEST(OpenStoreTest, RefusesChoicesThatMeanNothing) {
  StoreChoice choice;
  choice.engine = "papyrus";
  EXPECT_THAT(DescriptionOf(choice), HasSubstr("'papyrus'"));
  choice.engine = "rocksdb";
  EXPECT_THAT(DescriptionOf(choice), HasSubstr("--directory"));
  choice.engine = "memory";
  choice.directory = "/var/tmp";
  EXPECT_THAT(DescriptionOf(choice), HasSubstr("--directory"));
}

}  // namespace open_store_test
}  // namespace kv
