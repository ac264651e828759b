#include "cli/eval/task_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/evaluate/redactor.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

void AddEndpoint(CLI::App* app, const std::string& side, const std::string& what,
                 EndpointFlags* flags) {
  app->add_option("--" + side, flags->url,
                  "An OpenAI-compatible endpoint, up to its version (http://host:8000/v1), instead "
                  "of " +
                      what)
      ->type_name("URL");
  app->add_option("--" + side + "-model", flags->model,
                  "Its model (default: the request's, or the only one that it has)")
      ->type_name("NAME");
  app->add_option("--" + side + "-key-env", flags->key_variable,
                  "The environment variable with its API key (default: OPENAI_API_KEY for "
                  "https://api.openai.com, none for others)")
      ->type_name("NAME");
}

Result<std::unique_ptr<Responder>> OpenEndpoint(const TaskFlags& flags,
                                                const EndpointFlags& endpoint) {
  EndpointOptions options;
  options.url = endpoint.url;
  options.model = endpoint.model;
  options.api_key_variable = endpoint.key_variable;
  options.timeout_seconds = flags.timeout_seconds;
  options.max_retries = flags.retries;
  TQ_ASSIGN_OR_RETURN(std::unique_ptr<EndpointResponder> responder,
                      EndpointResponder::Create(std::move(options)));
  return std::unique_ptr<Responder>(std::move(responder));
}

Result<std::unique_ptr<Responder>> OpenLocal(const LoadedModel& loaded, KvChoice choice,
                                             int64_t context) {
  LocalResponderOptions options;
  options.name = choice.name;
  options.context = context;
  TQ_ASSIGN_OR_RETURN(std::unique_ptr<LocalResponder> responder,
                      LocalResponder::Create(*loaded.model, *loaded.tokenizer,
                                             std::move(choice.config), std::move(options)));
  return std::unique_ptr<Responder>(std::move(responder));
}

