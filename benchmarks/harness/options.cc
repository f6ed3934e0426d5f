#include "verbena/benchmarks/harness/options.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

namespace verbena::benchmarks {
namespace {

constexpr double kMaxSeconds = 3600;
constexpr int kMaxNumber = 1 << 26;

bool ParseSeconds(const std::string& text, double& seconds) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return error == std::errc() && end == text.data() + text.size() && seconds > 0 &&
         seconds <= kMaxSeconds;
}

bool ParseNumbers(const std::string& text, std::vector<int>& numbers) {
  numbers.clear();
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return false;
    if (number < 1 || number > kMaxNumber) return false;
    numbers.push_back(number);
  }
  return !numbers.empty();
}

// False if the value is no good; `known` tells whether there is such an option.
bool Apply(const std::string& name, const std::string& value, Options& options, bool& known) {
  known = true;
  if (name == "--json") {
    options.json = value;
    return !value.empty();
  }
  if (name == "--seconds") return ParseSeconds(value, options.seconds);
  if (name == "--size") return ParseNumbers(value, options.sizes);
  if (name == "--outstanding") return ParseNumbers(value, options.outstanding);
  known = false;
  return false;
}

}  // namespace

absl::StatusOr<Options> ParseOptions(int argc, char** argv, std::vector<std::string>& rest,
                                     const Options& defaults) {
  Options options = defaults;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    std::string value;
    bool separate = false;
    if (const auto equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < argc) {
      value = argv[i + 1];
      separate = true;
    }
    bool known = false;
    const bool good = Apply(name, value, options, known);
    if (!known) {
      rest.emplace_back(argv[i]);
      continue;
    }
    if (!good) {
      return absl::InvalidArgumentError(fmt::format("{} does not accept '{}'", name, value));
    }
    if (separate) ++i;
  }
  return options;
}

}  // namespace verbena::benchmarks
