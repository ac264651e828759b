#include "turboquant/plan/survey.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tq {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Gap(double bytes) {
  return FormatBoth(bytes);
}

// Words for what to do with the part that does not fit.
std::string OverflowText(const Overflow& over) {
  std::string out;
  if (over.swap_ms) {
    out += StrCat("; reading the overflow over the link would add ", Fixed(*over.swap_ms, 1),
                  " ms to each step");
  }
  if (over.recompute_ms) {
    out += StrCat(out.empty() ? "; " : ", ", "computing it again ", Fixed(*over.recompute_ms, 1),
                  " ms");
  }
  if (over.resident_ms && !out.empty()) {
    out += StrCat(", beside ", Fixed(*over.resident_ms, 1), " ms were all of it resident");
  }
  return out;
}

Verdict Judge(const std::vector<const SurveyRow*>& rows, const Machine& machine, int devices) {
  Verdict v;
  v.context = rows[0]->context;
  v.batch = rows[0]->batch;
  v.weights = rows[0]->weights;
  const auto capacity = static_cast<double>(machine.memory_bytes);
  // From the most bits to the fewest.
  std::vector<const SurveyRow*> sorted = rows;
  std::stable_sort(sorted.begin(), sorted.end(), [](const SurveyRow* a, const SurveyRow* b) {
    return a->bits_per_value > b->bits_per_value;
  });
  const auto first_fit =
      std::find_if(sorted.begin(), sorted.end(), [](const SurveyRow* r) { return r->fits; });
  v.any_fits = first_fit != sorted.end();
  const std::string each = devices > 1 ? " on each device" : "";
  if (!v.any_fits) {
    const SurveyRow* least =
        *std::min_element(rows.begin(), rows.end(), [](const SurveyRow* a, const SurveyRow* b) {
          return a->memory.total_bytes < b->memory.total_bytes;
        });
    const auto total = static_cast<double>(least->memory.total_bytes);
    const auto weights = static_cast<double>(least->memory.weights_bytes);
    v.text = "does not fit: ";
    if (weights > capacity) {
      v.text += StrCat("the weights alone take ", FormatBoth(weights));
    } else {
      v.text += StrCat("even ", least->kv, " needs ", FormatBoth(total));
    }
    v.text += StrCat(each, " of ", FormatBoth(capacity), ", ", Gap(total - capacity),
                     " too much with ", least->kv);
    if (least->max_context > 0) {
      v.text += StrCat("; the longest context with it is ", least->max_context);
    }
    v.text += OverflowText(least->overflow);
    return v;
  }
  const SurveyRow& best = **first_fit;
  v.best = best.kv;
  const double left = capacity - static_cast<double>(best.memory.total_bytes);
  if (first_fit == sorted.begin()) {
    v.text = StrCat("fits: ", best.kv, " leaves ", Gap(left), each, " of ", FormatBoth(capacity));
  } else {
    const SurveyRow& over = **(first_fit - 1);
    v.text =
        StrCat("fits with ", best.kv, " or fewer bits: it leaves ", Gap(left), each, "; ", over.kv,
               " would need ", Gap(static_cast<double>(over.memory.total_bytes) - capacity),
               " more", OverflowText(over.overflow));
  }
  return v;
}

}  // namespace

std::string FormatGib(double bytes) {
  return Fixed(bytes / kGiB, 2) + " GiB";
}
std::string FormatGb(double bytes) {
  return Fixed(bytes / 1e9, 2) + " GB";
}
std::string FormatBoth(double bytes) {
  if (std::abs(bytes) < 4 * kGiB) {
    return Fixed(bytes / (1024.0 * 1024.0), 2) + " MiB (" + Fixed(bytes / 1e6, 2) + " MB)";
  }
  return FormatGib(bytes) + " (" + FormatGb(bytes) + ")";
}

bool Survey::all_fit() const {
  return std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.any_fits; });
}

