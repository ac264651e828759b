#include "cli/eval/generate_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tq::cli {

void GenerateFlags::Add(CLI::App* app) {
  app->add_option("--generations", generations,
                  "Answers to each prompt from each side, each with another seed")
      ->capture_default_str();
  app->add_option("--temperature", temperature, "Of all answers")->capture_default_str();
  app->add_option(
         "--prompts", prompts.per_group,
         "Prompts of each group: short questions, details of long texts, adversarial texts")
      ->capture_default_str();
  app->add_option("--prompt-tokens", prompts.long_tokens, "Length of a long prompt")
      ->capture_default_str();
  app->add_option("--answer-tokens", prompts.answer_tokens, "Longest answer")
      ->capture_default_str();
  app->add_option("--long-answers", prompts.long_answers, "Prompts with long answers")
      ->capture_default_str();
  app->add_option("--long-answer-tokens", prompts.long_answer_tokens, "Longest of these")
      ->capture_default_str();
  app->add_option("--embeddings", embeddings,
                  "Folder of the sentence embeddings (default: the fetched all-MiniLM-L6-v2)")
      ->type_name("FOLDER");
}

Status GenerateFlags::Validate() const {
  const std::pair<const char*, int64_t> counts[] = {
      {"--prompts", prompts.per_group},
      {"--prompt-tokens", prompts.long_tokens},
      {"--answer-tokens", prompts.answer_tokens},
      {"--long-answer-tokens", prompts.long_answer_tokens}};
  for (const auto& [flag, value] : counts) {
    if (value < 1 || value > 1 << 24)
      return InvalidArgument(flag, " ", value, ": expected 1 or more");
  }
  if (prompts.long_answers < 0) {
    return InvalidArgument("--long-answers ", prompts.long_answers, ": expected 0 or more");
  }
  if (generations < 2 || generations > 16) {
    return InvalidArgument("--generations ", generations, ": expected 2 to 16");
  }
  if (!(temperature >= 0 && temperature <= 2)) {
    return InvalidArgument("--temperature ", temperature, ": expected 0 to 2");
  }
  return EmbeddingsFolder().status();
}

int64_t GenerateFlags::ContextLen() const {
  constexpr int64_t kShortPrompt = 256, kTemplate = 128;
  return std::max<int64_t>(prompts.long_tokens + prompts.answer_tokens,
                           kShortPrompt + prompts.long_answer_tokens) +
         kTemplate;
}

Result<std::string> GenerateFlags::EmbeddingsFolder() const {
  return cli::EmbeddingsFolder(embeddings);
}

Result<GenerationsOptions> GenerateFlags::Options(Responder& baseline,
                                                  const std::vector<CorpusItem>& items,
                                                  const std::pair<std::string, std::string>& text,
                                                  uint64_t seed) const {
  GenerationsOptions options;
  options.generations = generations;
  options.temperature = temperature;
  options.seed = seed;
  options.cancel = &InterruptFlag();
  TQ_ASSIGN_OR_RETURN(const std::string folder, EmbeddingsFolder());
  options.embeddings_name = std::filesystem::path(folder).filename().string();
  PromptOptions make = prompts;
  make.seed = seed;
  const Tokenizer* tokenizer = baseline.tokenizer();
  make.chat = tokenizer == nullptr || !tokenizer->chat_template().empty();
  TQ_ASSIGN_OR_RETURN(const Haystack haystack,
                      Haystack::For(baseline, make.chat, text.first, text.second, options.cancel));
  const bool has_requests = std::any_of(items.begin(), items.end(), [](const CorpusItem& item) {
    return item.kind != CorpusItem::Kind::kText;
  });
  TQ_ASSIGN_OR_RETURN(options.prompts, has_requests ? PromptsFromRequests(items, haystack, make)
                                                    : MakePrompts(haystack, make));
  return options;
}

std::string GenerateFlags::CommandLine() const {
  return fmt::format(
      " --generations {} --temperature {:g} --prompts {} --prompt-tokens {} --answer-tokens {} "
      "--long-answers {} --long-answer-tokens {}",
      generations, temperature, prompts.per_group, prompts.long_tokens, prompts.answer_tokens,
      prompts.long_answers, prompts.long_answer_tokens);
}

Result<std::pair<std::string, std::string>> ReadLongText(const TaskFlags& flags, int64_t tokens) {
  TaskFlags silent = flags;  // what there is to say about the data was said when it was read
  silent.output.quiet = true;
  return ReadTaskText(silent, tokens);
}

}  // namespace tq::cli
