// Reading: files to lines and pieces of text, redacted, into the sample.
#include "runtime/evaluate/corpus.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/evaluate/corpus_sample.h"
#include "runtime/evaluate/input_file.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/file.h"
#include "turboquant/base/json_object.h"
#include "turboquant/plan/request_log.h"

namespace tq {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr size_t kHeadBytes = size_t{64} << 10;  // what is looked at to tell a log from a text
constexpr size_t kAtomBytes = CorpusIdentity::kDocumentAtom;
// Room behind an atom, so that no redaction is cut in two and no small rest is left.
constexpr size_t kAtomWithRoom = kAtomBytes + kAtomBytes / 2;
constexpr size_t kMaxReasons = 24;

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

enum class Form { kLines, kWhole, kText };

// By the name where it says so, else by how the first line looks.
Form FormOf(const std::string& path, std::string_view head) {
  std::string name = path;
  for (const char* packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.rfind('.'));
  }
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Form::kText;
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return Form::kLines;
  const bool json = name.ends_with(".json");
  if (head[first] == '[') return json ? Form::kWhole : Form::kText;
  if (head[first] != '{') return Form::kText;
  const size_t end = head.find('\n', first);
  if (end == std::string_view::npos) {
    // One long line, or a small file of a single object.
    return head.size() >= kHeadBytes || Json::accept(head) ? Form::kLines : Form::kText;
  }
  if (Json::accept(head.substr(first, end - first))) return Form::kLines;
  return json ? Form::kWhole : Form::kText;
}

class CorpusReader {
 public:
  CorpusReader(const CorpusOptions& options, Redactor redactor)
      : options_(options), redactor_(std::move(redactor)), sample_(options) {}

  Result<Corpus> Run() {
    std::vector<std::pair<std::string, bool>> files;  // and whether it was named
    for (const std::string& path : options_.paths) TQ_RETURN_IF_ERROR(List(path, &files));
    for (const auto& [path, named] : files) {
      std::error_code error;
      const auto size = fs::file_size(path, error);
      if (!error) total_bytes_ += static_cast<int64_t>(size);
    }
    for (const auto& [path, named] : files) TQ_RETURN_IF_ERROR(Read(path, named));
    sample_.Finish(&corpus_);
    CorpusReport& report = corpus_.report;
    if (corpus_.calibration.empty() && corpus_.held_out.empty()) return NothingLeft();
    if (report.lines == 0) {
      report.notes.push_back(
          "these are texts, not requests: what counts is your own traffic, as it is sent to the "
          "model (--data requests.jsonl)");
    }
    return std::move(corpus_);
  }

