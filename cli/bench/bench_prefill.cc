// tq bench prefill: how fast a model reads a prompt, by its length, beside a peer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/bench/bench.h"
#include "cli/bench/llama_bench.h"
#include "cli/bench/measure.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/engine/session.h"
#include "runtime/model/llama.h"
#include "turboquant/base/isa.h"
#include "turboquant/base/numeric.h"

namespace tq::cli {
namespace {

struct PrefillFlags {
  ModelFlags model;
  OutputFlags output;
  KvFlags kv;
  std::string tokens = "512", peer, llama_bench;
  int runs = 5, chunk = Session::kPrefillChunk;
  double peer_seconds = 300;
};

// Speeds at one length of the prompt.
struct Speeds {
  int64_t tokens = 0;
  std::vector<double> ours, peers;
};

class PrefillBench {
 public:
  explicit PrefillBench(const PrefillFlags& flags) : flags_(flags), pool_(flags.model.threads) {}

  Result<int> Run() {
    TQ_RETURN_IF_ERROR(flags_.model.Validate());
    TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths,
                        ParseCounts("--tokens", flags_.tokens, 1, int64_t{1} << 20));
    if (flags_.runs < 1 || flags_.runs > 1000) {
      return InvalidArgument("--runs ", flags_.runs, " is outside 1..1000");
    }
    if (flags_.chunk < 1 || flags_.chunk > LlamaModel::kMaxForwardTokens) {
      return InvalidArgument("--chunk ", flags_.chunk, " is outside 1..",
                             LlamaModel::kMaxForwardTokens);
    }
    if (!flags_.peer.empty() && flags_.peer != "llama.cpp") {
      return InvalidArgument("--peer '", flags_.peer, "' is not known; supported: llama.cpp");
    }
    if (!flags_.peer.empty()) {
      TQ_ASSIGN_OR_RETURN(llama_bench_, FindLlamaBench(flags_.llama_bench));
    }
    TQ_ASSIGN_OR_RETURN(path_, flags_.model.Path());
    ProgressBar progress(flags_.output.quiet || flags_.output.json);
    const auto start = std::chrono::steady_clock::now();
    TQ_ASSIGN_OR_RETURN(model_, Model::Load(path_, pool_, progress.sink()));
    load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const Model* m = model_.get();
    const KvModel kv_model = {m->MakeCacheConfig(), path_, m->StructureHash(),
                              [m] { return WeightsHash(m->file()); }};
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    TQ_ASSIGN_OR_RETURN(const KvChoice choice, ChooseKv(kv_model, flags_.kv, longest));
    load_average_ = LoadAverage();
    std::vector<Speeds> all;
    for (const int64_t length : lengths) {
      TQ_ASSIGN_OR_RETURN(Speeds speeds, Measure(choice, length));
      all.push_back(std::move(speeds));
    }
    progress.Clear();
    const nlohmann::ordered_json document = Document(choice.name, all);
    PrintOut(flags_.output.json ? document.dump(2) + "\n" : Table(document));
    return kDone;
  }

 private:
  // One run that is not counted, then runs of both sides by turns.
  Result<Speeds> Measure(const KvChoice& choice, int64_t length) {
    Speeds speeds = {.tokens = length, .ours = {}, .peers = {}};
    for (int run = -1; run < flags_.runs; ++run) {
      if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
      TQ_ASSIGN_OR_RETURN(const double ours, ReadPrompt(choice, length));
      if (run < 0) continue;
      speeds.ours.push_back(ours);
      if (llama_bench_.empty()) continue;
      TQ_ASSIGN_OR_RETURN(const PeerSpeed peer,
                          RunLlamaBench({.program = llama_bench_,
                                         .model = path_,
                                         .cache_type = "f16",
                                         .threads = pool_.num_threads(),
                                         .runs = 1,
                                         .prompt_tokens = length,
                                         .most_seconds = flags_.peer_seconds}));
      speeds.peers.push_back(peer.tokens_per_second);
      peer_build_ = peer.build;
    }
    return speeds;
  }

