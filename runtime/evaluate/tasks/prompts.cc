#include "runtime/evaluate/tasks/prompts.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "runtime/evaluate/tasks/adversarial.h"
#include "runtime/evaluate/tasks/needle.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

struct GroupWords {
  const char* name;
  const char* title;
};
constexpr std::array<GroupWords, kNumPromptGroups> kGroups = {{
    {"short", "Short questions"},
    {"long", "Details of long texts"},
    {"adversarial", "Adversarial long texts"},
    {"long_answer", "Long answers"},
}};

constexpr const char* kShortQuestions[] = {
    "Why is the sky blue?",
    "Give me three tips for sleeping better.",
    "What is a hash table? Explain it to a beginner.",
    "Write a short thank-you note to a colleague who helped with a report.",
    "How do I boil an egg?",
    "What is the difference between a lake and a river?",
    "Name five countries in Europe and their capitals.",
    "Explain why ships float although they are made of steel.",
};

constexpr const char* kLongQuestions[] = {
    "Write a long story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain in detail, step by step, how bread is made, from the field to the table.",
    "Describe a week in the life of a village doctor a hundred years ago, day by day.",
    "Write a long letter to a friend about a journey by train through the mountains.",
};

// Asked about a long text beside details that are certain: the answer is free.
constexpr const char* kAboutText =
    "Summarize the text above in three sentences. Name the people and the places in it.";

class Maker {
 public:
  Maker(const Haystack& haystack, const PromptOptions& options)
      : haystack_(haystack), options_(options) {}

  void Questions(PromptGroup group, std::span<const char* const> questions, int count) {
    for (int i = 0; i < count; ++i) {
      const std::string question = questions[static_cast<size_t>(i) % questions.size()];
      Add(group, Said(question), question, "");
    }
  }

  // Every second one asks for a planted detail, the others for a summary.
  Status Long() {
    NeedleOptions needle;
    needle.kinds = {"single", "multi_key"};
    needle.lengths = {options_.long_tokens};
    needle.length_flag = options_.length_flag;
    needle.seed = options_.seed;
    TQ_ASSIGN_OR_RETURN(const std::vector<Trial> trials, MakeNeedleTrials(haystack_, needle));
    const std::vector<Trial> chosen = Spread(trials);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i % 2 == 0) {
        AddTrial(PromptGroup::kLong, chosen[i]);
      } else {
        Add(PromptGroup::kLong, Said(*chosen[i].text + "\n" + kAboutText), kAboutText, "");
      }
    }
    return OkStatus();
  }

  Status Adversarial() {
    AdversarialOptions adversarial;
    adversarial.length = options_.long_tokens;
    adversarial.length_flag = options_.length_flag;
    adversarial.questions = 1;
    adversarial.seed = options_.seed;
    TQ_ASSIGN_OR_RETURN(const std::vector<Trial> trials,
                        MakeAdversarialTrials(haystack_, adversarial));
    for (const Trial& trial : Spread(trials)) AddTrial(PromptGroup::kAdversarial, trial);
    return OkStatus();
  }

  std::vector<Prompt> Take() { return std::move(prompts_); }

 private:
  // per_group of the trials, evenly over their order, so that kinds differ.
  std::vector<Trial> Spread(const std::vector<Trial>& trials) const {
    std::vector<Trial> chosen;
    const size_t count = std::min(trials.size(), static_cast<size_t>(options_.per_group));
    for (size_t i = 0; i < count; ++i) chosen.push_back(trials[i * trials.size() / count]);
    return chosen;
  }

  ordered_json Said(const std::string& text) const {
    if (!options_.chat) return {{"prompt", text + "\n\n"}};
    return {{"messages", {{{"role", "user"}, {"content", text}}}}};
  }

  // Primed: what small models can answer.
  void AddTrial(PromptGroup group, const Trial& trial) {
    Add(group, RequestOf(trial, AskForm::kPrimed), trial.primer,
        trial.expected.size() == 1 ? trial.expected.front() : "", trial.max_tokens);
  }

  void Add(PromptGroup group, ordered_json request, const std::string& question,
           const std::string& expected, int needed_tokens = 0) {
    const bool is_long = group == PromptGroup::kLongAnswer;
    request["max_tokens"] =
        std::max(needed_tokens, is_long ? options_.long_answer_tokens : options_.answer_tokens);
    const int number = ++counts_[static_cast<size_t>(group)];
    prompts_.push_back({PromptGroupName(group) + std::string(" ") + std::to_string(number), group,
                        std::move(request), question, expected});
  }

  const Haystack& haystack_;
  const PromptOptions& options_;
  std::array<int, kNumPromptGroups> counts_{};
  std::vector<Prompt> prompts_;
};

