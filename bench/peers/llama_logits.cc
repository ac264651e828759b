// Makes tests/golden/logits_smollm2.json with llama.cpp's public API: for fixed prompts the top
// logits at chosen positions and the greedy continuation, under several of llama.cpp's own
// settings. How far those settings lie from each other is the floor that our logits are held to.
// (Its settings differ by rounding alone, yet by a KL near 0.005 here and in most continuations:
// activations are rounded to 8 bits before every matrix. So a continuation counts as `stable` only if
// all settings agree on it; kNumUnstable others are kept for their logits.)
//
// usage: llama_logits MODEL PROMPTS.json OUT.json VERSION MODEL_SHA256
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

constexpr int kTop = 64;           // logits kept per position
constexpr int kNumPositions = 10;  // per prompt, evenly spread, the last one among them
constexpr int kNumStable = 10;     // prompts that are kept
constexpr int kNumUnstable = 6;
constexpr int kGreedy = 200;  // tokens of a continuation
constexpr int kContext = 1024;

struct Setting {
  const char* name;
  bool flash_attention;
  int batch;  // tokens per llama_decode of the prompt, and physical batch
};
// The first one is the golden one; the others measure the floor.
constexpr Setting kSettings[] = {{"flash attention off, batch 512", false, 512},
                                 {"flash attention on, batch 512", true, 512},
                                 {"flash attention on, batch 1", true, 1}};

struct Row {  // logits of one position, all of the vocabulary
  std::vector<float> logits;
  double logsumexp = 0;
};

struct Outcome {
  std::vector<Row> rows;  // at the chosen positions
  std::vector<llama_token> greedy;
};

double LogSumExp(const std::vector<float>& v) {
  const double max = *std::max_element(v.begin(), v.end());
  double sum = 0;
  for (float x : v) sum += std::exp(x - max);
  return max + std::log(sum);
}

double Kl(const Row& p, const Row& q) {
  double kl = 0;
  for (size_t i = 0; i < p.logits.size(); ++i) {
    const double log_p = p.logits[i] - p.logsumexp;
    kl += std::exp(log_p) * (log_p - (q.logits[i] - q.logsumexp));
  }
  return kl;
}

std::vector<int> Positions(size_t num_tokens) {
  std::vector<int> positions;
  for (int i = 1; i <= kNumPositions; ++i)
    positions.push_back(static_cast<int>(num_tokens * i / kNumPositions) - 1);
  return positions;
}

bool Decode(llama_context* ctx, const std::vector<llama_token>& ids, size_t begin, size_t end) {
  llama_batch batch = llama_batch_init(static_cast<int>(end - begin), 0, 1);
  for (size_t i = begin; i < end; ++i) {
    const int n = batch.n_tokens++;
    batch.token[n] = ids[i];
    batch.pos[n] = static_cast<llama_pos>(i);
    batch.n_seq_id[n] = 1;
    batch.seq_id[n][0] = 0;
    batch.logits[n] = 1;
  }
  const bool ok = llama_decode(ctx, batch) == 0;
  llama_batch_free(batch);
  return ok;
}

// `golden`: the continuation to compare with; the run ends where it leaves it. Null: none.
bool Run(llama_model* model, const Setting& setting, const std::vector<llama_token>& prompt,
         const std::vector<llama_token>* golden, Outcome* outcome) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kContext;
  params.n_batch = params.n_ubatch = setting.batch;
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.flash_attn_type =
      setting.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* ctx = llama_init_from_model(model, params);
  if (ctx == nullptr) return false;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const int num_vocab = llama_vocab_n_tokens(vocab);
  const std::vector<int> positions = Positions(prompt.size());
  std::vector<llama_token> ids = prompt;
  std::vector<float> last;
  bool ok = true;
  for (size_t begin = 0; ok && begin < prompt.size(); begin += setting.batch) {
    const size_t end = std::min(prompt.size(), begin + setting.batch);
    ok = Decode(ctx, ids, begin, end);
    for (size_t i = begin; ok && i < end; ++i) {
      const float* row = llama_get_logits_ith(ctx, static_cast<int>(i - begin));
      last.assign(row, row + num_vocab);
      if (std::count(positions.begin(), positions.end(), static_cast<int>(i)) > 0)
        outcome->rows.push_back({last, LogSumExp(last)});
    }
  }
  while (ok && static_cast<int>(outcome->greedy.size()) < kGreedy) {
    const auto best = std::max_element(last.begin(), last.end());
    const llama_token token = static_cast<llama_token>(best - last.begin());
    outcome->greedy.push_back(token);
    if (llama_vocab_is_eog(vocab, token)) break;
    if (golden != nullptr && token != (*golden)[outcome->greedy.size() - 1]) break;
    ids.push_back(token);
    ok = Decode(ctx, ids, ids.size() - 1, ids.size());
    const float* row = llama_get_logits_ith(ctx, 0);
    last.assign(row, row + num_vocab);
  }
  llama_free(ctx);
  return ok;
}