  // Tokens a second of random tokens, with the logits of the last.
  Result<double> ReadPrompt(const KvChoice& choice, int64_t length) {
    TQ_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(choice.config));
    const SeqId seq = cache->NewSequence();
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(SplitMix64(random_) %
                                   static_cast<uint64_t>(model_->arch().vocab_size));
    }
    const auto start = std::chrono::steady_clock::now();
    for (size_t done = 0; done < tokens.size();) {
      const size_t n = std::min(static_cast<size_t>(flags_.chunk), tokens.size() - done);
      const ForwardItem item = {.seq = seq, .tokens = std::span(tokens).subspan(done, n)};
      done += n;
      TQ_RETURN_IF_ERROR(
          model_->Forward(*cache, {&item, 1}, done == tokens.size() ? &logits_ : nullptr));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(length) / took.count();
  }

  nlohmann::ordered_json Document(const std::string& kv, const std::vector<Speeds>& all) const {
    nlohmann::ordered_json document = BenchDocument(load_average_);
    document["model"] = std::filesystem::path(path_).filename().string();
    document["weights"] = model_->weights().types;
    document["weight_bytes"] = model_->weights().bytes;
    document["load_seconds"] = load_seconds_;
    document["peer"] = nullptr;
    if (!peer_build_.empty()) {
      document["peer"] = {{"name", "llama.cpp"},
                          {"build", peer_build_},
                          {"flags", fmt::format("-t {} -fa 1 -n 0", pool_.num_threads())}};
    }
    for (const Speeds& speeds : all) {
      const auto add = [&](const std::string& name, const std::vector<double>& runs) {
        nlohmann::ordered_json r;
        r["name"] = name;
        r["settings"] = {{"tokens", speeds.tokens},
                         {"threads", pool_.num_threads()},
                         {"chunk", flags_.chunk},
                         {"runs", runs.size()}};
        r["tokens_per_second"] = Median(runs);
        r["lowest_tokens_per_second"] = Percentile(runs, 0);
        r["highest_tokens_per_second"] = Percentile(runs, 1);
        if (!speeds.peers.empty()) {
          r["ratio_to"] = {{"llama.cpp f16", Median(runs) / Median(speeds.peers)}};
        }
        document["results"].push_back(std::move(r));
      };
      add(kv, speeds.ours);
      if (!speeds.peers.empty()) add("llama.cpp f16", speeds.peers);
    }
    return document;
  }

  std::string Table(const nlohmann::ordered_json& document) const {
    TextTable table({"cache", "tokens", "tokens/s", "lowest", "highest", "to llama.cpp"});
    for (const auto& r : document["results"]) {
      const auto number = [&r](const char* key) {
        return fmt::format("{:.1f}", r[key].get<double>());
      };
      table.Add({r["name"].get<std::string>(), FormatCount(r["settings"]["tokens"].get<int64_t>()),
                 number("tokens_per_second"), number("lowest_tokens_per_second"),
                 number("highest_tokens_per_second"),
                 r.contains("ratio_to") ? FormatRatio(r["ratio_to"]["llama.cpp f16"].get<double>())
                                        : "-"});
    }
    return table.ToString() +
           fmt::format(
               "\n{} ({}), loaded in {:.2f} s; {} threads, {}; median of {} runs; load "
               "{:.2f}\n",
               document["model"].get<std::string>(), document["weights"].get<std::string>(),
               load_seconds_, pool_.num_threads(), CurrentIsa(), flags_.runs, load_average_);
  }

  const PrefillFlags& flags_;
  ThreadPool pool_;
  std::string path_, llama_bench_, peer_build_;
  std::unique_ptr<Model> model_;
  double load_seconds_ = 0, load_average_ = 0;
  uint64_t random_ = 1;
  std::vector<float> logits_;
};

}  // namespace

Command AddBenchPrefill(CLI::App& app) {
  CLI::App* command = AddCommand(app, "prefill", "How fast a model reads a prompt",
                                 "tq bench prefill --tokens 512,2k --kv k4v4 --peer llama.cpp");
  auto flags = std::make_shared<PrefillFlags>();
  flags->kv.kv = "f16";
  flags->model.Add(command);
  command->add_option("--kv", flags->kv.kv, "Preset or profile folder of the cache");
  flags->kv.AddWindow(command);
  command->add_option("--tokens", flags->tokens, "Lengths of the prompt, a list");
  command->add_option("--runs", flags->runs, "Runs at each length");
  command->add_option("--chunk", flags->chunk, "Tokens of one forward pass");
  AddPeerFlags(command, &flags->peer, &flags->llama_bench);
  command->add_option("--peer-seconds", flags->peer_seconds, "Longest run of it");
  flags->output.Add(command);
  return {"prefill", [flags]() -> Result<int> { return PrefillBench(*flags).Run(); }};
}

}  // namespace tq::cli
