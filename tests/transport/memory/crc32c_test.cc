// Checksums match RFC 3720 and the bitwise definition, at every length and alignment and in pieces.

#include "verbena/transport/memory/crc32c.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace verbena::internal {
namespace crc32c_test {

// Bit by bit, as the polynomial says.
uint32_t SlowCrc32c(const std::vector<uint8_t>& bytes) {
  uint32_t shift_register = ~0U;
  for (const uint8_t byte : bytes) {
    shift_register ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      shift_register = (shift_register >> 1U) ^ ((shift_register & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return ~shift_register;
}

std::vector<uint8_t> Noise(size_t bytes) {
  std::vector<uint8_t> noise(bytes);
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint8_t& byte : noise) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<uint8_t>(state >> 56U);
  }
  return noise;
}

// RFC 3720, B.4; there the checksum's bytes stand in the order of the wire, the least significant
// one first.
TEST(Crc32cTest, GivesTheExamplesOfRfc3720) {
  std::array<uint8_t, 32> bytes{};
  EXPECT_EQ(ExtendCrc32c(0, bytes.data(), bytes.size()), 0x8a9136aaU) << "zeros";
  bytes.fill(0xff);
  EXPECT_EQ(ExtendCrc32c(0, bytes.data(), bytes.size()), 0x62a8ab43U) << "ones";
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(ExtendCrc32c(0, bytes.data(), bytes.size()), 0x46dd794eU) << "ascending";
  std::iota(bytes.rbegin(), bytes.rend(), uint8_t{0});
  EXPECT_EQ(ExtendCrc32c(0, bytes.data(), bytes.size()), 0x113fdb5cU) << "descending";
  const std::array<uint8_t, 48> read_pdu = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(ExtendCrc32c(0, read_pdu.data(), read_pdu.size()), 0xd9963a56U)
      << "a SCSI read command";
}

TEST(Crc32cTest, GivesTheCheckValueOfTheCatalogue) {
  const std::string digits = "123456789";
  EXPECT_EQ(ExtendCrc32c(0, digits.data(), digits.size()), 0xe3069283U);
}

TEST(Crc32cTest, NothingChangesNothing) {
  EXPECT_EQ(ExtendCrc32c(0, nullptr, 0), 0U);
  EXPECT_EQ(ExtendCrc32c(0x12345678, nullptr, 0), 0x12345678U);
}

TEST(Crc32cTest, AgreesWithTheDefinitionAtEveryLengthAndAlignment) {
  const std::vector<uint8_t> noise = Noise(4096 + 64);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (const size_t bytes :
         {0U, 1U, 2U, 7U, 8U, 9U, 15U, 63U, 64U, 65U, 255U, 1023U, 1024U, 1025U, 3071U, 4096U}) {
      const std::vector<uint8_t> part(noise.begin() + static_cast<ptrdiff_t>(offset),
                                      noise.begin() + static_cast<ptrdiff_t>(offset + bytes));
      EXPECT_EQ(ExtendCrc32c(0, noise.data() + offset, bytes), SlowCrc32c(part))
          << offset << " + " << bytes;
    }
  }
}

TEST(Crc32cTest, PiecesGiveWhatTheWholeGives) {
  const std::vector<uint8_t> noise = Noise(10000);
  const uint32_t whole = ExtendCrc32c(0, noise.data(), noise.size());
  EXPECT_EQ(whole, SlowCrc32c(noise));
  for (const size_t first : {0U, 1U, 3U, 8U, 4095U, 4096U, 4097U, 9999U, 10000U}) {
    const uint32_t before = ExtendCrc32c(0, noise.data(), first);
    EXPECT_EQ(ExtendCrc32c(before, noise.data() + first, noise.size() - first), whole) << first;
  }
  uint32_t byte_by_byte = 0;
  for (const uint8_t& byte : noise) byte_by_byte = ExtendCrc32c(byte_by_byte, &byte, 1);
  EXPECT_EQ(byte_by_byte, whole);
}

// Longer than an int, which is what ISA-L counts with. All of it is the zero page: no memory is
// used.
TEST(Crc32cTest, TakesMoreThanTwoGibibytes) {
  const size_t half = (size_t{1} << 30) + 4097;
  void* zeros =
      mmap(nullptr, 2 * half, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) GTEST_SKIP() << "no address space: " << strerror(errno);
  const uint32_t whole = ExtendCrc32c(0, zeros, 2 * half);
  EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, zeros, half), zeros, half), whole);
  EXPECT_NE(ExtendCrc32c(0, zeros, half), whole);
  munmap(zeros, 2 * half);
}

}  // namespace crc32c_test
}  // namespace verbena::internal
