#include "turboquant/plan/request_log.h"

#include <array>
#include <cstdio>
#include <map>
#include <utility>

#include "turboquant/base/json_object.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTokens = int64_t{1} << 30;

// What a flat line holds beside the request body.
constexpr std::array kNotOfRequest = {
    "choices",       "usage",   "time",         "timestamp",  "arrival",           "created",
    "duration",      "latency", "response",     "completion", "completion_tokens", "prompt_tokens",
    "output_tokens", "id",      "input_tokens", "object",     "custom_id"};

// A value as a message shows it. Of all but numbers the type only: messages may hold no text of the
// log, and a part of a text, or one with escapes, may pass a filter that knows the whole.
std::string Show(const Json& value) {
  return value.is_number() ? value.dump() : std::string(value.type_name());
}

const Json* Find(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(key);
    if (it == at->end() || it->is_null()) return nullptr;
    at = &*it;
  }
  return at;
}

const Json* FirstOf(const Json& object,
                    std::initializer_list<std::initializer_list<const char*>> paths) {
  for (const auto& path : paths) {
    if (const Json* found = Find(object, path)) return found;
  }
  return nullptr;
}

std::string TextAt(const Json& object, const char* key) {
  const Json* text = Find(object, {key});
  return text != nullptr && text->is_string() ? text->get<std::string>() : "";
}

Result<int64_t> Tokens(const Json& value, const char* field) {
  if (!value.is_number_integer()) {
    return InvalidArgument("field '", field, "' is ", Show(value), "; a whole number was expected");
  }
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxTokens};
  const int64_t n = huge ? kMaxTokens + 1 : value.get<int64_t>();
  if (n < 0 || n > kMaxTokens) {
    return InvalidArgument("field '", field, "' = ", Show(value), "; expected 0 to ", kMaxTokens);
  }
  return n;
}

// "2026-11-30T12:00:00.5Z" as seconds since 1970; a number above 1e11 counts milliseconds.
Result<double> Seconds(const Json& value, const char* field) {
  if (value.is_number()) {
    const double n = value.get<double>();
    if (!(n >= 0 && n < 1e15)) {
      return InvalidArgument("field '", field, "' = ", Show(value), " is no time");
    }
    return n > 1e11 ? n / 1000 : n;
  }
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%lf", &year, &month, &day, &hour,
                  &minute, &second) != 6 ||
      year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
      !(second >= 0 && second < 61)) {
    return InvalidArgument("field '", field, "' is ", Show(value),
                           "; expected seconds or \"2026-11-30T12:00:00Z\"");
  }
  // Days since 1970-01-01 of the Gregorian calendar, with years that begin in March.
  const int64_t y = month <= 2 ? year - 1 : year;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t days = 365 * y + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
  return static_cast<double>((days * 24 + hour) * 60 + minute) * 60 + second;
}

// A message's content: a string, or parts of which only text counts.
std::string ContentText(const Json* content) {
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string out;
  if (!content->is_array()) return out;
  for (const Json& part : *content) out += TextAt(part, "text");
  return out;
}

std::string ToolCalls(const Json& message) {
  const Json* calls = Find(message, {"tool_calls"});
  return calls != nullptr && calls->is_array() && !calls->empty() ? calls->dump() : "";
}

LoggedMessage ReadMessage(const Json& message) {
  return {TextAt(message, "role"), ContentText(Find(message, {"content"})), ToolCalls(message)};
}

// An object or array, also where it was logged as the text of one.
Json Unwrap(const Json* value) {
  if (value == nullptr) return nullptr;
  if (!value->is_string()) return *value;
  const std::string text = value->get<std::string>();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '[')) {
    Result<Json> parsed = ParseJson<Json>(text, "text");
    if (parsed.ok()) return *std::move(parsed);
  }
  return *value;
}