double Rounded(double x) {
  return std::round(x * 1e5) / 1e5;
}

json RowJson(const Row& row, int position) {
  std::vector<int> order(row.logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + kTop, order.end(), [&](int a, int b) {
    return row.logits[a] != row.logits[b] ? row.logits[a] > row.logits[b] : a < b;
  });
  json out = {{"position", position}, {"logsumexp", Rounded(row.logsumexp)}};
  for (int i = 0; i < kTop; ++i) {
    out["ids"].push_back(order[i]);
    out["logits"].push_back(Rounded(row.logits[order[i]]));
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: %s MODEL PROMPTS.json OUT.json VERSION MODEL_SHA256\n", argv[0]);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) {
    std::fprintf(stderr, "cannot load %s\n", argv[1]);
    return 2;
  }
  std::ifstream prompts_file(argv[2]);
  const json prompts = json::parse(prompts_file);
  json out = {{"made_by", "bench/peers/make_logits_golden.sh"},
              {"peer", argv[4]},
              {"model_sha256", argv[5]},
              {"kv_cache", "f16"},
              {"top", kTop}};
  std::map<std::string, std::vector<double>> kl;
  int num_kept[2] = {};  // unstable, stable
  for (const json& prompt : prompts) {
    const std::string text = prompt.at("text");
    std::vector<llama_token> ids(text.size() + 8);
    const int n =
        llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int>(text.size()),
                       ids.data(), static_cast<int>(ids.size()), true, true);
    if (n < kNumPositions || n + kGreedy > kContext) {
      std::fprintf(stderr, "prompt %s has %d tokens\n",
                   prompt.at("name").get<std::string>().c_str(), n);
      return 2;
    }
    ids.resize(n);
    std::vector<Outcome> outcomes;
    for (const Setting& setting : kSettings) {
      const Outcome* golden = outcomes.empty() ? nullptr : &outcomes[0];
      Outcome outcome;
      if (!Run(model, setting, ids, golden ? &golden->greedy : nullptr, &outcome)) {
        std::fprintf(stderr, "llama.cpp failed with %s\n", setting.name);
        return 3;
      }
      outcomes.push_back(std::move(outcome));
    }
    const Outcome& golden = outcomes[0];
    const bool stable = std::all_of(outcomes.begin(), outcomes.end(),
                                    [&](const Outcome& o) { return o.greedy == golden.greedy; });
    std::printf("%-12s %4d tokens, %3zu greedy, %s\n", prompt.at("name").get<std::string>().c_str(),
                n, golden.greedy.size(), stable ? "stable" : "not stable");
    std::fflush(stdout);
    if (num_kept[stable]++ >= (stable ? kNumStable : kNumUnstable)) continue;
    json entry = {{"name", prompt.at("name")}, {"ids", ids}, {"stable", stable}};
    if (stable) entry["greedy"] = golden.greedy;
    const std::vector<int> positions = Positions(ids.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      entry["rows"].push_back(RowJson(golden.rows[i], positions[i]));
      for (size_t s = 1; s < outcomes.size(); ++s)
        kl[kSettings[s].name].push_back(Kl(golden.rows[i], outcomes[s].rows[i]));
    }
    out["prompts"].push_back(entry);
  }
  out["setting"] = kSettings[0].name;
  for (size_t s = 1; s < std::size(kSettings); ++s) {
    const std::vector<double>& values = kl[kSettings[s].name];
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / values.size();
    const double max = *std::max_element(values.begin(), values.end());
    out["floor"].push_back({{"setting", kSettings[s].name}, {"kld_mean", mean}, {"kld_max", max}});
    std::printf("%-30s KL to golden: mean %.3g, max %.3g\n", kSettings[s].name, mean, max);
  }
  std::ofstream file(argv[3]);
  file << out.dump() << "\n";
  llama_model_free(model);
  return file.good() ? 0 : 3;
}
