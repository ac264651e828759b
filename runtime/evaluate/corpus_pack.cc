// From items to tokens, and from tokens to windows of the served context.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/evaluate/corpus.h"
#include "turboquant/base/format_count.h"
#include "turboquant/base/numeric.h"
#include "turboquant/plan/traffic.h"

namespace tq {
namespace {

// A window that has room, or will not get more.
struct OpenWindow {
  std::vector<TokenId> tokens;
  size_t first = 0;  // the first sequence in it
  int parts = 0;
  std::vector<std::pair<uint64_t, size_t>> prompts;  // of requests: hash, tokens
};

// A piece of a sequence that fits a window.
struct Piece {
  std::vector<TokenId> tokens;
  size_t sequence = 0;
  size_t prompt_len = 0;  // of a request
};

uint64_t HashTokens(const std::vector<TokenId>& tokens, uint64_t seed) {
  return Hash64(tokens.data(), tokens.size() * sizeof(TokenId), seed);
}

// The pieces of a text: each begins with BOS where the text does.
void CutText(const TokenSequence& s, size_t sequence, size_t context, WindowsReport* report,
             std::vector<Piece>* pieces) {
  const size_t head = s.has_bos ? 1 : 0;
  for (size_t at = head; at < s.tokens.size();) {
    const size_t n = std::min(context - head, s.tokens.size() - at);
    Piece piece{{}, sequence, 0};
    if (s.has_bos) piece.tokens.push_back(s.tokens[0]);
    piece.tokens.insert(piece.tokens.end(), s.tokens.begin() + static_cast<std::ptrdiff_t>(at),
                        s.tokens.begin() + static_cast<std::ptrdiff_t>(at + n));
    at += n;
    if (at == s.tokens.size() && static_cast<int64_t>(piece.tokens.size()) < kMinWindow) {
      ++report->too_short;
      return;
    }
    pieces->push_back(std::move(piece));
  }
}

// Every piece goes into the fullest window that has room for it, the longest first.
std::vector<OpenWindow> Join(std::vector<Piece> pieces, size_t context) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return pieces[a].tokens.size() > pieces[b].tokens.size();
  });
  std::vector<OpenWindow> windows;
  std::multimap<size_t, size_t> room;  // free tokens, window
  for (const size_t i : order) {
    Piece& piece = pieces[i];
    const auto at = room.lower_bound(piece.tokens.size());
    size_t window = windows.size();
    if (at == room.end()) {
      windows.push_back({{}, piece.sequence, 0, {}});
    } else {
      window = at->second;
      room.erase(at);
    }
    OpenWindow& w = windows[window];
    w.tokens.insert(w.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    w.first = std::min(w.first, piece.sequence);
    ++w.parts;
    if (piece.prompt_len > 0) {
      piece.tokens.resize(piece.prompt_len);
      w.prompts.emplace_back(HashTokens(piece.tokens, 0), piece.prompt_len);
    }
    if (w.tokens.size() < context) room.emplace(context - w.tokens.size(), window);
  }
  std::stable_sort(windows.begin(), windows.end(),
                   [](const OpenWindow& a, const OpenWindow& b) { return a.first < b.first; });
  return windows;
}

// As many windows as max_tokens allows, by the hashes of what is in them, in their order.
std::vector<OpenWindow> Choose(std::vector<OpenWindow> windows, int64_t max_tokens, uint64_t seed,
                               WindowsReport* report) {
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < windows.size(); ++i) {
    order.emplace_back(HashTokens(windows[i].tokens, seed), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<bool> chosen(windows.size());
  int64_t left = max_tokens;
  for (const auto& [hash, i] : order) {
    const auto size = static_cast<int64_t>(windows[i].tokens.size());
    if (size > left) continue;
    left -= size;
    chosen[i] = true;
  }
  if (left == max_tokens) {  // none fits whole
    std::vector<TokenId>& tokens = windows[order.front().second].tokens;
    report->left_out_tokens += static_cast<int64_t>(tokens.size()) - max_tokens;
    tokens.resize(static_cast<size_t>(max_tokens));
    chosen[order.front().second] = true;
  }
  std::vector<OpenWindow> out;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (chosen[i]) {
      out.push_back(std::move(windows[i]));
    } else {
      report->left_out_tokens += static_cast<int64_t>(windows[i].tokens.size());
    }
  }
  return out;
}