 private:
  Status List(const std::string& path, std::vector<std::pair<std::string, bool>>* files) {
    if (!FileExists(path)) return NotFound("--data '", path, "': there is no such file or folder");
    if (!IsDirectory(path)) {
      files->emplace_back(path, true);
      return OkStatus();
    }
    std::vector<std::string> found;
    std::error_code error;
    fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const bool hidden = it->path().filename().string().starts_with('.');
      std::error_code unknown;
      if (it->is_directory(unknown)) {
        if (hidden) it.disable_recursion_pending();
      } else if (!hidden && it->is_regular_file(unknown)) {
        found.push_back(it->path().string());
      }
    }
    if (error) return Unavailable("--data '", path, "': ", error.message());
    std::sort(found.begin(), found.end());
    for (std::string& file : found) files->emplace_back(std::move(file), false);
    return OkStatus();
  }

  void Skip(const std::string& reason, const std::string& where) {
    std::vector<CorpusReport::Skipped>& all = corpus_.report.skipped;
    const std::string& name = all.size() < kMaxReasons ? reason : kOtherReasons;
    auto at = std::find_if(all.begin(), all.end(), [&](auto& s) { return s.reason == reason; });
    if (at == all.end()) {
      at = std::find_if(all.begin(), all.end(), [&](auto& s) { return s.reason == name; });
    }
    if (at == all.end()) at = all.insert(at, {name, 0, where});
    ++at->count;
  }

  Status NothingLeft() const {
    std::string why;
    int64_t count = 0;
    for (const CorpusReport::Skipped& s : corpus_.report.skipped) {
      count += s.count;
      why += StrCat(why.empty() ? "" : "; ", s.reason, " (", s.count, ", first: ", s.example, ")");
    }
    if (count == 0) return DataLoss("--data: there is no text in it");
    return DataLoss("--data: nothing in it can be used; ", count, " skipped: ", why);
  }

  Status Read(const std::string& path, bool named) {
    Result<InputFile> file = InputFile::Open(path);
    if (!file.ok()) {
      if (named) return file.status().WithContext("--data");
      Skip("it cannot be opened", path);
      return OkStatus();
    }
    corpus_.report.sources.push_back(path);
    path_ = path;
    buffer_.clear();
    at_end_ = false;
    before_bytes_ = done_bytes_;
    while (!at_end_ && buffer_.size() < kHeadBytes) TQ_RETURN_IF_ERROR(Fill(*file));
    switch (FormOf(path, buffer_)) {
      case Form::kLines: return ReadLines(*file);
      case Form::kWhole: return ReadWhole(*file);
      case Form::kText: return ReadText(*file);
    }
    return OkStatus();
  }

  // More bytes of the file behind buffer_. A damaged archive ends there, with what was good of it.
  Status Fill(InputFile& file) {
    const Result<std::string_view> bytes = file.Read();
    if (!bytes.ok()) {
      Skip("the file is damaged; what stands before is used", path_);
      at_end_ = true;
      return OkStatus();
    }
    at_end_ = bytes->empty();
    buffer_ += *bytes;
    corpus_.report.bytes += static_cast<int64_t>(bytes->size());
    done_bytes_ = before_bytes_ + file.bytes_read();
    const bool go_on =
        ReportProgress(options_.progress, static_cast<size_t>(done_bytes_),
                       static_cast<size_t>(std::max(total_bytes_, done_bytes_)), "reading");
    return go_on ? OkStatus() : Cancelled("reading of --data was stopped");
  }

  Status ReadLines(InputFile& file) {
    size_t number = 0;
    bool too_long = false;
    const auto take = [&](std::string_view line) {
      ++number;
      const std::string where = StrCat(path_, ", line ", number);
      if (std::exchange(too_long, false)) return Skip("a line is longer than 64 MiB", where);
      if (!IsBlank(line)) AddLine(line, where);
    };
    size_t searched = 0;
    for (;;) {
      size_t begin = 0;
      for (size_t end; (end = buffer_.find('\n', searched)) != std::string::npos;) {
        take(std::string_view(buffer_).substr(begin, end - begin));
        begin = searched = end + 1;
      }
      buffer_.erase(0, begin);
      if (buffer_.size() > kMaxLineBytes) {
        too_long = true;
        buffer_.clear();
      }
      searched = buffer_.size();
      if (at_end_) break;
      TQ_RETURN_IF_ERROR(Fill(file));
    }
    if (!buffer_.empty() || too_long) take(buffer_);
    return OkStatus();
  }

  // A file that is one JSON value: an array of requests, or a single one over several lines.
  Status ReadWhole(InputFile& file) {
    while (!at_end_) {
      TQ_RETURN_IF_ERROR(Fill(file));
      if (buffer_.size() <= kMaxLineBytes) continue;
      Skip("a file that is one JSON value is longer than 64 MiB; write one request a line", path_);
      return OkStatus();
    }
    const Result<Json> json = ParseJson<Json>(buffer_, path_);
    if (!json.ok()) {
      Skip("the file is not JSON", path_);
      return OkStatus();
    }
    if (!json->is_array()) {
      AddLine(json->dump(), path_);
      return OkStatus();
    }
    size_t number = 0;
    for (const Json& element : *json) {
      AddLine(element.dump(), StrCat(path_, ", element ", ++number));
    }
    return OkStatus();
  }

  void AddLine(std::string_view line, const std::string& where) {
    ++corpus_.report.lines;
    TextFilter filter, copy_filter;
    if (!redactor_.empty()) {
      filter = [&](std::string* text) { return redactor_.Apply(text, &corpus_.report.redactions); };
      copy_filter = [&](std::string* text) { return redactor_.Apply(text); };
    }
    Result<LoggedRequest> logged = ParseLogLine(line, filter, copy_filter);
    if (!logged.ok()) return Skip(logged.status().message(), where);
    if (!logged->has_text()) return Skip("it has neither messages nor a prompt", where);
    CorpusItem item;
    item.kind = logged->is_chat ? CorpusItem::Kind::kChat : CorpusItem::Kind::kCompletion;
    item.name = where;
    item.text = std::move(logged->prompt);
    for (LoggedMessage& m : logged->messages) {
      if (!m.tool_calls.empty() && !m.content.empty()) m.content += '\n';
      m.content += m.tool_calls;
      item.messages.push_back({std::move(m.role), std::move(m.content)});
    }
    if (logged->answer) {
      LoggedMessage& m = logged->answer->message;
      if (!m.content.empty() || !m.tool_calls.empty()) {
        item.answer = {std::move(m.content), std::move(m.tool_calls),
                       std::move(logged->answer->finish_reason)};
      }
    }
    if (item.bytes() == 0) return Skip("its texts are empty", where);
    std::optional<CorpusIdentity> identity = sample_.Wants(item);
    if (!identity) return;
    item.body = logged->body.dump();
    if (!sample_.AddRequest(std::move(item), *std::move(identity))) {
      Skip("it is longer than all of --max-tokens", where);
    }
  }

  Status ReadText(InputFile& file) {
    if (buffer_.find('\0') != std::string::npos) {
      Skip("the file is not text", path_);
      return OkStatus();
    }
    if (IsBlank(buffer_) && at_end_) return OkStatus();
    ++corpus_.report.texts;
    sample_.BeginDocument(path_);
    if (buffer_.starts_with("\xEF\xBB\xBF")) buffer_.erase(0, 3);
    int64_t offset = 0;
    while (!at_end_ || !buffer_.empty()) {
      while (!at_end_ && buffer_.size() < kAtomWithRoom) TQ_RETURN_IF_ERROR(Fill(file));
      const size_t valid = ValidUtf8Prefix(buffer_);
      if (valid + 4 <= buffer_.size() || (at_end_ && valid < buffer_.size())) {
        Skip("the file is not UTF-8 text; convert it with iconv", path_);
        return OkStatus();
      }
      size_t cut = buffer_.size();
      if (!at_end_ || cut >= kAtomWithRoom) {
        cut = redactor_.SafeCut(std::string_view(buffer_).substr(0, valid), AtomEnd());
      }
      std::string atom = buffer_.substr(0, cut);
      buffer_.erase(0, cut);
      const std::string where = StrCat(path_, ", byte ", offset);
      if (const Status redacted = redactor_.Apply(&atom, &corpus_.report.redactions);
          !redacted.ok()) {
        Skip(redacted.message(), where);
      } else if (!IsBlank(atom)) {
        sample_.AddAtom(atom, offset, static_cast<int64_t>(cut));
      }
      offset += static_cast<int64_t>(cut);
    }
    return OkStatus();
  }

  // Behind a line in the last quarter of an atom, else behind a space, else behind a character.
  size_t AtomEnd() const {
    const size_t least = kAtomBytes - kAtomBytes / 4;
    for (const char* ends : {"\n", " "}) {
      const size_t at = buffer_.find_last_of(ends, kAtomBytes - 1);
      if (at != std::string::npos && at >= least) return at + 1;
    }
    size_t at = kAtomBytes;
    while (at < buffer_.size() && (static_cast<uint8_t>(buffer_[at]) & 0xC0) == 0x80) ++at;
    return at;
  }

  static inline const std::string kOtherReasons = "other reasons";
  const CorpusOptions& options_;
  Redactor redactor_;
  CorpusSample sample_;
  Corpus corpus_;
  int64_t total_bytes_ = 0, done_bytes_ = 0, before_bytes_ = 0;  // of files on disk
  std::string path_, buffer_;
  bool at_end_ = false;
};

}  // namespace

Result<Corpus> ReadCorpus(const CorpusOptions& options) {
  if (options.paths.empty()) return InvalidArgument("--data names no file");
  constexpr int64_t kMostTokens = int64_t{1} << 32;
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens) {
    return InvalidArgument("--max-tokens ", options.max_tokens, " is outside 1..", kMostTokens);
  }
  if (!(options.held_out_share >= 0 && options.held_out_share <= 0.9)) {
    return InvalidArgument("--held-out-share ", options.held_out_share, " is outside 0..0.9");
  }
  if (!(options.shared_prefix > 0 && options.shared_prefix <= 1)) {
    return InvalidArgument("--shared-prefix ", options.shared_prefix, " is outside 0..1");
  }
  if (options.context_len < kMinWindow) {
    return InvalidArgument("a context of ", options.context_len, " tokens is under ", kMinWindow);
  }
  TQ_ASSIGN_OR_RETURN(Redactor redactor, Redactor::Create(options.redactions));
  return CorpusReader(options, std::move(redactor)).Run();
}

}  // namespace tq
