// tq run: completes a prompt or chats.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/memory_limit.h"
#include "runtime/engine/session.h"
#include "runtime/evaluate/compare.h"
#include "runtime/evaluate/results_json.h"
#include "runtime/tokenizer/chat_template.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  std::string prompt, prompt_file;
  std::string load_cache, save_cache, memory_limit;
  bool chat = false, explain = false, context_shift = false;
  int64_t context = 0;
  int max_tokens = 256;
  std::vector<std::string> stop, logit_bias;
  int logprobs = -1, answers = 1;
  SamplingParams sampling;
  bool has_prompt = false;  // -p was given, maybe empty
};

double PerSecond(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

bool StdinIsTerminal() {
  return ::isatty(STDIN_FILENO) != 0;
}

std::string ReadStdin() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

Status CheckPrompt(const std::string& prompt) {
  if (prompt.empty()) return InvalidArgument("the prompt is empty; pass text with -p");
  const size_t bad = ValidUtf8Prefix(prompt);
  if (bad == prompt.size()) return OkStatus();
  return InvalidArgument(
      fmt::format("the prompt is not UTF-8 (byte 0x{:02X} at offset {}); convert it with iconv",
                  static_cast<unsigned char>(prompt[bad]), bad));
}

Result<std::string> ReadPrompt(const RunFlags& flags) {
  if (flags.has_prompt && !flags.prompt_file.empty()) {
    return InvalidArgument("--prompt and --prompt-file exclude each other");
  }
  if (flags.has_prompt) return flags.prompt;
  if (!flags.prompt_file.empty()) return ReadFile(flags.prompt_file);
  if (StdinIsTerminal()) {
    return InvalidArgument(
        "there is no prompt; pass -p \"...\", --prompt-file FILE, or text on "
        "stdin, or chat with --chat");
  }
  return ReadStdin();
}

GenerateOptions OptionsOf(const RunFlags& flags) {
  GenerateOptions options;
  options.max_tokens = flags.max_tokens;
  options.sampling = flags.sampling;
  options.logprobs = flags.logprobs;
  options.stop = flags.stop;
  options.cancel = &InterruptFlag();
  options.context_shift = flags.context_shift;
  return options;
}

// "42=-5" of --logit-bias.
Result<std::pair<int32_t, float>> ParseBias(const std::string& text) {
  std::pair<int32_t, float> bias;
  const char* const end = text.data() + text.size();
  const auto [equals, error] = std::from_chars(text.data(), end, bias.first);
  if (error == std::errc() && equals != end && *equals == '=') {
    const auto [rest, bad] = std::from_chars(equals + 1, end, bias.second);
    if (bad == std::errc() && rest == end) return bias;
  }
  return InvalidArgument("--logit-bias '", text, "' is not of the form TOKEN=VALUE, e.g. 42=-5");
}

// What can be refused before a model is read; reads --logit-bias.
Status CheckFlags(RunFlags& flags) {
  for (const std::string& text : flags.logit_bias) {
    TQ_ASSIGN_OR_RETURN(const auto bias, ParseBias(text));
    flags.sampling.logit_bias.push_back(bias);
  }
  if (flags.answers < 1 || flags.answers > 100) {
    return InvalidArgument("--answers ", flags.answers, " is outside 1..100");
  }
  if (flags.answers > 1 && flags.max_tokens == 0) {
    return InvalidArgument("--answers ", flags.answers, " needs --max-tokens above 0");
  }
  if (flags.answers > 1 && flags.sampling.temperature == 0) {
    return InvalidArgument("--answers ", flags.answers, " with --temperature 0 would be the same ",
                           "answer ", flags.answers,
                           " times; give --temperature above 0, e.g. 0.8");
  }
  if (flags.logprobs >= 0 && !flags.output.json) {
    return InvalidArgument("--logprobs is a part of --json; add it");
  }
  if (flags.max_tokens == 0 && flags.save_cache.empty()) {
    return InvalidArgument("--max-tokens 0 only makes sense with --save-cache");
  }
  if (flags.max_tokens < 0) {
    return InvalidArgument("--max-tokens ", flags.max_tokens, " is below 1");
  }
  TQ_RETURN_IF_ERROR(OptionsOf(flags).Validate());
  if (!flags.save_cache.empty()) TQ_RETURN_IF_ERROR(CheckWritable(flags.save_cache));
  TQ_RETURN_IF_ERROR(flags.kv.ValidateWindow());
  TQ_RETURN_IF_ERROR(ParseVSkip(flags.kv.v_skip).status());
  return CheckKvName(flags.kv.kv);
}

// The text of a token, so that it can be read in a message.
std::string Quoted(const std::string& bytes) {
  return nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// One session from the first prompt to the last answer.
class Runner {
 public:
  // Without a prompt: talks with whoever sits at the terminal. An empty one goes on from the loaded
  // cache.
  Runner(const RunFlags& flags, LoadedModel loaded, std::optional<std::string> prompt,
         std::optional<Snapshot> snapshot)
      : flags_(flags),
        loaded_(std::move(loaded)),
        prompt_(std::move(prompt)),
        snapshot_(std::move(snapshot)) {}

  Result<int> Run() {
    TQ_ASSIGN_OR_RETURN(
        context_, ContextLen(flags_.context, loaded_.model->arch().context_len, flags_.output));
    TQ_ASSIGN_OR_RETURN(choice_, ChooseKv(loaded_.ForKv(), flags_.kv, context_));
    for (const std::string& note : choice_.notes) PrintNote(flags_.output, note);
    if (flags_.explain) {
      std::fprintf(stderr, "cache of %s, %s:\n%s", choice_.name.c_str(), CurrentIsa().c_str(),
                   ExplainKv(choice_).c_str());
    }
    TQ_ASSIGN_OR_RETURN(session_, Session::Create(*loaded_.model, choice_.config, context_));
    if (choice_.config.v_skip > 0) {
      loaded_.model->set_output_probe([this](int layer, const KvCache& cache,
                                             const AttentionParams& params,
                                             std::span<const AttentionItem> items) {
        v_skip_.Add(cache, layer, params, items);
      });
    }
    TQ_RETURN_IF_ERROR(LoadCache());
    Status status = flags_.chat ? Chat() : Complete();
    session_->KeepPrefixes(0);
    const bool interrupted = InterruptFlag().load();
    if (interrupted && status.code() == StatusCode::kCancelled) status = OkStatus();
    if (!status.ok()) return status;
    if (interrupted) finish_reason_ = FinishReason::kCancelled;
    TQ_RETURN_IF_ERROR(SaveCache(interrupted));
    flags_.output.json ? PrintJson() : PrintTimings();
    return interrupted ? kInterrupted : kDone;
  }

 private:
  Status LoadCache() {
    if (!snapshot_) return OkStatus();
    TQ_RETURN_IF_ERROR(session_->LoadCache(*snapshot_));
    snapshot_.reset();
    loaded_tokens_ = session_->length();
    PrintNote(flags_.output, fmt::format("cache:   {} tokens from '{}'",
                                         FormatCount(loaded_tokens_), flags_.load_cache));
    return OkStatus();
  }

  Status SaveCache(bool interrupted) {
    if (flags_.save_cache.empty()) return OkStatus();
    if (interrupted) {
      PrintNote(flags_.output, "cache:   not saved after Ctrl-C");
      return OkStatus();
    }
    TQ_RETURN_IF_ERROR(session_->SaveCache(flags_.save_cache, choice_.name));
    saved_tokens_ = session_->length();
    PrintNote(flags_.output, fmt::format("cache:   {} tokens saved to '{}'",
                                         FormatCount(saved_tokens_), flags_.save_cache));
    return OkStatus();
  }

  // The first prompt after a cache was loaded begins with what is in it.
  Status CheckLoaded(std::span<const TokenId> tokens) const {
    const std::span<const TokenId> held = session_->tokens();
    const size_t same = CommonPrefix(held, tokens);
    if (same == held.size()) return OkStatus();
    const std::string file = "'" + flags_.load_cache + "'";
    const auto text = [&](TokenId id) { return Quoted(loaded_.tokenizer->TokenBytes(id)); };
    if (same == tokens.size()) {
      return InvalidArgument("the prompt ends at token ", same, " and the ", held.size(),
                             " tokens of ", file, " go on there with ", text(held[same]),
                             "; the prompt has to begin with everything that was saved");
    }
    return InvalidArgument("the prompt and ", file, " part at token ", same, ": the prompt has ",
                           text(tokens[same]), ", the file ", text(held[same]),
                           "; the prompt has to begin with everything that was saved");
  }

  static size_t CommonPrefix(std::span<const TokenId> a, std::span<const TokenId> b) {
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }

  Status Complete() {
    if (!prompt_->empty()) return Answer(loaded_.tokenizer->Encode(*prompt_));
    const std::span<const TokenId> held = session_->tokens();
    return Answer({held.begin(), held.end()});
  }

  Status Chat() {
    const std::string& source = loaded_.tokenizer->chat_template();
    if (source.empty()) {
      return InvalidArgument("'", loaded_.path, "' has no chat template; run without --chat");
    }
    TQ_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::Parse(source));
    if (!prompt_ && flags_.answers > 1) {
      return InvalidArgument("--answers needs a prompt (-p); a chat goes on from one answer");
    }
    if (!prompt_) PrintNote(flags_.output, "Ctrl-D or Ctrl-C ends the chat.");
    std::vector<ChatMessage> messages;
    for (;;) {
      std::string text;
      if (prompt_) {
        text = *prompt_;
      } else {
        std::fputs("\n> ", stderr);
        if (!std::getline(std::cin, text)) {
          std::fputs("\n", stderr);
          return OkStatus();
        }
        if (text.find_first_not_of(" \t") == std::string::npos) continue;
      }
      const Status checked = CheckPrompt(text);
      if (!checked.ok()) {
        PrintError("tq run", checked.message());
        continue;
      }
      messages.push_back({"user", text});
      const Tokenizer& tokenizer = *loaded_.tokenizer;
      const auto special = [&](TokenId id) { return id < 0 ? "" : tokenizer.TokenBytes(id); };
      const std::time_t clock = std::time(nullptr);
      std::tm now = {};
      TQ_ASSIGN_OR_RETURN(
          const std::string rendered,
          chat_template.Render(messages, true, special(tokenizer.bos()), special(tokenizer.eos()),
                               ::localtime_r(&clock, &now)));
      const size_t text_start = text_.size();
      TQ_RETURN_IF_ERROR(Answer(tokenizer.Encode(rendered)));
      if (prompt_ || InterruptFlag().load()) return OkStatus();
      messages.push_back({"assistant", text_.substr(text_start)});
      if (finish_reason_ == FinishReason::kContext) {
        PrintNote(flags_.output, "The chat ends with it.");
        return OkStatus();
      }
    }
  }

  // Brings the cache to `tokens` (what it already holds is kept) and generates.
  Status Answer(const std::vector<TokenId>& tokens) {
    if (static_cast<int64_t>(tokens.size()) + (flags_.max_tokens > 0 ? 1 : 0) > context_) {
      return InvalidArgument("the prompt has ", tokens.size(), " tokens and the context is ",
                             context_,
                             ": there is no room for an answer; raise --context or "
                             "shorten the prompt");
    }
    if (loaded_tokens_ > 0 && prompt_tokens_ + generated_tokens_ == 0) {
      TQ_RETURN_IF_ERROR(CheckLoaded(tokens));
    }
    TQ_ASSIGN_OR_RETURN(const int64_t keep, session_->StartFrom(tokens));
    const auto fresh = std::span(tokens).subspan(static_cast<size_t>(keep));
    if (!fresh.empty()) {
      ProgressBar progress(flags_.output.quiet || fresh.size() < 512);
      const auto start = std::chrono::steady_clock::now();
      const Status status = session_->Prefill(fresh, {}, progress.sink(), &InterruptFlag());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      prefill_seconds_ += took.count();
      prompt_tokens_ += session_->length() - keep;  // fewer after Ctrl-C
      TQ_RETURN_IF_ERROR(status);
    }
    if (!prompt_) {
      // The next prompt may spell the answer with other tokens: then it is read again from here,
      // where the window is still exact. One boundary is enough.
      session_->KeepPrefixes(std::numeric_limits<size_t>::max());
      (void)session_->MarkBoundary();  // an inexact sequence has none
    }
    if (flags_.max_tokens == 0) {
      finish_reason_ = FinishReason::kLength;
      return OkStatus();
    }
    int shown = 0;  // answers whose text has begun
    const auto stream = [&](int answer, const std::string& text) {
      if (flags_.output.json) return;
      for (; flags_.answers > 1 && shown <= answer; ++shown) {
        PrintOut(fmt::format("{}[{}]\n", shown == 0 ? "" : "\n\n", shown + 1));
      }
      PrintOut(text);
      (void)FlushStdout();  // reported when the command ends
    };
    TQ_ASSIGN_OR_RETURN(answers_, session_->GenerateSeveral(*loaded_.tokenizer, OptionsOf(flags_),
                                                            flags_.answers, stream));
    if (!flags_.output.json) PrintOut("\n");
    text_ += answers_.front().text;
    for (const GenerateResult& result : answers_) {
      generated_tokens_ += static_cast<int64_t>(result.tokens.size());
      decode_seconds_ += result.decode_seconds;
      decode_steps_ += static_cast<int64_t>(result.token_seconds.size());
    }
    finish_reason_ = answers_.front().finish_reason;
    if (finish_reason_ == FinishReason::kContext) {
      PrintNote(flags_.output,
                fmt::format("context: all {} tokens are used, so the answer ends here; raise "
                            "--context or shorten the prompt",
                            FormatCount(context_)));
    }
    return OkStatus();
  }

  void PrintTimings() {
    const CacheBytes bytes = session_->cache().Bytes();
    const size_t f16 = session_->cache().F16Bytes();
    const double ratio =
        bytes.total() == 0 ? 0 : static_cast<double>(f16) / static_cast<double>(bytes.total());
    const OutputFlags& o = flags_.output;
    if (flags_.output.quiet) return;
    PrintNote(o, "");
    PrintNote(o, fmt::format("prefill: {} tokens, {:.1f} tokens/s", FormatCount(prompt_tokens_),
                             PerSecond(prompt_tokens_, prefill_seconds_)));
    PrintNote(o, fmt::format(
                     "decode:  {} tokens, {:.1f} tokens/s ({})", FormatCount(generated_tokens_),
                     PerSecond(decode_steps_, decode_seconds_), FinishReasonName(finish_reason_)));
    PrintNote(
        o, fmt::format(
               "cache:   {} for {} tokens ({}): payload {}, scales {}, window {}{}; "
               "f16 would take {}, ratio {}",
               FormatMiB(bytes.total()), FormatCount(session_->length()), choice_.name,
               FormatMiB(bytes.payload), FormatMiB(bytes.scales), FormatMiB(bytes.window),
               bytes.sliding > 0 ? ", sliding windows " + FormatMiB(bytes.sliding) : std::string(),
               FormatMiB(f16), FormatRatio(ratio)));
    PrintNote(
        o, fmt::format("kernel:  {}; {} threads, {}; peak memory {}", KernelNames(choice_.config),
                       loaded_.pool->num_threads(), CurrentIsa(), FormatMiB(PeakRssBytes())));
    if (choice_.config.v_skip > 0) {
      PrintNote(o,
                fmt::format("v-skip:  values of {:.1f} % of old blocks left unread, with {:.2f} % "
                            "of the attention",
                            100 * v_skip_.skipped_share(), 100 * v_skip_.mean_mass()));
    }
    const WriteCounters counters = session_->cache().counters();
    if (counters.nonfinite_values + counters.clamped_values > 0) {
      PrintNote(o, fmt::format("cache:   {} values were NaN or infinite and stored as 0, {} were "
                               "clamped",
                               counters.nonfinite_values, counters.clamped_values));
    }
  }

  nlohmann::ordered_json TokenJson(const TokenLogprob& token) const {
    return {{"id", token.id},
            {"text", loaded_.tokenizer->TokenBytes(token.id)},
            // Infinity is no number in JSON.
            {"logprob", std::max(token.logprob, std::numeric_limits<float>::lowest())}};
  }

  nlohmann::ordered_json AnswerJson(const GenerateResult& result) const {
    nlohmann::ordered_json j = {{"text", result.text},
                                {"tokens", result.tokens},
                                {"finish_reason", FinishReasonName(result.finish_reason)}};
    if (flags_.logprobs < 0) return j;
    j["logprobs"] = nlohmann::ordered_json::array();
    for (const Logprobs& logprobs : result.logprobs) {
      nlohmann::ordered_json token = TokenJson(logprobs.chosen);
      token["top"] = nlohmann::ordered_json::array();
      for (const TokenLogprob& top : logprobs.top) token["top"].push_back(TokenJson(top));
      j["logprobs"].push_back(std::move(token));
    }
    return j;
  }

  void PrintJson() {
    nlohmann::ordered_json j;
    j["text"] = text_;
    if (flags_.answers > 1 || flags_.logprobs >= 0) {
      for (const GenerateResult& result : answers_) j["answers"].push_back(AnswerJson(result));
    }
    j["prompt_tokens"] = prompt_tokens_;
    j["generated_tokens"] = generated_tokens_;
    j["prefill_tokens_per_second"] = PerSecond(prompt_tokens_, prefill_seconds_);
    j["decode_tokens_per_second"] = PerSecond(decode_steps_, decode_seconds_);
    j["cache"] = CacheJson(session_->cache().Bytes(), session_->cache().F16Bytes(), choice_.config);
    if (choice_.config.v_skip > 0) j["v_skip"] = VSkipJson(choice_.config.v_skip, v_skip_);
    j["peak_rss_bytes"] = PeakRssBytes();
    j["finish_reason"] = FinishReasonName(finish_reason_);
    j["model"] = loaded_.model->arch().model_name;
    j["kv"] = choice_.name;
    j["kernel"] = KernelNames(choice_.config);
    j["isa"] = CurrentIsa();
    j["threads"] = loaded_.pool->num_threads();
    j["loaded_tokens"] = loaded_tokens_;
    j["saved_tokens"] = saved_tokens_;
    // Generated bytes may end inside a character.
    PrintOut(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  const RunFlags& flags_;
  LoadedModel loaded_;
  std::optional<std::string> prompt_;
  std::optional<Snapshot> snapshot_;  // until it is in the session
  KvChoice choice_;
  int64_t context_ = 0;
  std::unique_ptr<Session> session_;  // after loaded_: goes first
  std::string text_;
  std::vector<GenerateResult> answers_;  // to the last prompt
  int64_t loaded_tokens_ = 0, saved_tokens_ = 0;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0, decode_steps_ = 0;
  double prefill_seconds_ = 0, decode_seconds_ = 0;
  FinishReason finish_reason_ = FinishReason::kStop;
  VSkipTotals v_skip_;
};

}  // namespace

Command AddRun(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "run", "Complete a prompt or chat over a quantized cache",
                 "tq run -p \"The capital of France is\" --kv k4v4 --max-tokens 32");
  auto flags = std::make_shared<RunFlags>();
  flags->model.Add(command);
  command->add_option("-p,--prompt", flags->prompt, "The text to go on from");
  command->add_option("--prompt-file", flags->prompt_file, "The same from a file")
      ->type_name("FILE");
  command->add_flag("--chat", flags->chat,
                    "Use the model's chat template; without -p on a terminal: talk with it");
  flags->kv.Add(command);
  flags->kv.AddVSkip(command);
  command
      ->add_option(
          "--load-cache", flags->load_cache,
          "Begin with the tokens of a saved cache: the prompt repeats them and goes on, or "
          "is empty")
      ->type_name("FILE");
  command
      ->add_option("--save-cache", flags->save_cache,
                   "Save the cache with prompt and answer; --max-tokens 0 saves the prompt alone")
      ->type_name("FILE");
  command->add_option("--context", flags->context,
                      "Most tokens of prompt and answer; 0 = what the model was trained for");
  command->add_option("--memory-limit", flags->memory_limit,
                      "Refuse what needs more, e.g. 2GiB (default: the memory that is available)");
  command->add_flag("--context-shift", flags->context_shift,
                    "Go on beyond the context by dropping old tokens: refused, with the reason");
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens of an answer");
  command->add_option("--stop", flags->stop, "Text that ends the answer; may be repeated")
      ->allow_extra_args(false)
      ->default_str("");
  SamplingParams& s = flags->sampling;
  command->add_option("--temperature", s.temperature, "0 = always the most probable token");
  command->add_option("--top-k", s.top_k, "Sample from the k most probable tokens; 0 = all");
  command->add_option("--top-p", s.top_p, "Sample from the tokens that make up this probability");
  command->add_option("--min-p", s.min_p, "Drop tokens below this share of the most probable one");
  command->add_option("--repetition-penalty", s.repetition_penalty,
                      "Of tokens among the last ones; 1 = none");
  command->add_option("--penalty-last", s.penalty_last, "How many tokens that looks back");
  command->add_option("--presence-penalty", s.presence_penalty,
                      "Taken from the logit of every token that the answer has");
  command->add_option("--frequency-penalty", s.frequency_penalty,
                      "The same for each time that it has it");
  command
      ->add_option("--logit-bias", flags->logit_bias,
                   "TOKEN=VALUE: added to the logit of a token id; may be repeated")
      ->allow_extra_args(false)
      ->default_str("");
  command->add_option("--logprobs", flags->logprobs,
                      "With --json: the log-probability of each token and of this many others");
  command->add_option(
      "-n,--answers", flags->answers,
      "Number of answers, with --temperature above 0; answer i is drawn with the seed + i");
  command->add_option("--seed", s.seed, "Of the sampler");
  command->add_flag("--explain", flags->explain,
                    "Say which format and kernel each layer gets, and why");
  flags->output.Add(command);
  return {"run", [flags, command]() -> Result<int> {
            flags->has_prompt = command->count("--prompt") > 0;
            TQ_RETURN_IF_ERROR(CheckFlags(*flags));
            std::optional<std::string> prompt;
            const bool given = flags->has_prompt || !flags->prompt_file.empty();
            std::optional<Snapshot> snapshot;
            if (!flags->load_cache.empty()) {
              TQ_ASSIGN_OR_RETURN(snapshot, Snapshot::Open(flags->load_cache));
            }
            if (snapshot && !flags->chat && !given && StdinIsTerminal()) {
              prompt = "";
            } else if (!flags->chat || given || !StdinIsTerminal()) {
              TQ_ASSIGN_OR_RETURN(prompt, ReadPrompt(*flags));
              const bool go_on = snapshot && !flags->chat && prompt->empty();
              if (!go_on) TQ_RETURN_IF_ERROR(CheckPrompt(*prompt));
            }
            TQ_RETURN_IF_ERROR(CheckMemory(flags->model, flags->kv, flags->context,
                                           flags->memory_limit, flags->output));
            TQ_ASSIGN_OR_RETURN(LoadedModel loaded,
                                LoadModel(flags->model, flags->output, flags->context));
            return Runner(*flags, std::move(loaded), std::move(prompt), std::move(snapshot)).Run();
          }};
}

}  // namespace tq::cli