void Warn(WindowsUse use, WindowsReport* r) {
  const int64_t distinct = r->tokens - r->repeated_tokens;
  if (use == WindowsUse::kCalibration && distinct < kFewTokens) {
    r->warnings.push_back(
        StrCat("only ", FormatCount(distinct), r->repeated_tokens > 0 ? " different" : "",
               " tokens: under ", FormatCount(kFewTokens),
               ", formats follow this text more than the model, and other requests may lose more "
               "than the report says; log more of them"));
  }
  if (r->full_length == 0) {
    r->warnings.push_back(
        StrCat("none is as long as the served context of ", FormatCount(r->context_len),
               " (the longest has ", FormatCount(r->max),
               " tokens): errors that grow with the length are not seen here; log longer "
               "requests or serve shorter ones (--context)"));
  }
}

}  // namespace

Result<CorpusEncoder> CorpusEncoder::Create(const Tokenizer& tokenizer) {
  CorpusEncoder encoder(tokenizer);
  if (!tokenizer.chat_template().empty()) {
    TQ_ASSIGN_OR_RETURN(encoder.chat_template_, ChatTemplate::Parse(tokenizer.chat_template()));
  }
  // Some models end a turn with another token than a text; their template writes it.
  encoder.end_of_turn_ = tokenizer.eos();
  for (const TokenId id : tokenizer.stop_tokens()) {
    if (tokenizer.chat_template().find(tokenizer.TokenBytes(id)) == std::string::npos) continue;
    encoder.end_of_turn_ = id;
    break;
  }
  return encoder;
}

Result<TokenSequence> CorpusEncoder::Encode(const CorpusItem& item) const {
  TokenSequence out;
  const bool is_text = item.kind == CorpusItem::Kind::kText;
  std::string prompt = item.text;
  if (item.kind == CorpusItem::Kind::kChat && chat_template_) {
    const auto special = [&](TokenId id) { return id < 0 ? "" : tokenizer_->TokenBytes(id); };
    std::vector<ChatMessage> messages = item.messages;
    for (ChatMessage& m : messages) {
      if (m.role == "developer") m.role = "system";
    }
    TQ_ASSIGN_OR_RETURN(prompt, chat_template_->Render(messages, true, special(tokenizer_->bos()),
                                                       special(tokenizer_->eos())));
  } else if (item.kind == CorpusItem::Kind::kChat) {
    for (const ChatMessage& m : item.messages) prompt += m.content + "\n\n";
  }
  // What looks like a control token in a text is text.
  out.tokens = tokenizer_->Encode(prompt, {.add_bos = true, .parse_special = !is_text});
  out.prompt_len = out.tokens.size();
  out.is_text = is_text;
  out.has_bos =
      !out.tokens.empty() && tokenizer_->bos() >= 0 && out.tokens.front() == tokenizer_->bos();
  if (!item.answer) return out;
  std::string answer = item.answer->content;
  if (!item.answer->tool_calls.empty() && !answer.empty()) answer += '\n';
  answer += item.answer->tool_calls;
  const std::vector<TokenId> tokens =
      tokenizer_->Encode(answer, {.add_bos = false, .parse_special = false});
  out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  const TokenId end = item.kind == CorpusItem::Kind::kChat ? end_of_turn_ : tokenizer_->eos();
  if (item.answer->finish_reason != "length" && end >= 0) out.tokens.push_back(end);
  return out;
}

