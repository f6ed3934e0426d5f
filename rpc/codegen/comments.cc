#include "verbena/rpc/codegen/comments.h"

#include <string_view>
#include <vector>

namespace verbena::codegen {
namespace {

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    size_t end = text.find_first_of("\r\n");
    std::string_view line = text.substr(0, end);
    lines.push_back(line.substr(0, line.find_last_not_of(" \t\v\f") + 1));
    if (end == std::string_view::npos) break;
    text.remove_prefix(text.substr(end, 2) == "\r\n" ? end + 2 : end + 1);
  }
  return lines;
}

template <typename Descriptor>
std::string LocatedComment(const Descriptor& descriptor) {
  SourceLocation location;
  if (!descriptor.GetSourceLocation(&location)) return "";
  return AsComment(location.leading_comments.empty() ? location.trailing_comments
                                                     : location.leading_comments);
}

}  // namespace

std::string AsComment(const std::string& text) {
  std::vector<std::string_view> lines = LinesOf(text);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  size_t first = 0;
  while (first < lines.size() && lines[first].empty()) ++first;
  std::string comment;
  for (size_t i = first; i < lines.size(); ++i) {
    comment += "//";
    if (!lines[i].empty() && lines[i][0] != ' ') comment += ' ';
    comment += lines[i];
    // A backslash at the end of a line would make the next one, perhaps code, part of the comment.
    if (lines[i].ends_with('\\')) comment += " //";
    comment += '\n';
  }
  return comment;
}

std::string CommentOf(const ServiceDescriptor& service) { return LocatedComment(service); }

std::string CommentOf(const MethodDescriptor& method) { return LocatedComment(method); }

void PrintComment(const std::string& comment, google::protobuf::io::Printer& printer) {
  // Line by line, since the printer indents only what it sees begin a line.
  for (size_t begin = 0; begin < comment.size();) {
    size_t end = comment.find('\n', begin);
    printer.Print("$line$\n", "line", comment.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace verbena::codegen
