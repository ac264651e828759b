// KL divergence of cache formats to the f16 cache over several windows of several texts: the figure
// that a change of a codec is judged by. One window is one sequence; errors propagate through all
// layers; all positions count.
//
//   kld_windows MODEL.gguf --formats k4v4,k3v2,PROFILE --windows 8 --context 2048 TEXT...
//
// Prints a line per text and format, and writes --json FILE.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/engine/session.h"
#include "runtime/evaluate/kld.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"
#include "turboquant/calibrate/profile.h"

namespace tq {
namespace {

struct Candidate {
  std::string name;
  CacheConfig config;
  double bits_per_value = 0;
  std::vector<PositionScore> scores;  // of the current text
  std::vector<double> window_means;
};

Result<CacheConfig> ConfigFor(const Model& model, const std::string& name) {
  CacheConfig config = model.MakeCacheConfig();
  if (IsDirectory(name)) {
    TQ_ASSIGN_OR_RETURN(const Profile profile, Profile::Load(name));
    std::string note;
    TQ_RETURN_IF_ERROR(profile.Apply(model.StructureHash(), 0, &config, &note));
    return config;
  }
  TQ_ASSIGN_OR_RETURN(const HeadFormat format, ParsePreset(name));
  for (size_t i = 0; i < config.formats.size(); ++i) config.formats[i] = format;
  return config;
}

// One window through the plain cache and every candidate, chunk by chunk.
Status RunWindow(Model& model, std::span<const TokenId> tokens,
                 std::vector<Candidate>* candidates) {
  constexpr size_t kChunk = Session::kPrefillChunk;
  TQ_ASSIGN_OR_RETURN(const CacheConfig plain, ConfigFor(model, "f16"));
  const int64_t context = static_cast<int64_t>(tokens.size());
  TQ_ASSIGN_OR_RETURN(auto reference, Session::Create(model, plain, context));
  std::vector<std::unique_ptr<Session>> sessions;
  for (const Candidate& c : *candidates) {
    TQ_ASSIGN_OR_RETURN(auto session, Session::Create(model, c.config, context));
    sessions.push_back(std::move(session));
  }
  const size_t vocab = static_cast<size_t>(model.arch().vocab_size);
  std::vector<double> sums(candidates->size(), 0.0);
  for (size_t from = 0; from < tokens.size(); from += kChunk) {
    const auto chunk = tokens.subspan(from, std::min(kChunk, tokens.size() - from));
    std::vector<float> rows;
    TQ_RETURN_IF_ERROR(reference->Prefill(chunk, [&](int64_t, std::span<const float> logits) {
      rows.assign(logits.begin(), logits.end());
      return OkStatus();
    }));
    for (size_t c = 0; c < sessions.size(); ++c) {
      TQ_RETURN_IF_ERROR(
          sessions[c]->Prefill(chunk, [&](int64_t first, std::span<const float> logits) -> Status {
            for (size_t i = 0; i < chunk.size(); ++i) {
              ReferenceRow row;
              AlignedBuffer<float> work;
              Status scored = row.Set(std::span<const float>(rows).subspan(i * vocab, vocab));
              PositionScore score;
              score.position = first + static_cast<int64_t>(i);
              const size_t next = static_cast<size_t>(score.position) + 1;
              if (scored.ok()) {
                scored = row.Compare(logits.subspan(i * vocab, vocab),
                                     next < tokens.size() ? tokens[next] : -1, &work, &score);
              }
              if (!scored.ok()) return scored;
              sums[c] += score.kld;
              (*candidates)[c].scores.push_back(score);
            }
            return OkStatus();
          }));
    }
  }
  for (size_t c = 0; c < candidates->size(); ++c) {
    (*candidates)[c].window_means.push_back(sums[c] / static_cast<double>(tokens.size()));
  }
  return OkStatus();
}

Status Run(int argc, char** argv) {
  std::string model_path, formats = "k8v8,k4v4,k3v2", json_path;
  std::vector<std::string> texts;
  int windows = 8, context = 2048;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (arg == "--formats")
      formats = value();
    else if (arg == "--windows")
      windows = std::atoi(value().c_str());
    else if (arg == "--context")
      context = std::atoi(value().c_str());
    else if (arg == "--json")
      json_path = value();
    else if (model_path.empty())
      model_path = arg;
    else
      texts.push_back(arg);
  }
  if (model_path.empty() || texts.empty() || windows < 1 || context < 2) {
    return InvalidArgument(
        "usage: kld_windows MODEL.gguf [--formats A,B] [--windows N] [--context N] "
        "[--json FILE] TEXT...");
  }
  TQ_RETURN_IF_ERROR(ApplyIsaFromEnvironment());
  ThreadPool pool;
  TQ_ASSIGN_OR_RETURN(auto model, Model::Load(model_path, pool));
  TQ_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromGguf(model->file()));
  nlohmann::ordered_json out;
  out["model"] = model->arch().model_name;
  out["context"] = context;
  out["windows"] = windows;
  out["isa"] = CurrentIsa();
  for (const std::string& text_path : texts) {
    TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(text_path));
    std::vector<Candidate> candidates;
    std::stringstream list(formats);
    for (std::string name; std::getline(list, name, ',');) {
      Candidate c;
      c.name = name;
      TQ_ASSIGN_OR_RETURN(c.config, ConfigFor(*model, name));
      TQ_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(c.config));
      c.bits_per_value = cache->BitsPerValue();
      candidates.push_back(std::move(c));
    }
    // Windows are spread evenly over the text.
    for (int w = 0; w < windows; ++w) {
      const size_t start = text.size() / static_cast<size_t>(windows) * static_cast<size_t>(w);
      const std::string part = text.substr(start, static_cast<size_t>(context) * 12);
      std::vector<TokenId> tokens = tokenizer->Encode(part);
      if (tokens.size() < static_cast<size_t>(context)) {
        return InvalidArgument(text_path, ": window ", w, " has ", tokens.size(), " tokens of ",
                               context);
      }
      tokens.resize(static_cast<size_t>(context));
      TQ_RETURN_IF_ERROR(RunWindow(*model, tokens, &candidates));
      std::fprintf(stderr, "%s: window %d of %d\n", text_path.c_str(), w + 1, windows);
    }
    for (const Candidate& c : candidates) {
      const DivergenceSummary s = Summarize(c.scores);
      double mean = 0, square = 0;
      for (const double m : c.window_means) mean += m / windows;
      for (const double m : c.window_means) square += (m - mean) * (m - mean);
      const double stderr_windows = windows > 1 ? std::sqrt(square / (windows - 1) / windows) : 0;
      std::printf(
          "%-24s %-16s bits %.3f  kld mean %.5f +- %.5f  median %.5f  p99 %.4f  same_top %.4f  "
          "ppl %.3f ratio %.4f\n",
          text_path.c_str(), c.name.c_str(), c.bits_per_value, s.mean, stderr_windows, s.median,
          s.p99, s.same_top, s.ppl_ref, s.ppl_ratio);
      std::fflush(stdout);
      out["results"].push_back(
          {{"text", text_path.substr(text_path.find_last_of('/') + 1)},
           {"format", c.name.substr(c.name.find_last_of('/') + 1)},
           {"bits_per_value", c.bits_per_value},
           {"kld",
            {{"mean", s.mean},
             {"mean_stderr", stderr_windows},
             {"median", s.median},
             {"p99", s.p99},
             {"max", s.max}}},
           {"same_top", s.same_top},
           {"ppl",
            {{"f16", s.ppl_ref}, {"ratio", s.ppl_ratio}, {"ratio_stderr", s.ppl_ratio_stderr}}}});
    }
  }
  if (!json_path.empty()) return WriteFileAtomic(json_path, out.dump(1) + "\n");
  return OkStatus();
}

}  // namespace
}  // namespace tq

int main(int argc, char** argv) {
  const tq::Status status = tq::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kld_windows: %s\n", status.message().c_str());
  return 2;
}