// Each name of --kv, its notes once.
Result<std::vector<KvChoice>> Choices(const TaskFlags& flags, const KvModel& model,
                                      int64_t context) {
  std::vector<KvChoice> choices;
  std::vector<std::string> said;
  for (const std::string& name : SplitList(flags.kv.kv, ',')) {
    KvFlags one = flags.kv;
    one.kv = name;
    TQ_ASSIGN_OR_RETURN(KvChoice choice, ChooseKv(model, one, context));
    for (const std::string& note : choice.notes) {
      if (std::find(said.begin(), said.end(), note) != said.end()) continue;
      said.push_back(note);
      PrintNote(flags.output, note);
    }
    if (std::any_of(choices.begin(), choices.end(),
                    [&](const KvChoice& c) { return c.name == choice.name; })) {
      return InvalidArgument("--kv names ", choice.name, " twice");
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace

void TaskFlags::Add(CLI::App* app) {
  model.Add(app);
  kv.Add(app);
  kv.AddVSkip(app);
  AddEndpoint(app, "baseline", "the model with the plain cache", &baseline);
  AddEndpoint(app, "candidate", "the model with the caches of --kv", &candidate);
  data.Add(app);
  data.AddPart(app);
  app->add_option("--timeout", timeout_seconds, "Seconds that an endpoint may take to answer");
  app->add_option("--retries", retries,
                  "How often a request is sent again after 429, 5xx or a broken connection");
  app->add_option("--report", report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  output.Add(app);
}

void TaskFlags::AddTrialFlags(CLI::App* app, std::span<const TrialKind> known) {
  std::string names;
  for (const TrialKind& kind : known) names += StrCat(names.empty() ? "" : ", ", kind.name);
  app->add_option("--kinds", kinds, "Some of: " + names + " (default: all)")->type_name("KIND,...");
  app->add_option("--form", form,
                  "primed: questions are the beginning of their answer, which small models can go "
                  "on with; chat; auto: primed, but a chat where an endpoint is asked")
      ->check(CLI::IsMember({"auto", "primed", "chat"}));
}

std::vector<std::string> TaskFlags::Kinds() const {
  return kinds.empty() ? std::vector<std::string>() : SplitList(kinds, ',');
}

Result<TrialOptions> TaskFlags::RunOptions() const {
  TrialOptions options;
  const bool chat = form == "chat" || (form == "auto" && has_endpoint());
  options.form = chat ? AskForm::kChat : AskForm::kPrimed;
  options.cancel = &InterruptFlag();
  return options;
}

Status TaskFlags::Validate() const {
  TQ_RETURN_IF_ERROR(model.Validate());
  TQ_RETURN_IF_ERROR(data.Validate());
  for (const std::string& name : SplitList(kv.kv, ',')) {
    if (name.empty()) {
      return InvalidArgument("--kv '", kv.kv, "' has an empty entry; write k8v4,k4v4");
    }
    TQ_RETURN_IF_ERROR(CheckKvName(name));
  }
  TQ_RETURN_IF_ERROR(ParseVSkip(kv.v_skip).status());
  if (!(timeout_seconds > 0) || retries < 0 || retries > 100) {
    return InvalidArgument("--timeout ", timeout_seconds, " --retries ", retries,
                           ": expected seconds above 0 and 0 to 100 retries");
  }
  const std::pair<const char*, const EndpointFlags*> sides[] = {{"baseline", &baseline},
                                                                {"candidate", &candidate}};
  for (const auto& [side, endpoint] : sides) {
    if (endpoint->url.empty() && !(endpoint->model.empty() && endpoint->key_variable.empty())) {
      return InvalidArgument("--", side, "-model and --", side, "-key-env need --", side, " URL");
    }
    if (!endpoint->url.empty()) TQ_RETURN_IF_ERROR(OpenEndpoint(*this, *endpoint).status());
  }
  if (!report.empty()) TQ_RETURN_IF_ERROR(CheckWritable(report));
  return OkStatus();
}

std::string TaskFlags::LocalCommandLine() const {
  std::string out;
  if (!model.model.empty()) out += " --model " + ShellWord(model.model);
  if (candidate.url.empty()) out += " " + kv.CommandLine();
  return out;
}

std::string TaskFlags::CommandLine() const {
  std::string out = LocalCommandLine();
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) out += fmt::format(" {} {}", flag, ShellWord(value));
  };
  add("--baseline", baseline.url);
  add("--baseline-model", baseline.model);
  add("--candidate", candidate.url);
  add("--candidate-model", candidate.model);
  if (form != "auto") add("--form", form);
  add("--kinds", kinds);
  return out + " " + data.CommandLine();
}

Result<TaskResponders> TaskResponders::Open(const TaskFlags& flags, int64_t context) {
  TaskResponders open;
  std::vector<KvChoice> choices;
  if (flags.needs_model()) {
    TQ_ASSIGN_OR_RETURN(open.loaded_, LoadModel(flags.model, flags.output, context));
    TQ_ASSIGN_OR_RETURN(context,
                        ContextLen(context, open.loaded_->model->arch().context_len, flags.output));
  }
  if (flags.baseline.url.empty()) {
    TQ_ASSIGN_OR_RETURN(KvChoice plain, UniformKv(open.loaded_->ForKv(), "f16", flags.kv));
    TQ_ASSIGN_OR_RETURN(open.baseline_, OpenLocal(*open.loaded_, std::move(plain), context));
  } else {
    TQ_ASSIGN_OR_RETURN(open.baseline_, OpenEndpoint(flags, flags.baseline));
  }
  if (!flags.candidate.url.empty()) {
    TQ_ASSIGN_OR_RETURN(open.owned_.emplace_back(), OpenEndpoint(flags, flags.candidate));
  } else {
    TQ_ASSIGN_OR_RETURN(choices, Choices(flags, open.loaded_->ForKv(), context));
    for (KvChoice& choice : choices) {
      TQ_ASSIGN_OR_RETURN(open.owned_.emplace_back(),
                          OpenLocal(*open.loaded_, std::move(choice), context));
    }
  }
  for (const auto& candidate : open.owned_) open.candidates_.push_back(candidate.get());
  return open;
}

std::vector<std::pair<std::string, std::string>> TaskResponders::Provenance(
    const std::string& command) const {
  std::vector<std::pair<std::string, std::string>> out;
  if (loaded_) {
    out.push_back({"Model", fmt::format("{}, {}, {}", loaded_->model->arch().model_name,
                                        std::filesystem::path(loaded_->path).filename().string(),
                                        loaded_->model->weights().types)});
  }
  out.push_back({"Baseline", baseline_->name()});
  for (const Responder* candidate : candidates_) out.push_back({"Candidate", candidate->name()});
  if (loaded_) {
    out.push_back({"Machine", fmt::format("{}, {} threads, {}", MachineName(),
                                          loaded_->pool->num_threads(), CurrentIsa())});
  }
  out.push_back({"Version", std::string("tq ") + Version()});
  out.push_back({"Command", command});
  return out;
}

Result<std::string> EmbeddingsFolder(const std::string& named) {
  const std::string data = DataFolder();
  const std::string folder =
      !named.empty()
          ? named
          : (std::filesystem::path(data.empty() ? ".cache" : data) / "all-MiniLM-L6-v2").string();
  if (FileExists(folder + "/model.safetensors")) return folder;
  return NotFound("there are no sentence embeddings in '", folder,
                  "'; ./quickstart --embeddings fetches them, --embeddings FOLDER names others");
}

Result<std::pair<std::string, std::string>> ReadTaskText(const TaskFlags& flags, int64_t tokens) {
  DataFlags data = flags.data;
  // Enough for the longest text in the part that is asked for, and not much more: all of it is cut
  // into tokens.
  const double share = data.part == "held-out"      ? data.held_out_share
                       : data.part == "calibration" ? 1 - data.held_out_share
                                                    : 1;
  const double needed = 4 * static_cast<double>(tokens) / std::max(share, 1e-3);
  data.max_tokens = std::min(data.max_tokens, static_cast<int64_t>(needed));
  TQ_ASSIGN_OR_RETURN(Corpus corpus, data.Read(tokens, flags.output));
  const std::vector<std::string> sources = corpus.report.sources;
  std::string text;
  const auto add = [&](const std::string& more) {
    if (more.empty()) return;
    text += more;
    if (text.back() != '\n') text += '\n';
  };
  for (const CorpusItem& item : data.ItemsOf(std::move(corpus))) {
    for (const ChatMessage& message : item.messages) add(message.content);
    add(item.text);
    if (item.answer) add(item.answer->content);
  }
  return std::pair(sources.size() == 1 ? std::filesystem::path(sources.front()).filename().string()
                                       : fmt::format("{} files", sources.size()),
                   std::move(text));
}

Result<std::function<std::string(const std::string&)>> MakeRedact(const DataFlags& data) {
  TQ_ASSIGN_OR_RETURN(Redactor redactor, data.MakeRedactor());
  if (redactor.empty()) return std::function<std::string(const std::string&)>();
  const auto shared = std::make_shared<Redactor>(std::move(redactor));
  return std::function<std::string(const std::string&)>([shared](const std::string& text) {
    std::string out = text;
    // What cannot be searched cannot be shown.
    return shared->Apply(&out).ok() ? out : "[withheld: it could not be redacted]";
  });
}

Status PrintTask(const TaskFlags& flags, const TaskResponders& responders,
                 const std::string& command, TaskOutput output) {
  if (!flags.report.empty()) {
    const std::string sections[] = {output.section, SectionHead("Where the numbers come from") +
                                                        ListCard(responders.Provenance(command))};
    TQ_RETURN_IF_ERROR(WriteFileAtomic(
        flags.report, SectionsPage(output.title, "tq eval: answers side by side", sections)));
  }
  if (flags.output.json) {
    nlohmann::ordered_json& j = output.document;
    j["command"] = command;
    j["version"] = Version();
    if (responders.loaded() != nullptr) {
      j["model"] = responders.loaded()->model->arch().model_name;
      j["machine"] = MachineName();
      j["isa"] = CurrentIsa();
      j["threads"] = responders.loaded()->pool->num_threads();
    }
    PrintOut(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    return OkStatus();
  }
  PrintOut(output.text);
  if (!flags.report.empty()) PrintOut(fmt::format("\nReport: {}\n", flags.report));
  return OkStatus();
}

}  // namespace tq::cli
