#include "verbena/rpc/naming/located_json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/error.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/system/error_code.hpp>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

namespace json = boost::json;
using boost::system::error_code;  // up to Boost 1.91 also json::error_code

// Builds the tree from a parser's events. The names and signatures of its functions are those that
// boost::json::basic_parser wants.
class Builder {
 public:
  static constexpr std::size_t max_object_size = LocatedJson::kMaxBytes;
  static constexpr std::size_t max_array_size = LocatedJson::kMaxBytes;
  static constexpr std::size_t max_key_size = LocatedJson::kMaxBytes;
  static constexpr std::size_t max_string_size = LocatedJson::kMaxBytes;

  // The next token begins at `place`.
  void set_token(JsonPlace place) { token_ = place; }
  LocatedJson& root() { return root_; }
  const absl::Status& error() const { return error_; }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return Open(LocatedJson::Kind::kObject); }
  bool on_object_end(std::size_t, error_code&) { return Close(); }
  bool on_array_begin(error_code&) { return Open(LocatedJson::Kind::kArray); }
  bool on_array_end(std::size_t, error_code&) { return Close(); }
  bool on_key_part(json::string_view part, std::size_t, error_code&) { return Append(part); }
  bool on_key(json::string_view part, std::size_t, error_code& error) {
    Append(part);
    key_ = std::exchange(text_, {});
    key_place_ = token_;
    VERBENA_CHECK(!open_.empty()) << "a key outside of an object";
    const std::vector<LocatedJson>& members = open_.back()->items;
    if (members.size() == LocatedJson::kMaxMembers) {
      return Refuse(fmt::format("an object has more than {} keys", LocatedJson::kMaxMembers),
                    error);
    }
    const bool again = std::any_of(members.begin(), members.end(),
                                   [this](const LocatedJson& each) { return each.key == key_; });
    return !again || Refuse(fmt::format("the key {} is there twice", Quoted(key_)), error);
  }
  bool on_string_part(json::string_view part, std::size_t, error_code&) { return Append(part); }
  bool on_string(json::string_view part, std::size_t, error_code&) {
    Append(part);
    Add(LocatedJson::Kind::kString).text = std::exchange(text_, {});
    return true;
  }
  bool on_number_part(json::string_view part, error_code&) { return Append(part); }
  bool on_int64(int64_t value, json::string_view part, error_code&) {
    return AddNumber(static_cast<double>(value), part);
  }
  bool on_uint64(uint64_t value, json::string_view part, error_code&) {
    return AddNumber(static_cast<double>(value), part);
  }
  bool on_double(double value, json::string_view part, error_code&) {
    return AddNumber(value, part);
  }
  bool on_bool(bool value, error_code&) {
    Add(LocatedJson::Kind::kBool).boolean = value;
    return true;
  }
  bool on_null(error_code&) {
    Add(LocatedJson::Kind::kNull);
    return true;
  }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  // The key that was read last is wrong.
  bool Refuse(std::string_view what, error_code& error) {
    error_ = key_place_.Wrong(what);
    error = json::error::syntax;
    return false;
  }
  bool Append(json::string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool AddNumber(double value, json::string_view part) {
    Append(part);
    LocatedJson& number = Add(LocatedJson::Kind::kNumber);
    number.number = value;
    number.text = std::exchange(text_, {});
    return true;
  }
  LocatedJson& Add(LocatedJson::Kind kind) {
    LocatedJson* added = &root_;
    if (!open_.empty()) added = &open_.back()->items.emplace_back();
    added->kind = kind;
    added->place = token_;
    added->key = std::exchange(key_, {});
    added->key_place = key_place_;
    return *added;
  }
  // Nothing is added to an outer value while an inner one is open, so pointers to both stay valid.
  bool Open(LocatedJson::Kind kind) {
    open_.push_back(&Add(kind));
    return true;
  }
  bool Close() {
    VERBENA_CHECK(!open_.empty()) << "the end of a value that has not begun";
    open_.pop_back();
    return true;
  }

  LocatedJson root_;
  std::vector<LocatedJson*> open_;
  std::string text_;  // of the string, key or number that is being read
  std::string key_;   // of the value that comes next
  JsonPlace key_place_;
  JsonPlace token_;
  absl::Status error_;
};

// Finds where tokens begin, which Boost's parser does not tell.
class TokenFinder {
 public:
  // Takes the next character. True: a token begins with it.
  bool Take(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return false;
    }
    if (c == '"') {
      in_string_ = true;
      between_ = false;
      return true;
    }
    if (std::string_view(" \t\r\n,:]}").find(c) != std::string_view::npos) {
      between_ = true;
      return false;
    }
    const bool opens = c == '{' || c == '[';
    const bool begins = between_ || opens;
    between_ = opens;
    return begins;
  }

 private:
  bool in_string_ = false;
  bool escaped_ = false;
  bool between_ = true;
};

}  // namespace

absl::Status JsonPlace::Wrong(std::string_view what) const {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", line, column, what));
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 64;
  std::string shown(text.substr(0, kShown));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("\"{}{}\"", shown, text.size() > kShown ? "..." : "");
}

absl::StatusOr<LocatedJson> ParseLocatedJson(std::string_view text) {
  JsonPlace place;
  if (text.size() > LocatedJson::kMaxBytes) {
    return place.Wrong(fmt::format("the text has {} bytes, and at most {} are read", text.size(),
                                   LocatedJson::kMaxBytes));
  }
  json::basic_parser<Builder> parser{json::parse_options()};
  TokenFinder tokens;
  error_code error;
  // One character at a time, so that the place of an event is known.
  for (const char& c : text) {
    if (tokens.Take(c)) parser.handler().set_token(place);
    const std::size_t taken = parser.write_some(true, &c, 1, error);
    if (!error && taken == 0) error = json::error::extra_data;
    if (error) break;
    ++place.column;
    if (c == '\n') place = {.line = place.line + 1};
  }
  if (!error) parser.write_some(false, "", 0, error);
  VERBENA_RETURN_IF_ERROR(parser.handler().error());
  if (error) return place.Wrong(fmt::format("this is no JSON: {}", error.message()));
  return std::move(parser.handler().root());
}

}  // namespace verbena::internal
