#include "runtime/formats/json_member.h"

#include <algorithm>
#include <vector>

#include "turboquant/base/json_object.h"

namespace tq {
namespace {

// Where a member stands: from its key to the end of its value.
struct Member {
  std::string key;
  size_t begin = 0, end = 0;
};

// The members of the object in `text`, which is known to be valid JSON.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {
    if (text.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark, which the parser skips too
  }

  std::vector<Member> Members() {
    std::vector<Member> out;
    SkipBlanks();
    open_ = at_++;
    for (;;) {
      SkipBlanks();
      if (text_[at_] == '}') break;
      if (text_[at_] == ',') {
        ++at_;
        continue;
      }
      Member m;
      m.begin = at_;
      SkipString();
      m.key = nlohmann::json::parse(text_.substr(m.begin, at_ - m.begin)).get<std::string>();
      SkipBlanks();
      ++at_;  // the colon
      SkipBlanks();
      SkipValue();
      m.end = at_;
      out.push_back(std::move(m));
    }
    return out;
  }
  size_t open() const { return open_; }  // the brace that opens the object

 private:
  void SkipBlanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  void SkipString() {
    for (++at_; text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\';
    ++at_;
  }
  void SkipValue() {
    for (int depth = 0;; ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        SkipString();
        if (depth == 0) return;
        --at_;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (depth > 0 && (c == '}' || c == ']')) {
        if (--depth == 0) {
          ++at_;
          return;
        }
      } else if (depth == 0 &&
                 (c == ',' || c == '}' || c == ' ' || c == '\t' || c == '\r' || c == '\n')) {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0, open_ = 0;
};

// The blanks in front of a member, from its line's beginning; empty on a line with others.
std::string Indent(std::string_view text, size_t begin) {
  const size_t line = text.rfind('\n', begin);
  if (line == std::string_view::npos) return "";
  const std::string_view blanks = text.substr(line + 1, begin - line - 1);
  return blanks.find_first_not_of(" \t") == std::string_view::npos ? std::string(blanks) : "";
}

}  // namespace

Result<std::string> WithJsonMember(std::string_view text, std::string_view key,
                                   const std::optional<std::string>& value) {
  TQ_RETURN_IF_ERROR(ParseJsonObject(text, "the text").status());
  Scanner scanner(text);
  const std::vector<Member> members = scanner.Members();
  const auto is_it = [&](const Member& m) { return m.key == key; };
  if (std::count_if(members.begin(), members.end(), is_it) > 1) {
    return DataLoss("the text has the key '", key, "' twice");
  }
  const auto at = std::find_if(members.begin(), members.end(), is_it);
  std::string out(text);
  if (!value) {
    if (at == members.end()) return out;
    // With the comma that parted it from its neighbour, and the blanks beside that.
    const size_t begin = at != members.begin() ? std::prev(at)->end : at->begin;
    const size_t end =
        at != members.begin() || std::next(at) == members.end() ? at->end : std::next(at)->begin;
    return out.erase(begin, end - begin);
  }
  const bool by_lines =
      members.empty() ||
      text.substr(scanner.open(), members[0].begin).find('\n') != std::string_view::npos;
  const std::string indent = members.empty() ? "  " : Indent(text, members[0].begin);
  std::string member = nlohmann::json(key).dump() + ": ";
  for (const char c : *value) {
    member += c;
    if (c == '\n') member += indent;
  }
  if (at != members.end()) return out.replace(at->begin, at->end - at->begin, member);
  const std::string gap = by_lines ? "\n" + indent : " ";
  if (!members.empty()) return out.insert(members.back().end, "," + gap + member);
  return out.insert(scanner.open() + 1, gap + member + "\n");
}

}  // namespace tq
