// Cutting is by bisection over break points: the token count of a prefix only grows with it.
#include "runtime/evaluate/document.h"

#include <algorithm>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

constexpr char kDetail[] = "The special magic number for the city of Chicago is 583.";
constexpr char kQuestion[] = "The special magic number for the city of Chicago is";
constexpr char kExpected[] = "583";
constexpr size_t kLongLine = 400;  // bytes after which a line may be cut at a space
constexpr size_t kMaxBytesPerToken = 16;
constexpr int kMinTextTokens = 64;

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The first `num_points` pieces with the detail planted and the question at the end.
std::string Assemble(std::string_view text, const std::vector<size_t>& points, size_t num_points,
                     const std::string& detail, const std::string& question, double depth) {
  const size_t end = num_points == 0 ? 0 : points[num_points - 1];
  const size_t target = static_cast<size_t>(depth * static_cast<double>(end));
  const auto it = std::lower_bound(points.begin(), points.end(), target);
  const size_t plant = it == points.end() ? end : std::min(*it, end);
  std::string out(text.substr(0, plant));
  const auto new_line = [&] {
    if (!out.empty() && out.back() != '\n') out += '\n';
  };
  if (!detail.empty()) {
    new_line();
    out += detail + "\n";
  }
  out += text.substr(plant, end - plant);
  new_line();
  return out + question;
}

}  // namespace

std::vector<size_t> BreakPoints(std::string_view text) {
  std::vector<size_t> points;
  size_t start = 0, last_space = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') last_space = i + 1;
    if (text[i] == '\n') {
      points.push_back(i + 1);
      start = i + 1;
    } else if (i + 1 - start >= kLongLine &&
               (i + 1 == text.size() || !IsContinuation(text[i + 1]))) {
      start = last_space > start ? last_space : i + 1;
      points.push_back(start);
    }
  }
  if (points.empty() || points.back() != text.size()) points.push_back(text.size());
  return points;
}

Status CheckDocumentText(const std::string& name, std::string_view text) {
  if (const size_t bad = ValidUtf8Prefix(text); bad != text.size()) {
    return InvalidArgument("'", name, "' is not UTF-8 text (byte ", bad,
                           "); convert it with iconv");
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return InvalidArgument("'", name, "' holds no text");
  }
  if (text.size() < kMinTextTokens) {
    return InvalidArgument("'", name, "' holds ", text.size(), " bytes, and at least ",
                           kMinTextTokens, " tokens of text are needed; name a longer one");
  }
  return OkStatus();
}

Result<Document> BuildDocument(const Tokenizer& tokenizer, const DocumentOptions& options) {
  TQ_RETURN_IF_ERROR(CheckDocumentText(options.name, options.text));
  Document doc;
  doc.name = options.name;
  doc.question = options.question.empty() ? kQuestion : options.question;
  if (options.question.empty()) {
    doc.detail = kDetail;
    doc.expected = kExpected;
  }
  // No tokenizer here makes tokens of more than 16 bytes on average.
  const size_t max_bytes =
      static_cast<size_t>(std::max<int64_t>(options.max_tokens, 0)) * kMaxBytesPerToken;
  const std::string_view text = options.text.substr(0, std::max(max_bytes, kLongLine * 2));
  std::vector<size_t> points = BreakPoints(text);
  if (text.size() < options.text.size()) points.pop_back();  // may lie inside a character
  const auto encode = [&](size_t num_points) {
    return tokenizer.Encode(
        Assemble(text, points, num_points, doc.detail, doc.question, options.detail_depth));
  };
  const auto fits = [&](size_t num_points) {
    return static_cast<int64_t>(encode(num_points).size()) <= options.max_tokens;
  };
  const int64_t frame = static_cast<int64_t>(encode(0).size());
  if (frame + kMinTextTokens > options.max_tokens) {
    return InvalidArgument("a document of ", std::max<int64_t>(options.max_tokens, 0),
                           " tokens is too short: detail and question take ", frame,
                           ", and at least ", kMinTextTokens,
                           " are needed for text; raise --context");
  }
  size_t low = 0, high = points.size();  // low fits
  if (fits(high)) {
    low = high;
  } else {
    while (high - low > 1) {
      const size_t mid = low + (high - low) / 2;
      (fits(mid) ? low : high) = mid;
    }
  }
  if (low == 0) {
    return InvalidArgument("'", options.name, "': no part of the text fits ", options.max_tokens,
                           " tokens; raise --context");
  }
  doc.tokens = encode(low);
  doc.text_bytes = points[low - 1];
  doc.whole_text = doc.text_bytes == options.text.size();
  const int64_t text_tokens = static_cast<int64_t>(doc.tokens.size()) - frame;
  if (text_tokens < kMinTextTokens) {
    return InvalidArgument("'", options.name, "': ", text_tokens, " tokens of text ",
                           doc.whole_text ? "are all there is" : "fit", ", and at least ",
                           kMinTextTokens, " are needed; ",
                           doc.whole_text ? "name a longer text" : "raise --context");
  }
  return doc;
}

}  // namespace tq