Result<Windows> PackWindows(const std::vector<TokenSequence>& sequences, int64_t context_len,
                            int64_t max_tokens, uint64_t seed, WindowsUse use) {
  if (context_len < kMinWindow) {
    return InvalidArgument("windows of ", context_len, " tokens; at least ", kMinWindow,
                           " were expected");
  }
  Windows out;
  WindowsReport& report = out.report;
  report.context_len = context_len;
  std::vector<int64_t> lengths;
  std::vector<Piece> pieces;
  const auto context = static_cast<size_t>(context_len);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TokenSequence& s = sequences[i];
    const auto length = static_cast<int64_t>(s.tokens.size());
    if (length == 0) continue;
    lengths.push_back(length);
    report.full_length += length >= context_len;
    const size_t prompt_len = s.is_text ? 0 : std::min(s.prompt_len, context);
    if (length <= context_len) {
      pieces.push_back({s.tokens, i, prompt_len});
      continue;
    }
    ++report.cut;
    if (s.is_text) {
      CutText(s, i, context, &report, &pieces);
    } else {
      report.cut_tokens += length - context_len;
      pieces.push_back({{s.tokens.begin(), s.tokens.begin() + context_len}, i, prompt_len});
    }
  }
  const Distribution lengths_of = DistributionOf(lengths);
  report.sequences = static_cast<int64_t>(lengths.size());
  report.median = lengths_of.median;
  report.p90 = lengths_of.p90;
  report.max = lengths_of.max;
  std::vector<OpenWindow> windows = Join(std::move(pieces), context);
  std::erase_if(windows, [&](const OpenWindow& w) {
    const bool short_one = static_cast<int64_t>(w.tokens.size()) < kMinWindow;
    report.too_short += short_one ? w.parts : 0;
    return short_one;
  });
  int64_t total = 0;
  for (const OpenWindow& w : windows) total += static_cast<int64_t>(w.tokens.size());
  if (max_tokens > 0 && total > max_tokens && !windows.empty()) {
    windows = Choose(std::move(windows), max_tokens, seed, &report);
  }
  std::set<uint64_t> prompts;
  for (OpenWindow& w : windows) {
    report.tokens += static_cast<int64_t>(w.tokens.size());
    for (const auto& [hash, tokens] : w.prompts) {
      report.repeated_tokens += prompts.insert(hash).second ? 0 : static_cast<int64_t>(tokens);
    }
    report.joined += w.parts > 1 ? w.parts : 0;
    out.windows.push_back(std::move(w.tokens));
  }
  report.windows = static_cast<int64_t>(out.windows.size());
  if (out.windows.empty()) {
    return DataLoss("no window of tokens: ",
                    FormatCount(report.sequences, "request or text", "requests and texts"),
                    ", the longest of ", report.max, " tokens; at least ", kMinWindow,
                    " are needed");
  }
  Warn(use, &report);
  return out;
}

Result<Windows> PackWindows(const CorpusEncoder& encoder, const std::vector<CorpusItem>& items,
                            int64_t context_len, int64_t max_tokens, uint64_t seed, WindowsUse use,
                            const ProgressSink& progress) {
  std::vector<TokenSequence> sequences;
  std::vector<CorpusReport::Skipped> skipped;
  bool without_template = false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!ReportProgress(progress, i, items.size(), "tokenizing")) {
      return Cancelled("tokenizing was stopped");
    }
    const CorpusItem& item = items[i];
    without_template |= item.kind == CorpusItem::Kind::kChat && !encoder.has_template();
    Result<TokenSequence> s = encoder.Encode(item);
    if (s.ok()) {
      sequences.push_back(*std::move(s));
      continue;
    }
    const std::string reason = s.status().message();
    const auto at = std::find_if(skipped.begin(), skipped.end(),
                                 [&](const auto& known) { return known.reason == reason; });
    if (at == skipped.end()) {
      skipped.push_back({reason, 1, item.name});
    } else {
      ++at->count;
    }
  }
  Result<Windows> out = PackWindows(sequences, context_len, max_tokens, seed, use);
  if (!out.ok()) {
    if (skipped.empty()) return out;
    return out.status().WithContext(StrCat("'", skipped[0].example, "' and ", skipped[0].count - 1,
                                           " others were skipped (", skipped[0].reason, ")"));
  }
  out->report.skipped = std::move(skipped);
  if (without_template) {
    out->report.notes.emplace_back(
        "the model has no chat template: messages are joined by empty lines");
  }
  return out;
}

}  // namespace tq
