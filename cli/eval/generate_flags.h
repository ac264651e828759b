// What tq eval generate and the suite share: how answers are generated and compared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/eval/task_flags.h"
#include "runtime/evaluate/similarity.h"
#include "runtime/evaluate/tasks/generations.h"

namespace tq::cli {

struct GenerateFlags {
  std::string embeddings;  // empty: all-MiniLM-L6-v2 of the data folder
  int generations = 3;
  double temperature = 0.7;
  PromptOptions prompts;

  void Add(CLI::App* app);
  Status Validate() const;
  // Tokens of the longest prompt with its answer, and room for a chat template.
  int64_t ContextLen() const;
  // kNotFound says how to get it.
  Result<std::string> EmbeddingsFolder() const;
  // The prompts for `baseline`: from the requests if there are some, the rest from the text.
  Result<GenerationsOptions> Options(Responder& baseline, const std::vector<CorpusItem>& items,
                                     const std::pair<std::string, std::string>& text,
                                     uint64_t seed) const;
  std::string CommandLine() const;
};

// ReadTaskText, without the notes that reading the same data gave before.
Result<std::pair<std::string, std::string>> ReadLongText(const TaskFlags& flags, int64_t tokens);

}  // namespace tq::cli
