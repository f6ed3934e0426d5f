// NamedFilter: which cases a program runs that has those of several sources.

#ifndef VERBENA_TESTS_SUPPORT_NAMED_FILTER_H_
#define VERBENA_TESTS_SUPPORT_NAMED_FILTER_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace verbena {

struct NamedCase {
  std::string_view suite;
  std::string_view name;
  std::string_view file;  // of its source, as __FILE__ says it
};

// The filter of GoogleTest that leaves of `cases` those that `filter` leaves and whose source is
// called `source`, "link_test.cc" for instance. Empty if none has that source.
inline std::string NamedFilter(std::string_view source, const std::vector<NamedCase>& cases,
                               std::string_view filter) {
  const auto is_named = [source](const NamedCase& each) {
    return each.file.ends_with(source) && (each.file.size() == source.size() ||
                                           each.file[each.file.size() - source.size() - 1] == '/');
  };
  std::string others;
  bool found = false;
  for (const NamedCase& each : cases) {
    if (is_named(each)) {
      found = true;
      continue;
    }
    if (!others.empty()) others += ':';
    others.append(each.suite).append(1, '.').append(each.name);
  }
  if (!found) return "";
  std::string both(filter);
  if (others.empty()) return both;
  // Behind the first '-' stand the cases that are left out.
  both += filter.find('-') == std::string_view::npos ? '-' : ':';
  return both + others;
}

// What would have a case run under no name, in words: two cases of one name, since each name leaves
// out those of the others, or a case in a header. Empty: nothing.
inline std::string MistakeOf(const std::vector<NamedCase>& cases) {
  std::map<std::string, std::string_view> files;
  for (const NamedCase& each : cases) {
    const std::string name = std::string(each.suite) + "." + std::string(each.name);
    const auto [known, added] = files.try_emplace(name, each.file);
    if (!added) {
      return name + " is in " + std::string(known->second) + " and in " + std::string(each.file) +
             ": call one of the two otherwise";
    }
    if (!each.file.ends_with("_test.cc")) {
      return name + " is in " + std::string(each.file) + ": a case belongs into a *_test.cc";
    }
  }
  return "";
}

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_NAMED_FILTER_H_
