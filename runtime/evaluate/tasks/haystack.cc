#include "runtime/evaluate/tasks/haystack.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/evaluate/document.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/format_count.h"

namespace tq {

using nlohmann::ordered_json;

Result<TokenCounter> CounterFor(Responder& responder, bool chat, std::string_view sample,
                                const std::atomic<bool>* cancel) {
  if (const Tokenizer* tokenizer = responder.tokenizer(); tokenizer != nullptr) {
    return TokenCounter([tokenizer](std::string_view text) {
      return static_cast<int64_t>(tokenizer->Encode(text, {.add_bos = false}).size());
    });
  }
  std::string piece(sample.substr(0, 4000));
  piece.resize(ValidUtf8Prefix(piece));
  ordered_json request = {{"max_tokens", 1}, {"temperature", 0}};
  if (chat) {
    request["messages"] = {{{"role", "user"}, {"content", piece}}};
  } else {
    request["prompt"] = piece;
  }
  TQ_ASSIGN_OR_RETURN(const Reply reply, Ask(responder, request, cancel));
  const double bytes_per_token =
      reply.prompt_tokens > 0 && !piece.empty()
          ? static_cast<double>(piece.size()) / static_cast<double>(reply.prompt_tokens)
          : 4;
  return TokenCounter([bytes_per_token](std::string_view text) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(text.size()) / bytes_per_token));
  });
}

Result<Haystack> Haystack::For(Responder& responder, bool chat, std::string name, std::string text,
                               const std::atomic<bool>* cancel) {
  TQ_ASSIGN_OR_RETURN(TokenCounter counter, CounterFor(responder, chat, text, cancel));
  return Create(std::move(name), std::move(text), std::move(counter));
}

Result<Haystack> Haystack::Create(std::string name, std::string text, TokenCounter counter) {
  if (const size_t bad = ValidUtf8Prefix(text); bad != text.size()) {
    return InvalidArgument("'", name, "' is not UTF-8 text (byte ", bad,
                           "); convert it with iconv");
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidArgument("'", name, "' holds no text");
  }
  Haystack h;
  h.name_ = std::move(name);
  h.text_ = std::move(text);
  h.points_ = BreakPoints(h.text_);
  h.counter_ = std::move(counter);
  h.sums_ = {0};
  size_t start = 0;
  for (const size_t end : h.points_) {
    h.sums_.push_back(h.sums_.back() +
                      h.counter_(std::string_view(h.text_).substr(start, end - start)));
    start = end;
  }
  return h;
}

Status TooShort(const AskedLength& asked, int64_t needed, const std::string& why) {
  // Names and numbers change with the length, and so what they take.
  const int64_t enough = (needed + needed / 20 + 9) / 10 * 10;
  if (asked.flag.empty()) {
    return InvalidArgument("a text of ", FormatCount(asked.tokens), " tokens is too short: ", why,
                           "; ", FormatCount(enough), " are enough");
  }
  return InvalidArgument(asked.flag, " ", asked.tokens, " is too short: ", why, "; use ",
                         asked.flag, " ", enough, " or more");
}

Result<std::string> Haystack::Build(int64_t tokens, const std::vector<PlantedLine>& planted,
                                    const AskedLength& asked) const {
  int64_t room = tokens;
  for (const PlantedLine& p : planted) room -= counter_(p.line + "\n");
  const int64_t lines = tokens - room;
  if (room < tokens / 4) {
    // The same question behind a longer text.
    return TooShort(asked, asked.tokens - tokens + 4 * (lines - 1) / 3 + 1,
                    StrCat("its question leaves ", FormatCount(tokens), " tokens, the lines that ",
                           "are planted take ", FormatCount(lines),
                           ", and a quarter must remain for the text around them"));
  }
  if (room > sums_.back()) {
    return InvalidArgument("'", name_, "' has ", FormatCount(sums_.back()), " tokens of text and ",
                           FormatCount(room), " are needed; give more --data",
                           asked.flag.empty() ? "" : " or a smaller " + asked.flag);
  }
  const size_t pieces =
      static_cast<size_t>(std::upper_bound(sums_.begin(), sums_.end(), room) - sums_.begin()) - 1;
  std::vector<PlantedLine> order = planted;
  std::stable_sort(order.begin(), order.end(),
                   [](const PlantedLine& a, const PlantedLine& b) { return a.depth < b.depth; });
  std::string out;
  const auto end_line = [&] {
    if (!out.empty() && out.back() != '\n') out += '\n';
  };
  size_t piece = 0;
  const auto copy_up_to = [&](size_t last) {
    for (; piece < last; ++piece) {
      const size_t start = piece == 0 ? 0 : points_[piece - 1];
      out.append(text_, start, points_[piece] - start);
    }
  };
  for (const PlantedLine& p : order) {
    copy_up_to(
        std::min(pieces, static_cast<size_t>(std::lround(p.depth * static_cast<double>(pieces)))));
    end_line();
    out += p.line + "\n";
  }
  copy_up_to(pieces);
  end_line();
  return out;
}

}  // namespace tq
