// tq eval kld and tq eval ppl: the next-token distributions of quantized caches (or other weights)
// against the plain run's, over windows of texts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "cli/eval/eval.h"
#include "cli/eval/eval_input.h"
#include "cli/table.h"
#include "runtime/evaluate/f32_model.h"
#include "runtime/model/model_profile.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"
#include "turboquant/calibrate/profile.h"

namespace tq::cli {
namespace {

struct KldFlags : EvalFlags {
  KldGate gate;
  bool update_profile = false, f32_floor = false;
};

// What a profile must keep where --update-profile names no gate: the target that it was calibrated
// for, or that of a calibration which is given none.
Result<double> TargetOf(const std::string& folder) {
  TQ_ASSIGN_OR_RETURN(const Profile profile, Profile::Load(folder));
  const double target = profile.calibration ? profile.calibration->target_kld : 0;
  return target > 0 ? target : kDefaultTargetKld;
}

// The folder that --update-profile writes to. kInvalidArgument when what is measured would not be
// the profile as it stands.
Result<std::string> ProfileToUpdate(const KldFlags& flags) {
  if (!flags.kv.pin.empty() || flags.kv.recent_len || flags.kv.sink_len ||
      !flags.kv.v_skip.empty() || !flags.model_baseline.empty()) {
    return InvalidArgument(
        "--update-profile measures a profile as it is: leave out --pin, --recent-len, --sink-len, "
        "--v-skip and --model-baseline");
  }
  std::string folder = flags.kv.kv;
  if (folder == "auto") {
    TQ_ASSIGN_OR_RETURN(const std::string model, flags.model.Path());
    folder = ProfileBeside(model);
  }
  if (!IsDirectory(folder)) {
    return InvalidArgument("--update-profile needs one profile folder as --kv, and '", folder,
                           "' is none");
  }
  TQ_RETURN_IF_ERROR(CheckWritable(folder + "/profile.json"));
  return folder;
}

// What is written as the quality of a profile must be of text that its calibration did not read.
Status CheckHeldOut(const KldFlags& flags, const TextSketch& calibrated_on,
                    const std::vector<EvalText>& texts) {
  // Prompts that repeat are in both parts of any data.
  const double most = flags.data.part == "held-out" ? 0.5 : 0;
  const TextOverlap seen = calibrated_on.With(AllWindows(texts).windows);
  const std::string words = SeenWords(seen);
  if (!words.empty() && seen.share() > most) return InvalidArgument("--update-profile: ", words);
  if (calibrated_on.empty() && flags.data.part != "held-out") {
    PrintNote(flags.output,
              "--update-profile: the text may hold what the calibration has seen; --part held-out "
              "with the flags of the calibration leaves that out");
  }
  return OkStatus();
}

// The quality block of the profile, from what was just measured.
Status UpdateProfile(const std::string& folder, const KldResult& r) {
  const KldRow& row = r.rows.front();
  ProfileQuality q;
  q.held_out_tokens = r.tokens;
  q.windows = r.windows;
  q.kld_mean = row.total.all.mean;
  q.kld_stderr = row.total.all.mean_stderr;
  q.kld_p99 = row.total.all.p99;
  q.floor_kld_mean = r.floor.all.mean;
  q.same_top = row.total.all.same_top;
  q.ppl_ratio = row.total.all.ppl_ratio;
  q.gate_kld_mean = r.gate.max_kld.value_or(0);
  q.device = std::string("cpu, ") + CurrentIsa();
  q.passed = row.failures.empty();
  return Profile::SaveQuality(folder, q);
}

std::string Error(double value, double error, int digits) {
  return fmt::format("{:.{}f} \u00b1 {:.{}f}", value, digits, error, digits);
}

// Every statistic: a line for each row, and for each text where there are several.
std::string DistributionTables(const KldResult& r) {
  TextTable kld({"cache", "bits per\nvalue", "all\ncounted", "KL mean", "median", "90 %", "95 %",
                 "99 %", "99.9 %", "max", "KL mean\n>= 1,024 q."});
  TextTable tokens(
      {"cache", "same top", "ppl", "ppl ratio", "delta p\nRMS", "1 - TVD", "positions"});
  const auto add = [&](const std::string& name, const KldRow& row, const KldStatistics& s) {
    const DivergenceSummary& a = s.all;
    kld.Add({name, fmt::format("{:.3f}", row.bits_per_value),
             fmt::format("{:.3f}", row.bits_all_counted), Error(a.mean, a.mean_stderr, 5),
             fmt::format("{:.6f}", a.median), fmt::format("{:.5f}", a.p90),
             fmt::format("{:.5f}", a.p95), fmt::format("{:.4f}", a.p99),
             fmt::format("{:.3f}", a.p999), fmt::format("{:.3f}", a.max),
             s.behind.positions == 0 ? "-" : fmt::format("{:.5f}", s.behind.mean)});
    tokens.Add({name, Error(100 * a.same_top, 100 * a.same_top_stderr, 2) + " %",
                fmt::format("{:.4f}", a.ppl_q), Error(a.ppl_ratio, a.ppl_ratio_stderr, 5),
                fmt::format("{:.3f} %", 100 * a.delta_p_rms),
                fmt::format("{:.5f}", a.one_minus_tvd), FormatCount(a.positions)});
  };
  for (const KldRow& row : r.rows) {
    add(row.name, row, row.total);
    if (row.texts.size() < 2) continue;
    for (const KldStatistics& t : row.texts) add("  " + t.name, row, t);
  }
  return kld.ToString() + "\n" + tokens.ToString();
}

// Perplexities first: what people compare between programs.
std::string PerplexityTable(const KldResult& r) {
  TextTable table(
      {"cache", "bits per\nvalue", "ppl plain", "ppl", "ratio", "ln ratio", "KL mean", "same top"});
  const auto add = [&](const std::string& name, const KldRow& row, const KldStatistics& s) {
    const DivergenceSummary& a = s.all;
    table.Add({name, fmt::format("{:.3f}", row.bits_per_value), fmt::format("{:.4f}", a.ppl_ref),
               fmt::format("{:.4f}", a.ppl_q), Error(a.ppl_ratio, a.ppl_ratio_stderr, 5),
               fmt::format("{:+.5f}", std::log(a.ppl_ratio)), Error(a.mean, a.mean_stderr, 5),
               fmt::format("{:.2f} %", 100 * a.same_top)});
  };
  for (const KldRow& row : r.rows) {
    add(row.name, row, row.total);
    if (row.texts.size() < 2) continue;
    for (const KldStatistics& t : row.texts) add("  " + t.name, row, t);
  }
  return table.ToString();
}

std::string PositionTable(const KldResult& r) {
  std::vector<std::string> header = {"positions"};
  for (const KldRow& row : r.rows) header.push_back(row.name);
  TextTable table(header);
  for (size_t i = 0; i < r.rows.front().by_position.size(); ++i) {
    const PositionBucket& b = r.rows.front().by_position[i];
    std::vector<std::string> cells = {
        fmt::format("{}-{}", FormatCount(b.first), FormatCount(b.end - 1))};
    for (const KldRow& row : r.rows) {
      cells.push_back(fmt::format("{:.5f}", row.by_position[i].kld_mean));
    }
    table.Add(std::move(cells));
  }
  return "KL mean by position\n" + table.ToString();
}

// The layers whose attention output is furthest from the plain run's.
std::string WorstLayers(const KldRow& row) {
  constexpr size_t kShown = 5;
  if (row.layer_cosine.empty()) return "";
  std::vector<size_t> layers(row.layer_cosine.size());
  for (size_t l = 0; l < layers.size(); ++l) layers[l] = l;
  std::sort(layers.begin(), layers.end(),
            [&](size_t a, size_t b) { return row.layer_cosine[a] < row.layer_cosine[b]; });
  if (row.layer_cosine[layers.front()] > 1 - 1e-9) return "";
  layers.resize(std::min(layers.size(), kShown));
  std::string out = row.name + ": attention output furthest from the plain run in layers";
  for (const size_t l : layers) out += fmt::format(" {} ({:.4f})", l, row.layer_cosine[l]);
  return out + "\n";
}

std::string TextReport(const KldResult& r, bool ppl) {
  std::string out = fmt::format(
      "{} of up to {} tokens through {}, {} and each cache side by side\n\n",
      FormatCount(r.windows, "window"), FormatCount(r.context_len), r.model_name, r.reference_name);
  out += ppl ? PerplexityTable(r) : DistributionTables(r);
  out += fmt::format(
      "\nKL in nats, over {} positions. Plain perplexity: {:.4f}. Noise floor ({}): "
      "KL {:.6f}, same top {:.2f} %.\n",
      FormatCount(r.floor.all.positions), r.floor.all.ppl_ref, r.floor_name, r.floor.all.mean,
      100 * r.floor.all.same_top);
  if (r.f32_floor) out += F32FloorWords(*r.f32_floor) + "\n";
  if (!ppl) {
    out += "\n" + PositionTable(r) + "\n";
    for (const KldRow& row : r.rows) out += WorstLayers(row);
  }
  out += "\n";
  for (const KldRow& row : r.rows) {
    out += row.name + ": " + row.explanation + "\n";
    if (const std::string seen = SeenWords(row.seen); !seen.empty()) {
      out += row.name + ": " + seen + "\n";
    }
  }
  if (!r.informative) out += "Not informative: " + r.note + "\n";
  if (!r.gate.any()) return out;
  for (const KldRow& row : r.rows) {
    for (const std::string& f : row.failures) out += row.name + ": FAILED: " + f + "\n";
    if (row.failures.empty()) out += row.name + ": passed the gate\n";
  }
  return out;
}

std::string CommandLine(const KldFlags& flags, const std::string& name) {
  std::string out = flags.CommandLine(name);
  if (flags.gate.max_kld) out += fmt::format(" --max-kld {}", *flags.gate.max_kld);
  if (flags.gate.max_ppl_ratio)
    out += fmt::format(" --max-ppl-ratio {}", *flags.gate.max_ppl_ratio);
  if (flags.gate.min_same_top) out += fmt::format(" --min-same-top {}", *flags.gate.min_same_top);
  if (flags.f32_floor) out += " --f32-floor";
  if (flags.update_profile) out += " --update-profile";
  return out;
}

Result<int> RunEvalKld(const KldFlags& given, const std::string& name) {
  KldFlags flags = given;
  // Of a pair of models the weights are meant, unless caches are named.
  if (!flags.model_baseline.empty() && flags.kv.kv == "auto") flags.kv.kv = "f16";
  std::string profile;
  if (flags.update_profile) {
    TQ_ASSIGN_OR_RETURN(profile, ProfileToUpdate(flags));
    if (!flags.gate.any()) {
      TQ_ASSIGN_OR_RETURN(flags.gate.max_kld, TargetOf(profile));
    }
  }
  TQ_ASSIGN_OR_RETURN(EvalInput input, EvalInput::Load(flags));
  TQ_ASSIGN_OR_RETURN(std::vector<KvChoice> choices, input.ChooseAll());
  KldOptions options;
  TQ_ASSIGN_OR_RETURN(options.reference, input.Reference());
  TQ_ASSIGN_OR_RETURN(options.floor, input.Floor());
  F32Model f32(input.baseline(), input.pool());
  if (flags.f32_floor) options.f32_floor = {"32 bits", &f32, options.reference.config};
  for (KvChoice& choice : choices) {
    options.candidates.push_back({choice.name, &input.model(), std::move(choice.config)});
    options.calibrated_on.push_back(choice.calibrated_on);
  }
  options.texts = input.texts();
  options.gate = flags.gate;
  if (flags.update_profile) {
    TQ_RETURN_IF_ERROR(CheckHeldOut(flags, options.calibrated_on.front(), options.texts));
  }
  ProgressBar progress(flags.output.quiet);
  options.measure = input.Measure(&progress);
  TQ_ASSIGN_OR_RETURN(const KldResult result, RunKld(options));
  progress.Clear();

  if (flags.update_profile) {
    TQ_RETURN_IF_ERROR(UpdateProfile(profile, result));
    PrintNote(flags.output, "quality written: " + profile + "/profile.json");
  }
  TQ_RETURN_IF_ERROR(input.WriteReport("Quality of quantized caches", KldSection(result),
                                       CommandLine(flags, name)));
  return input.Print(KldJson(result), TextReport(result, name == "ppl"),
                     result.passed() ? kDone : kCheckFailed);
}

Command Add(CLI::App& app, const std::string& name, const std::string& what,
            const std::string& example) {
  CLI::App* command = AddCommand(app, name, what, example);
  auto flags = std::make_shared<KldFlags>();
  flags->Add(command);
  flags->AddBaseline(command);
  command
      ->add_option(
          "--max-kld", flags->gate.max_kld,
          "Exit with 1 when the mean KL of a cache is above this by more than its standard error, "
          "or the text says nothing")
      ->type_name("NATS");
  command
      ->add_option("--max-ppl-ratio", flags->gate.max_ppl_ratio,
                   "Exit with 1 when perplexity / plain perplexity is above this")
      ->type_name("RATIO");
  command
      ->add_option("--min-same-top", flags->gate.min_same_top,
                   "Exit with 1 when the share of equal most probable tokens is below this")
      ->type_name("0..1");
  command->add_flag("--f32-floor", flags->f32_floor,
                    "Measure what the plain cache itself costs, beside keys and values of 32 bits: "
                    "plain loops, slow at long contexts");
  if (name == "kld") {
    command->add_flag("--update-profile", flags->update_profile,
                      "Write what was measured into the profile that --kv names, as its quality "
                      "(gate: --max-kld, default: the target of its calibration, or 0.005)");
  }
  return {name, [flags, name] { return RunEvalKld(*flags, name); }};
}

}  // namespace

Command AddEvalKld(CLI::App& app) {
  return Add(app, "kld", "KL divergence to the plain run, with every statistic",
             "tq eval kld --kv k4v4,k3v2 --context 2048 --windows 2 --report kld.html");
}

Command AddEvalPpl(CLI::App& app) {
  return Add(app, "ppl", "Perplexity beside the plain run's", "tq eval ppl --kv k4v4 --windows 2");
}

}  // namespace tq::cli