// Puts the chunks of a stream together: of the first choice, texts and the calls of tools.
class StreamedAnswer {
 public:
  void Add(const Json& chunk) {
    if (const Json* usage = Find(chunk, {"usage"})) usage_ = *usage;
    const Json* choices = Find(chunk, {"choices"});
    if (choices == nullptr || !choices->is_array()) return;
    for (const Json& choice : *choices) {
      const Json* index = Find(choice, {"index"});
      if (index != nullptr && *index != 0) continue;
      any_ = true;
      answer_.message.content += TextAt(choice, "text");
      if (const Json* delta = Find(choice, {"delta"})) AddDelta(*delta);
      if (const std::string reason = TextAt(choice, "finish_reason"); !reason.empty()) {
        answer_.finish_reason = reason;
      }
    }
  }
  // "data: {...}" lines of server-sent events.
  void AddEvents(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.starts_with("data:")) continue;
      const Result<Json> chunk = ParseJson<Json>(line.substr(5), "chunk");
      if (chunk.ok()) Add(*chunk);  // "[DONE]", or a connection that broke off
    }
  }
  std::optional<LoggedAnswer> Finish() {
    if (!any_) return std::nullopt;
    answer_.message.role = "assistant";
    Json calls = Json::array();
    for (auto& [index, call] : calls_) calls.push_back(std::move(call));
    if (!calls.empty()) answer_.message.tool_calls = calls.dump();
    return std::move(answer_);
  }
  const Json& usage() const { return usage_; }

 private:
  void AddDelta(const Json& delta) {
    answer_.message.content += ContentText(Find(delta, {"content"}));
    const Json* calls = Find(delta, {"tool_calls"});
    if (calls == nullptr || !calls->is_array()) return;
    for (const Json& call : *calls) {
      const Json* index = Find(call, {"index"});
      const int64_t at = index != nullptr && index->is_number_integer() ? index->get<int64_t>() : 0;
      Json& whole = calls_[at];
      if (whole.is_null()) {
        whole = {{"id", ""}, {"type", "function"}, {"function", {{"name", ""}, {"arguments", ""}}}};
      }
      const auto append = [](Json& to, const std::string& text) {
        to.get_ref<std::string&>() += text;
      };
      append(whole["id"], TextAt(call, "id"));
      if (const Json* function = Find(call, {"function"})) {
        append(whole["function"]["name"], TextAt(*function, "name"));
        append(whole["function"]["arguments"], TextAt(*function, "arguments"));
      }
    }
  }

  LoggedAnswer answer_;
  std::map<int64_t, Json> calls_;
  Json usage_;
  bool any_ = false;
};

// What a response says, in any of the forms in which it may be logged.
struct Response {
  std::optional<LoggedAnswer> answer;
  Json usage;
};

Response ReadResponse(const Json& json) {
  Response out;
  StreamedAnswer stream;
  if (json.is_string()) {
    const std::string text = json.get<std::string>();
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return out;
    if (text.compare(first, 5, "data:") != 0 && text[first] != ':' &&
        text.compare(first, 6, "event:") != 0) {
      out.answer = LoggedAnswer{{"assistant", text, ""}, ""};
      return out;
    }
    stream.AddEvents(text);
  } else if (json.is_array()) {
    for (const Json& chunk : json) {
      if (chunk.is_string()) {
        stream.AddEvents(chunk.get<std::string>());
      } else {
        stream.Add(chunk);
      }
    }
  } else {
    if (const Json* usage = Find(json, {"usage"})) out.usage = *usage;
    const Json* choices = Find(json, {"choices"});
    if (choices == nullptr || !choices->is_array() || choices->empty()) return out;
    const Json& choice = choices->front();
    if (const Json* message = Find(choice, {"message"})) {
      out.answer = LoggedAnswer{ReadMessage(*message), TextAt(choice, "finish_reason")};
      out.answer->message.role = "assistant";
      return out;
    }
    stream.Add(json);
  }
  out.answer = stream.Finish();
  if (!stream.usage().is_null()) out.usage = stream.usage();
  return out;
}

Status ReadPrompt(const Json& value, std::string* prompt) {
  const Json* text = &value;
  if (value.is_array() && value.size() == 1 && value[0].is_string()) text = &value[0];
  if (!text->is_string()) return InvalidArgument("field 'prompt' is no string");
  *prompt = text->get<std::string>();
  return OkStatus();
}

// The request of a line: its body, and messages or a prompt.
Status ReadBody(const Json& line, const Json& request, LoggedRequest* out) {
  const Json inner = Unwrap(Find(request, {"body"}));
  const Json body = Unwrap(Find(line, {"body"}));
  for (const Json* at : {&line, &body, &request, &inner}) {
    const Json* messages = Find(*at, {"messages"});
    const Json* prompt = Find(*at, {"prompt"});
    if (messages == nullptr && prompt == nullptr) continue;
    out->body = *at;
    if (at == &line) {
      for (const char* key : kNotOfRequest) out->body.erase(key);
    }
    if (messages == nullptr) return ReadPrompt(*prompt, &out->prompt);
    if (!messages->is_array()) return InvalidArgument("field 'messages' is no array");
    out->is_chat = true;
    for (const Json& m : *messages) out->messages.push_back(ReadMessage(m));
    return OkStatus();
  }
  return OkStatus();
}

