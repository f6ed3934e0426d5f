// Proves what libverbena_soft.so shows of itself: functions of libibverbs and of the C library with
// the versions that programs ask for, and no symbol besides; and that a program into which it is
// preloaded runs on a soft device.

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

// Tests run in the top of their runfiles.
std::string PathOf(const char* variable, const char* default_path) {
  const char* given = std::getenv(variable);
  char* path = realpath(given != nullptr ? given : default_path, nullptr);
  std::string result = path != nullptr ? path : "";
  std::free(path);
  return result;
}

std::string Library() {
  return PathOf("VERBENA_SOFT_LIBRARY", "transport/preload/libverbena_soft.so");
}

// The names of the symbols that a shared library defines for others.
std::vector<std::string> DefinedSymbols(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> names;
  Elf64_Ehdr header;
  if (bytes.size() < sizeof(header)) return names;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), bytes.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM) continue;
    const char* strings = bytes.data() + sections[section.sh_link].sh_offset;
    for (size_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, bytes.data() + section.sh_offset + i * sizeof(symbol), sizeof(symbol));
      const bool version_name = symbol.st_shndx == SHN_ABS;
      if (symbol.st_shndx == SHN_UNDEF || version_name || symbol.st_name == 0) continue;
      names.emplace_back(strings + symbol.st_name);
    }
  }
  return names;
}

bool StartsWith(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

// Weak copies of libstdc++'s own templates, which some linkers leave visible.
bool IsOfStandardLibrary(const std::string& name) {
  return StartsWith(name, "_ZNSt") || StartsWith(name, "_ZNKSt") || StartsWith(name, "_ZSt");
}

TEST(LibraryTest, ShowsFunctionsOfLibibverbsAndNothingElse) {
  const std::vector<std::string> names = DefinedSymbols(Library());
  EXPECT_GT(names.size(), 50u);
  for (const std::string& name : names) {
    EXPECT_TRUE(StartsWith(name, "ibv_") || StartsWith(name, "_ibv_") ||
                StartsWith(name, "rdma_") || name == "rsocket" || name == "stat" ||
                name == "access" || IsOfStandardLibrary(name))
        << name;
  }
}

TEST(LibraryTest, GivesEachFunctionItsVersion) {
  const std::string path = Library();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const struct {
    const char* name;
    const char* version;
  } expected[] = {{"ibv_create_comp_channel", "IBVERBS_1.0"},
                  {"ibv_open_device", "IBVERBS_1.1"},
                  {"ibv_get_device_list", "IBVERBS_1.1"},
                  {"ibv_create_qp", "IBVERBS_1.1"},
                  {"ibv_get_pkey_index", "IBVERBS_1.5"},
                  {"ibv_qp_to_qp_ex", "IBVERBS_1.6"},
                  {"ibv_reg_mr_iova", "IBVERBS_1.7"},
                  {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
                  {"ibv_get_device_index", "IBVERBS_1.9"},
                  {"ibv_query_ece", "IBVERBS_1.10"},
                  {"_ibv_query_gid_ex", "IBVERBS_1.11"},
                  {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
                  {"ibv_import_dm", "IBVERBS_1.13"},
                  {"ibv_query_qp_data_in_order", "IBVERBS_1.14"},
                  {"ibv_query_gid_type", "IBVERBS_PRIVATE_34"},
                  {"rsocket", "RDMACM_1.0"}};
  for (const auto& each : expected) {
    void* symbol = dlvsym(library, each.name, each.version);
    ASSERT_NE(symbol, nullptr) << each.name << "@" << each.version;
    Dl_info found{};
    ASSERT_NE(dladdr(symbol, &found), 0);
    EXPECT_EQ(found.dli_fname, path) << each.name;
  }
}

TEST(LibraryTest, APlainProgramRunsOnASoftDevice) {
  const std::string program = PathOf("PLAIN_PROGRAM", "tests/transport/preload/plain_program");
  ASSERT_FALSE(program.empty());
  FILE* output = popen(("LD_PRELOAD=" + Library() + " " + program).c_str(), "r");
  ASSERT_NE(output, nullptr);
  char line[64] = {};
  EXPECT_NE(std::fgets(line, sizeof(line), output), nullptr);
  EXPECT_STREQ(line, "hello\n");
  EXPECT_EQ(pclose(output), 0);
}

}  // namespace