// What a report shows of a recorded prompt.
std::string EndOf(const std::string& text) {
  constexpr size_t kBytes = 600;
  if (text.size() <= kBytes) return text;
  size_t begin = text.size() - kBytes;
  while (begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) ++begin;
  return "..." + text.substr(begin);
}

}  // namespace

const char* PromptGroupName(PromptGroup group) {
  return kGroups[static_cast<size_t>(group)].name;
}
const char* PromptGroupTitle(PromptGroup group) {
  return kGroups[static_cast<size_t>(group)].title;
}

Result<std::vector<Prompt>> MakePrompts(const Haystack& haystack, const PromptOptions& options) {
  Maker maker(haystack, options);
  maker.Questions(PromptGroup::kShort, kShortQuestions, options.per_group);
  TQ_RETURN_IF_ERROR(maker.Long());
  TQ_RETURN_IF_ERROR(maker.Adversarial());
  maker.Questions(PromptGroup::kLongAnswer, kLongQuestions, options.long_answers);
  return maker.Take();
}

Result<std::vector<Prompt>> PromptsFromRequests(const std::vector<CorpusItem>& items,
                                                const Haystack& haystack,
                                                const PromptOptions& options) {
  std::vector<Prompt> prompts, long_answers;
  std::array<int, kNumPromptGroups> counts{};
  for (const CorpusItem& item : items) {
    if (item.kind == CorpusItem::Kind::kText) continue;
    Prompt prompt{.name = item.name};
    std::string all, last;
    if (item.kind == CorpusItem::Kind::kChat) {
      prompt.request["messages"] = ordered_json::array();
      for (const ChatMessage& message : item.messages) {
        all += message.content + "\n";
        last = message.content;
        prompt.request["messages"].push_back(
            {{"role", message.role}, {"content", message.content}});
      }
    } else {
      all = last = item.text;
      prompt.request["prompt"] = item.text;
    }
    const bool is_long = haystack.Count(all) * 2 >= options.long_tokens;
    prompt.group = is_long ? PromptGroup::kLong : PromptGroup::kShort;
    prompt.question = EndOf(last);
    if (static_cast<int>(long_answers.size()) < options.long_answers) {
      Prompt longer = prompt;
      longer.group = PromptGroup::kLongAnswer;
      longer.request["max_tokens"] = options.long_answer_tokens;
      longer.name += " (long answer)";
      long_answers.push_back(std::move(longer));
    }
    if (++counts[static_cast<size_t>(prompt.group)] > options.per_group) continue;
    prompt.request["max_tokens"] = options.answer_tokens;
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return InvalidArgument("none of ", items.size(), " items is a request that can be asked; ",
                           "JSON lines with OpenAI request bodies are needed");
  }
  Maker maker(haystack, options);
  TQ_RETURN_IF_ERROR(maker.Adversarial());
  for (std::vector<Prompt>& more : std::array{maker.Take(), std::move(long_answers)}) {
    std::move(more.begin(), more.end(), std::back_inserter(prompts));
  }
  return prompts;
}

}  // namespace tq