Result<LoggedRequest> ReadLine(const Json& line) {
  if (!line.is_object()) return InvalidArgument("a JSON object was expected");
  LoggedRequest r;
  TQ_RETURN_IF_ERROR(ReadBody(line, Unwrap(Find(line, {"request"})), &r));
  Json response = Unwrap(Find(line, {"response"}));
  if (Find(response, {"body"}) != nullptr) response = Unwrap(Find(response, {"body"}));
  if (response.is_null() && Find(line, {"choices"}) != nullptr) response = line;
  Response said = ReadResponse(response);
  r.answer = std::move(said.answer);
  if (const std::string text = TextAt(line, "completion"); !r.answer && !text.empty()) {
    r.answer = LoggedAnswer{{"assistant", text, ""}, ""};
  }
  // A conversation that was logged as a whole ends with its answer.
  if (!r.answer && r.messages.size() > 1 && r.messages.back().role == "assistant") {
    r.answer = LoggedAnswer{std::move(r.messages.back()), ""};
    r.messages.pop_back();
    r.body["messages"].erase(r.body["messages"].size() - 1);
  }

  const auto tokens = [&](const char* name, const char* other, std::optional<int64_t>* out) {
    const Json* value = FirstOf(line, {{name}, {other}, {"usage", name}, {"usage", other}});
    if (value == nullptr) value = FirstOf(said.usage, {{name}, {other}});
    if (value == nullptr) return OkStatus();
    const Result<int64_t> n = Tokens(*value, name);
    if (n.ok()) *out = *n;
    return n.status();
  };
  TQ_RETURN_IF_ERROR(tokens("prompt_tokens", "input_tokens", &r.prompt_tokens));
  TQ_RETURN_IF_ERROR(tokens("completion_tokens", "output_tokens", &r.completion_tokens));
  const Json* time = FirstOf(line, {{"time"}, {"timestamp"}, {"arrival"}, {"created"}});
  if (time == nullptr) time = Find(response, {"created"});
  if (time != nullptr) {
    TQ_ASSIGN_OR_RETURN(r.arrival, Seconds(*time, "time"));
  }
  if (const Json* duration = FirstOf(line, {{"duration"}, {"latency"}})) {
    TQ_ASSIGN_OR_RETURN(r.duration, Seconds(*duration, "duration"));
  }
  return r;
}

Status Filter(const TextFilter& filter, LoggedMessage* message) {
  TQ_RETURN_IF_ERROR(filter(&message->role));
  TQ_RETURN_IF_ERROR(filter(&message->content));
  return filter(&message->tool_calls);
}

}  // namespace

Status FilterJson(const TextFilter& filter, Json* json) {
  if (json->is_string()) return filter(json->get_ptr<std::string*>());
  if (json->is_array()) {
    for (Json& value : *json) TQ_RETURN_IF_ERROR(FilterJson(filter, &value));
  } else if (json->is_object()) {
    Json changed = Json::object();
    for (auto& [key, value] : json->items()) {
      std::string name = key;
      TQ_RETURN_IF_ERROR(filter(&name));
      TQ_RETURN_IF_ERROR(FilterJson(filter, &value));
      changed[name] = std::move(value);
    }
    *json = std::move(changed);
  }
  return OkStatus();
}

Result<LoggedRequest> ParseLogLine(std::string_view text, const TextFilter& filter,
                                   const TextFilter& copy_filter) {
  const Result<Json> line = ParseJson<Json>(text, "line");
  if (!line.ok()) {
    const bool deep = line.status().message().find(" nests ") != std::string::npos;
    return deep ? DataLoss("it nests more than ", kMaxJsonDepth, " deep")
                : DataLoss("it is not JSON");
  }
  Result<LoggedRequest> request = ReadLine(*line);
  if (!filter) return request;
  if (!request.ok()) {
    std::string message = request.status().message();
    TQ_RETURN_IF_ERROR(filter(&message));
    return Status(request.status().code(), message);
  }
  TQ_RETURN_IF_ERROR(FilterJson(filter, &request->body));
  const TextFilter& of_copies = copy_filter ? copy_filter : filter;
  for (LoggedMessage& m : request->messages) TQ_RETURN_IF_ERROR(Filter(of_copies, &m));
  TQ_RETURN_IF_ERROR(of_copies(&request->prompt));
  if (request->answer) {
    TQ_RETURN_IF_ERROR(Filter(filter, &request->answer->message));
    TQ_RETURN_IF_ERROR(filter(&request->answer->finish_reason));
  }
  return request;
}

}  // namespace tq