Result<Survey> MakeSurvey(const ModelSpec& spec, const SurveyGrid& grid,
                          const PlanOptions& options) {
  if (grid.contexts.empty() || grid.batches.empty() || grid.weights.empty() ||
      grid.formats.empty()) {
    return InvalidArgument("a plan needs a context, a batch, a weight and a cache format");
  }
  Survey survey;
  survey.spec = spec;
  survey.machine = options.machine;
  survey.num_devices = options.num_devices;
  const size_t capacity = options.machine.memory_bytes;
  // What depends on the formats alone is asked once.
  struct Made {
    Planner planner;
    std::vector<BreakEven> break_even;  // by batch
    std::vector<int64_t> max_context;   // by batch
  };
  std::vector<Made> made;  // [weights][formats]
  for (const WeightChoice& weights : grid.weights) {
    for (const CacheFormat& format : grid.formats) {
      PlanOptions one = options;
      one.weights = weights;
      TQ_ASSIGN_OR_RETURN(Planner planner, Planner::Create(spec, format, one));
      Made m{std::move(planner), {}, {}};
      for (const int64_t batch : grid.batches) {
        TQ_RETURN_IF_ERROR(m.planner.Memory(1, batch).status());
        TQ_ASSIGN_OR_RETURN(BreakEven even, m.planner.FindBreakEven(batch));
        m.break_even.push_back(std::move(even));
        m.max_context.push_back(m.planner.MaxContext(batch, capacity));
      }
      made.push_back(std::move(m));
    }
  }
  for (const int64_t context : grid.contexts) {
    for (size_t b = 0; b < grid.batches.size(); ++b) {
      for (size_t w = 0; w < grid.weights.size(); ++w) {
        const size_t first = survey.rows.size();
        for (size_t f = 0; f < grid.formats.size(); ++f) {
          const Made& m = made[w * grid.formats.size() + f];
          SurveyRow row;
          row.context = context;
          row.batch = grid.batches[b];
          row.weights = grid.weights[w].name;
          row.kv = grid.formats[f].name;
          TQ_ASSIGN_OR_RETURN(row.memory, m.planner.Memory(context, row.batch));
          row.fits = row.memory.total_bytes <= capacity;
          row.step = m.planner.Decode(context, row.batch);
          row.first_token_seconds = m.planner.FirstTokenSeconds(context, row.batch);
          row.max_context = m.max_context[b];
          row.max_sequences = m.planner.MaxSequences(context, capacity);
          row.bits_per_value = m.planner.cache().bits_per_value();
          row.quantized_layers = m.planner.cache().quantized_layers();
          row.break_even = m.break_even[b];
          row.overflow = m.planner.PriceOverflow(context, row.batch, capacity);
          survey.rows.push_back(std::move(row));
        }
        std::vector<const SurveyRow*> group;
        for (size_t i = first; i < survey.rows.size(); ++i) group.push_back(&survey.rows[i]);
        survey.verdicts.push_back(Judge(group, options.machine, options.num_devices));
      }
    }
  }
  return survey;
}

Result<std::vector<Curve>> MakeCurves(const ModelSpec& spec, const SurveyGrid& grid,
                                      const PlanOptions& options) {
  PlanOptions one = options;
  one.weights = grid.weights.front();
  const int64_t batch = grid.batches.front();
  const int64_t longest =
      std::max(spec.context_len, *std::max_element(grid.contexts.begin(), grid.contexts.end()));
  std::vector<Curve> curves;
  for (const CacheFormat& format : grid.formats) {
    TQ_ASSIGN_OR_RETURN(const Planner planner, Planner::Create(spec, format, one));
    Curve curve;
    curve.kv = format.name;
    for (int64_t context = 1024; context < 2 * std::max<int64_t>(longest, 1024); context *= 2) {
      TQ_ASSIGN_OR_RETURN(const MemoryPlan memory, planner.Memory(context, batch));
      const CacheParts& p = memory.sequence;
      const auto n = static_cast<size_t>(batch);
      CurvePoint point;
      point.context = context;
      point.weights = memory.weights_bytes;
      point.codes = n * p.payload;
      point.scales = n * p.scales;
      point.open = n * (p.recent + p.sinks + p.in_flight);
      point.windows_and_states = n * (p.windows + p.states);
      const size_t parts = point.total();
      // A shared prefix is in the parts once for each sequence.
      point.rest = memory.total_bytes > parts ? memory.total_bytes - parts : 0;
      point.ms = planner.Decode(context, batch).ms;
      curve.points.push_back(point);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

}  // namespace tq
