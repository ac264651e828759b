// One table of fields: how each is read, or that it may be left aside.
#include "runtime/evaluate/tasks/request_fields.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

namespace tq {
namespace {

using nlohmann::ordered_json;

// A value as it stands in a message: JSON, cut where it is long.
std::string Shown(const ordered_json& value) {
  std::string text = value.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

Status Expected(const std::string& field, const ordered_json& value, const std::string& what) {
  return InvalidArgument("the request's '", field, "' is ", Shown(value), "; expected ", what);
}

Result<int> ReadInt(const std::string& field, const ordered_json& value) {
  if (value.is_number_integer()) {
    const auto n = value.get<int64_t>();
    if (n >= std::numeric_limits<int>::min() && n <= std::numeric_limits<int>::max()) {
      return static_cast<int>(n);
    }
  }
  return Expected(field, value, "a whole number");
}

Status Read(const std::string& field, const ordered_json& value, float* out) {
  if (!value.is_number()) return Expected(field, value, "a number");
  *out = value.get<float>();
  return OkStatus();
}

Status Read(const std::string& field, const ordered_json& value, int* out) {
  TQ_ASSIGN_OR_RETURN(*out, ReadInt(field, value));
  return OkStatus();
}

// Text, or the text parts of a list; anything else (an image) is not supported.
Result<std::string> ReadContent(const ordered_json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return Expected("content", content, "text or a list of parts");
  std::string text;
  for (const ordered_json& part : content) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return Expected("content", content, "parts with a type");
    }
    if (part["type"] != "text" || !part.contains("text") || !part["text"].is_string()) {
      return Unsupported("the request's content has a part of the type ", Shown(part["type"]),
                         "; a local model reads text only");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

Status ReadMessages(const ordered_json& messages, RequestFields* fields) {
  if (!messages.is_array() || messages.empty()) {
    return Expected("messages", messages, "a list with at least one message");
  }
  for (const ordered_json& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return Expected("messages", message, "objects with a role");
    }
    for (const char* key : {"tool_calls", "function_call"}) {
      if (message.contains(key) && !message[key].is_null() && !message[key].empty()) {
        return Unsupported("a message has ", key, "; a local model reads text only");
      }
    }
    TQ_ASSIGN_OR_RETURN(
        std::string content,
        ReadContent(message.contains("content") ? message["content"] : ordered_json(nullptr)));
    fields->messages.push_back({message["role"].get<std::string>(), std::move(content)});
  }
  fields->is_chat = true;
  return OkStatus();
}

Status ReadPrompt(const ordered_json& prompt, RequestFields* fields) {
  if (prompt.is_string()) {
    fields->prompt = prompt.get<std::string>();
    return OkStatus();
  }
  if (prompt.is_array() && prompt.size() == 1 && prompt[0].is_string()) {
    fields->prompt = prompt[0].get<std::string>();
    return OkStatus();
  }
  if (!prompt.is_array() || prompt.empty()) {
    return Expected("prompt", prompt, "a text or a list of token ids");
  }
  for (const ordered_json& id : prompt) {
    TQ_ASSIGN_OR_RETURN(const int token, ReadInt("prompt", id));
    fields->prompt_ids.push_back(token);
  }
  return OkStatus();
}

Status ReadStop(const ordered_json& stop, RequestFields* fields) {
  const ordered_json list = stop.is_array() ? stop : ordered_json::array({stop});
  for (const ordered_json& text : list) {
    if (!text.is_string()) return Expected("stop", stop, "a text or a list of texts");
    fields->generate.stop.push_back(text.get<std::string>());
  }
  return OkStatus();
}

Status ReadLogitBias(const ordered_json& bias, RequestFields* fields) {
  if (!bias.is_object()) return Expected("logit_bias", bias, "an object of token ids");
  for (const auto& [key, value] : bias.items()) {
    int32_t id = 0;
    const char* const end = key.data() + key.size();
    const auto [rest, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || rest != end || !value.is_number()) {
      return Expected("logit_bias", bias, "numbers by token id");
    }
    fields->generate.sampling.logit_bias.emplace_back(id, value.get<float>());
  }
  return OkStatus();
}

// `logprobs` is a switch in chats, with top_logprobs beside it, and a number in completions.
Status ReadLogprobs(const ordered_json& request, RequestFields* fields) {
  const auto logprobs = request.find("logprobs"), top = request.find("top_logprobs");
  if (logprobs == request.end() || logprobs->is_null() || *logprobs == false) return OkStatus();
  if (logprobs->is_boolean()) {
    fields->generate.logprobs = 0;
    if (top == request.end() || top->is_null()) return OkStatus();
    return Read("top_logprobs", *top, &fields->generate.logprobs);
  }
  return Read("logprobs", *logprobs, &fields->generate.logprobs);
}

Status ReadSeed(const ordered_json& seed, RequestFields* fields) {
  if (!seed.is_number_integer()) return Expected("seed", seed, "a whole number");
  fields->generate.sampling.seed = static_cast<uint64_t>(seed.get<int64_t>());
  fields->has_seed = true;
  return OkStatus();
}

Status ReadMaxTokens(const ordered_json& value, RequestFields* fields) {
  TQ_ASSIGN_OR_RETURN(fields->max_tokens, ReadInt("max_tokens", value));
  return OkStatus();
}

Status ReadNumAnswers(const ordered_json& value, RequestFields* fields) {
  TQ_ASSIGN_OR_RETURN(fields->num_answers, ReadInt("n", value));
  if (fields->num_answers >= 1 && fields->num_answers <= 100) return OkStatus();
  return Expected("n", value, "1 to 100");
}

Status ReadIgnoreEos(const ordered_json& value, RequestFields* fields) {
  if (!value.is_boolean()) return Expected("ignore_eos", value, "true or false");
  fields->generate.ignore_stop_tokens = value.get<bool>();
  return OkStatus();
}

struct NamedReader {
  const char* name;
  Status (*read)(const ordered_json& value, RequestFields* fields);
};
constexpr NamedReader kReaders[] = {
    {"messages", ReadMessages},
    {"prompt", ReadPrompt},
    {"stop", ReadStop},
    {"logit_bias", ReadLogitBias},
    {"seed", ReadSeed},
    {"max_tokens", ReadMaxTokens},
    {"n", ReadNumAnswers},
    {"max_completion_tokens", ReadMaxTokens},
    {"ignore_eos", ReadIgnoreEos},
};
struct NamedFloat {
  const char* name;
  float SamplingParams::*member;
};
constexpr NamedFloat kFloats[] = {
    {"temperature", &SamplingParams::temperature},
    {"top_p", &SamplingParams::top_p},
    {"min_p", &SamplingParams::min_p},
    {"presence_penalty", &SamplingParams::presence_penalty},
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
};
// Read elsewhere, or of no influence on the text.
constexpr const char* kAside[] = {"model",
                                  "user",
                                  "stream",
                                  "stream_options",
                                  "logprobs",
                                  "top_logprobs",
                                  "store",
                                  "metadata",
                                  "top_k",
                                  "service_tier",
                                  "prompt_cache_key",
                                  "safety_identifier",
                                  "parallel_tool_calls"};
// Values that ask for nothing; any other value of these fields is not supported.
struct Neutral {
  const char* name;
  const char* values;  // a JSON list
};
constexpr Neutral kNeutral[] = {
    {"tools", "[[]]"},
    {"functions", "[[]]"},
    {"tool_choice", R"(["none", "auto"])"},
    {"echo", "[false]"},
    {"suffix", R"([""])"},
    {"response_format", R"([{"type": "text"}])"},
    {"best_of", "[1]"},
    {"modalities", R"([["text"]])"},
};

Status ReadField(const std::string& name, const ordered_json& value, RequestFields* fields) {
  if (value.is_null()) return OkStatus();
  for (const NamedReader& reader : kReaders) {
    if (name == reader.name) return reader.read(value, fields);
  }
  for (const NamedFloat& f : kFloats) {
    if (name == f.name) return Read(name, value, &(fields->generate.sampling.*f.member));
  }
  if (std::find(std::begin(kAside), std::end(kAside), name) != std::end(kAside)) return OkStatus();
  for (const Neutral& neutral : kNeutral) {
    if (name != neutral.name) continue;
    const ordered_json values = ordered_json::parse(neutral.values);
    if (std::find(values.begin(), values.end(), value) != values.end()) return OkStatus();
  }
  return Unsupported("the request has '", name, "': ", Shown(value),
                     "; a local model does not know that, and leaving it out could change the "
                     "answer; use an endpoint, or take it out of the request");
}

}  // namespace

Result<RequestFields> ReadRequest(const ordered_json& request) {
  if (!request.is_object()) return InvalidArgument("a request is not a JSON object");
  RequestFields fields;
  fields.generate.sampling.temperature = 1;  // what OpenAI's API takes where none is given
  const bool has_prompt = request.contains("prompt"), has_messages = request.contains("messages");
  if (has_prompt == has_messages) {
    return InvalidArgument("a request needs either messages or a prompt; this one has ",
                           has_prompt ? "both" : "none");
  }
  for (const auto& [name, value] : request.items()) {
    TQ_RETURN_IF_ERROR(ReadField(name, value, &fields));
  }
  if (const auto top_k = request.find("top_k"); top_k != request.end() && !top_k->is_null()) {
    TQ_RETURN_IF_ERROR(Read("top_k", *top_k, &fields.generate.sampling.top_k));
    // -1: all tokens, as vLLM writes it.
    if (fields.generate.sampling.top_k == -1) fields.generate.sampling.top_k = 0;
  }
  TQ_RETURN_IF_ERROR(ReadLogprobs(request, &fields));
  if (fields.max_tokens) fields.generate.max_tokens = *fields.max_tokens;
  TQ_RETURN_IF_ERROR(fields.generate.Validate());
  return fields;
}

}  // namespace tq
