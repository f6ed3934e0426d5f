// Each input of a fuzz target's corpus, and each of its beginnings, passes its checks.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace verbena {
namespace {

TEST(FuzzCorpusTest, EachInputPassesAndSoDoesEachOfItsBeginnings) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(VERBENA_CORPUS)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    for (size_t size = 0; size <= bytes.size(); ++size) {
      // Memory of exactly this size, so that AddressSanitizer sees a read past it.
      const std::vector<uint8_t> beginning(bytes.begin(),
                                           bytes.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_EQ(LLVMFuzzerTestOneInput(beginning.data(), beginning.size()), 0);
    }
    ++inputs;
  }
  EXPECT_GE(inputs, 5) << VERBENA_CORPUS;
}

}  // namespace
}  // namespace verbena
