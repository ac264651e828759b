// Any bytes as a file of --data (a log, a text, an archive) and as a JSON object that gets a member:
// an error, or items that hold nothing of what is redacted, within the bound, in windows.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/evaluate/corpus.h"
#include "runtime/formats/json_member.h"

namespace {

constexpr char kSecret[] = "5551234";

void CheckItem(const tq::CorpusItem& item) {
  std::string all = item.text + "\n" + item.body + "\n" + item.name;
  for (const tq::ChatMessage& m : item.messages) all += "\n" + m.role + "\n" + m.content;
  if (item.answer) all += "\n" + item.answer->content + "\n" + item.answer->tool_calls;
  TQ_CHECK(all.find(kSecret) == std::string::npos);
  TQ_CHECK(item.bytes() > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tq::Result<std::string> member = tq::WithJsonMember(text, "us", "{\n  \"a\": 1\n}");
  if (member.ok()) {
    nlohmann::json wanted = nlohmann::json::parse(text);
    wanted["us"] = {{"a", 1}};
    TQ_CHECK(nlohmann::json::parse(*member) == wanted);
    const tq::Result<std::string> without = tq::WithJsonMember(*member, "us", std::nullopt);
    wanted.erase("us");
    TQ_CHECK(without.ok() && nlohmann::json::parse(*without) == wanted);
  }

  const int fd = ::memfd_create("fuzz", 0);
  TQ_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size));
  tq::CorpusOptions options;
  options.paths = {"/proc/self/fd/" + std::to_string(fd)};
  options.redactions = {{kSecret, "*"}};
  options.max_tokens = 1000;
  options.context_len = 64;
  const tq::Result<tq::Corpus> corpus = tq::ReadCorpus(options);
  ::close(fd);
  if (!corpus.ok()) {
    TQ_CHECK(corpus.status().message().find(kSecret) == std::string::npos);
    return 0;
  }
  std::vector<tq::TokenSequence> sequences;
  size_t bytes = 0;
  for (const auto* part : {&corpus->calibration, &corpus->held_out}) {
    for (const tq::CorpusItem& item : *part) {
      CheckItem(item);
      bytes += item.bytes();
      tq::TokenSequence s;
      for (const char c : item.text) s.tokens.push_back(static_cast<uint8_t>(c));
      s.is_text = item.kind == tq::CorpusItem::Kind::kText;
      sequences.push_back(std::move(s));
    }
  }
  TQ_CHECK(bytes <= 8 * 1000 + 64);
  TQ_CHECK(tq::CorpusJson(corpus->report).dump().find(kSecret) == std::string::npos);
  const tq::Result<tq::Windows> windows = tq::PackWindows(sequences, 64, 500, 1);
  if (!windows.ok()) return 0;
  int64_t tokens = 0;
  for (const auto& window : windows->windows) {
    TQ_CHECK(!window.empty() && window.size() <= 64);
    tokens += static_cast<int64_t>(window.size());
  }
  TQ_CHECK(tokens <= 500 && tokens == windows->report.tokens);
  return 0;
}
