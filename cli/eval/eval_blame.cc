// tq eval blame: which layers and heads of a cache cost the most, and the pins that mend it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/eval/eval.h"
#include "cli/eval/eval_input.h"
#include "cli/table.h"
#include "runtime/evaluate/blame.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

struct BlameFlags : EvalFlags {
  int restore = 8, at_once = 8, top = 10;
  double worst = 0.25;
};

std::string Table(const BlameResult& r, const std::vector<BlameEntry>& entries, size_t top) {
  TextTable table({"restored", "KL recovered", "of all", "costs", "bits per\nvalue", "mended by"},
                  {0, 5});
  for (size_t i = 0; i < std::min(top, entries.size()); ++i) {
    const BlameEntry& e = entries[i];
    table.Add({DescribeSite(e.site),
               fmt::format("{:.5f} \u00b1 {:.5f}", e.recovered, e.recovered_stderr),
               fmt::format("{:.1f} %", 100 * e.recovered / r.kld),
               fmt::format("{:+.1f} KiB", static_cast<double>(e.cost_bytes) / 1024),
               fmt::format("{:+.3f}", e.cost_bits), "--pin \"" + e.pin + "\""});
  }
  return table.ToString() + "\n";
}

std::string TextReport(const BlameResult& r, size_t top) {
  std::string out = fmt::format(
      "{} on {}: KL {:.5f} \u00b1 {:.5f} over {} of up to {} tokens; each part restored to "
      "{} "
      "bit in turn\n\n",
      r.candidate_name, r.model_name, r.kld, r.kld_stderr, FormatCount(r.windows, "window"),
      FormatCount(r.context_len), r.restore_bits);
  for (const auto* list : {&r.layers, &r.sides, &r.heads}) {
    if (!list->empty()) out += Table(r, *list, top);
  }
  if (!r.joint.pin.empty()) {
    out += fmt::format("Together: --pin \"{}\"\n", r.joint.pin);
    out += fmt::format(
        "  brings the KL from {:.5f} to {:.5f} ({:.0f} % recovered) for {:+.1f} KiB at {} tokens "
        "({:+.3f} bits per value);\n  {}\n",
        r.kld, r.joint.kld, 100 * r.joint.recovered / r.kld,
        static_cast<double>(r.joint.cost_bytes) / 1024, FormatCount(r.context_len),
        r.joint.cost_bits, kJointNote);
  }
  if (!r.informative) out += "Not informative: " + r.note + "\n";
  return out;
}

Result<int> RunEvalBlame(const BlameFlags& flags) {
  if (flags.restore != 8 && flags.restore != 16) {
    return InvalidArgument("--restore ", flags.restore, ": expected 8 or 16");
  }
  if (flags.at_once < 1 || flags.at_once > 1000) {
    return InvalidArgument("--at-once ", flags.at_once, " is outside 1..1000");
  }
  if (!(flags.worst > 0 && flags.worst <= 1)) {
    return InvalidArgument("--worst ", flags.worst, " is outside 0..1");
  }
  if (SplitList(flags.kv.kv, ',').size() != 1) {
    return InvalidArgument("--kv ", flags.kv.kv, ": one cache is blamed at a time");
  }
  TQ_RETURN_IF_ERROR(ParseVSkip(flags.kv.v_skip).status());  // a list is not blamed either
  TQ_ASSIGN_OR_RETURN(EvalInput input, EvalInput::Load(flags));
  TQ_ASSIGN_OR_RETURN(KvChoice choice, input.Choose(flags.kv.kv));
  BlameOptions options;
  TQ_ASSIGN_OR_RETURN(options.reference, input.Reference());
  options.candidate = {choice.name, &input.model(), std::move(choice.config)};
  options.restore_bits = flags.restore;
  options.worst_share = flags.worst;
  options.texts = input.texts();
  ProgressBar progress(flags.output.quiet);
  options.measure = input.Measure(&progress);
  options.measure.at_once = flags.at_once;
  TQ_ASSIGN_OR_RETURN(const BlameResult result, RunBlame(options));
  progress.Clear();
  const std::string command = flags.CommandLine("blame") +
                              fmt::format(" --restore {} --worst {}", flags.restore, flags.worst);
  TQ_RETURN_IF_ERROR(input.WriteReport("What costs the most in " + result.candidate_name,
                                       BlameSection(result), command));
  return input.Print(BlameJson(result), TextReport(result, static_cast<size_t>(flags.top)), kDone);
}

}  // namespace

Command AddEvalBlame(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "blame", "Which layers and heads cost the most, and the pins that mend it",
                 "tq eval blame --kv k3v2 --context 1024 --windows 1");
  auto flags = std::make_shared<BlameFlags>();
  flags->windows = 2;
  flags->Add(command);
  command->add_option("--restore", flags->restore, "Bits that a part is given in turn: 8 or 16");
  command
      ->add_option("--worst", flags->worst,
                   "Share of the layers whose K, V and heads are tried apart")
      ->type_name("0..1");
  command->add_option("--at-once", flags->at_once,
                      "Caches in memory at once; more read the plain run less often");
  command->add_option("--top", flags->top, "Lines of each table")->check(CLI::Range(1, 100000));
  return {"blame", [flags] { return RunEvalBlame(*flags); }};
}

}  // namespace tq::cli
