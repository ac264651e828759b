// An OpenAI-compatible endpoint through libcurl: one connection, kept open, one request at a time.
#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/evaluate/tasks/responder.h"
#include "turboquant/base/json_object.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxResponseBytes = size_t{256} << 20;
constexpr double kMostWaitSeconds = 60;

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlHandle = std::unique_ptr<CURL, CurlDeleter>;
using CurlList = std::unique_ptr<curl_slist, CurlDeleter>;

// Once a process; curl_global_init is not safe beside itself.
bool CurlIsReady() {
  static const bool ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return ready;
}

struct Transfer {
  std::string body;
  bool too_large = false;
  const std::atomic<bool>* cancel = nullptr;
};

size_t OnBytes(char* bytes, size_t size, size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  if (transfer->body.size() + size * count > kMaxResponseBytes) {
    transfer->too_large = true;
    return 0;
  }
  transfer->body.append(bytes, size * count);
  return size * count;
}

bool IsSet(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return IsSet(static_cast<Transfer*>(user)->cancel) ? 1 : 0;
}

// What a server says about an error, on one line: error.message, message, detail, or the body.
// Some repeat the key that they were sent.
std::string ServerWords(const std::string& body, const std::string& secret) {
  std::string words = body;
  if (const Result<ordered_json> json = ParseJson<ordered_json>(body, "error");
      json.ok() && json->is_object()) {
    const ordered_json& j = *json;
    const ordered_json& inner = j.contains("error") && j["error"].is_object() ? j["error"] : j;
    for (const char* key : {"message", "detail", "error"}) {
      if (inner.contains(key) && inner[key].is_string()) {
        words = inner[key].get<std::string>();
        break;
      }
    }
  }
  for (char& c : words) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  for (size_t at = 0; !secret.empty() && (at = words.find(secret, at)) != std::string::npos;) {
    words.replace(at, secret.size(), "[key]");
    at += 5;
  }
  constexpr size_t kMost = 300;
  if (words.size() > kMost) words = words.substr(0, kMost) + "...";
  return words.empty() ? "nothing" : "\"" + words + "\"";
}

using ParsedUrl = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string PartOf(const ParsedUrl& url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, 0) != CURLUE_OK) return "";
  std::string out = text;
  curl_free(text);
  return out;
}

// The URL without what follows the version, and checked. Messages hold none that may hold a secret.
Result<std::string> BaseUrl(std::string url) {
  if (url.find_first_of("?#") != std::string::npos) {
    return InvalidArgument(
        "the URL of the endpoint holds a query or a fragment ('?' or '#'); write it up to the "
        "version and give the key in an environment variable, since URLs go into reports");
  }
  while (url.ends_with('/')) url.pop_back();
  for (const std::string_view tail : {"/chat/completions", "/completions"}) {
    if (url.ends_with(tail)) {
      url.resize(url.size() - tail.size());
      break;
    }
  }
  const ParsedUrl parsed(curl_url(), curl_url_cleanup);
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK ||
      !(url.starts_with("http://") || url.starts_with("https://"))) {
    return InvalidArgument("'", url,
                           "' is not the URL of an endpoint; write it up to the version, "
                           "e.g. http://localhost:8000/v1");
  }
  if (!PartOf(parsed, CURLUPART_USER).empty() || !PartOf(parsed, CURLUPART_PASSWORD).empty()) {
    return InvalidArgument(
        "the URL of the endpoint holds a user name or a password; give the key in an environment "
        "variable, since URLs go into reports");
  }
  return url;
}

// OPENAI_API_KEY is for OpenAI: no other host sees it unless it is named.
bool IsOpenAi(const std::string& url) {
  const ParsedUrl parsed(curl_url(), curl_url_cleanup);
  return curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) == CURLUE_OK &&
         PartOf(parsed, CURLUPART_SCHEME) == "https" &&
         PartOf(parsed, CURLUPART_HOST) == "api.openai.com";
}

Result<std::string> ReadKey(const std::string& variable, const std::string& url) {
  if (variable.empty() && !IsOpenAi(url)) return std::string();
  const std::string name = variable.empty() ? "OPENAI_API_KEY" : variable;
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') {
    if (variable.empty()) return std::string();
    return InvalidArgument("the environment variable ", name,
                           ", which was named for the API key, is not set");
  }
  const std::string key = value;
  for (const char c : key) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7F) {
      return InvalidArgument("the API key in ", name, " holds a blank or a line end");
    }
  }
  return key;
}

// Where certificates of authorities are, as openssl and curl's own command read them; libcurl does
// not by itself. nullptr: the library's own place.
struct CertificatePlaces {
  const char* file = Named("SSL_CERT_FILE");
  const char* folder = Named("SSL_CERT_DIR");

  static const char* Named(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  // What is set, for messages: "SSL_CERT_FILE is 'ca.pem'".
  std::string ToString() const {
    std::string out =
        file == nullptr ? "SSL_CERT_FILE is not set" : StrCat("SSL_CERT_FILE is '", file, "'");
    if (folder != nullptr) out += StrCat(", SSL_CERT_DIR is '", folder, "'");
    return out;
  }
};

bool IsWorthARetry(long http_status) {
  return http_status == 408 || http_status == 429 || http_status >= 500;
}

}  // namespace

struct EndpointResponder::State {
  EndpointOptions options;
  std::string base, key, name;
  CurlHandle curl;
  std::optional<std::string> only_model;  // of GET /models, once it was asked

  struct Answer {
    long http_status = 0;
    std::string body;
    double retry_after = 0;  // seconds; 0: not said
  };
  // One attempt. kUnavailable: nothing came; `*again` tells whether another attempt makes sense.
  Result<Answer> Attempt(const std::string& path, const std::string* body,
                         const std::atomic<bool>* cancel, bool* again);
  Result<ordered_json> Send(const std::string& path, const std::string* body,
                            const std::atomic<bool>* cancel);
  Status Wait(double seconds, const std::atomic<bool>* cancel) const;
  Status ErrorOf(const std::string& url, const Answer& answer) const;
  Status FindModel(const std::atomic<bool>* cancel);
};

EndpointResponder::EndpointResponder(std::unique_ptr<State> state) : state_(std::move(state)) {}
EndpointResponder::~EndpointResponder() = default;

const std::string& EndpointResponder::name() const {
  return state_->name;
}

Result<std::unique_ptr<EndpointResponder>> EndpointResponder::Create(EndpointOptions options) {
  if (!CurlIsReady()) return Unavailable("libcurl could not be started");
  auto state = std::make_unique<State>();
  TQ_ASSIGN_OR_RETURN(state->base, BaseUrl(options.url));
  TQ_ASSIGN_OR_RETURN(state->key, ReadKey(options.api_key_variable, state->base));
  if (options.max_retries < 0 || options.connect_seconds <= 0 || options.timeout_seconds <= 0) {
    return InvalidArgument("endpoint: ", options.max_retries, " retries, ", options.connect_seconds,
                           " s to connect, ", options.timeout_seconds,
                           " s to answer; expected 0 or more retries and times above 0");
  }
  state->name = state->base + (options.model.empty() ? "" : " (" + options.model + ")");
  state->curl.reset(curl_easy_init());
  if (state->curl == nullptr) return ResourceExhausted("libcurl has no memory");
  state->options = std::move(options);
  return std::unique_ptr<EndpointResponder>(new EndpointResponder(std::move(state)));
}

Result<EndpointResponder::State::Answer> EndpointResponder::State::Attempt(
    const std::string& path, const std::string* body, const std::atomic<bool>* cancel,
    bool* again) {
  const std::string url = base + path;
  Transfer transfer;
  transfer.cancel = cancel;
  CURL* const c = curl.get();
  curl_easy_reset(c);  // the connection stays open
  CurlList headers;
  const auto add_header = [&](const std::string& line) {
    if (curl_slist* longer = curl_slist_append(headers.get(), line.c_str())) {
      (void)headers.release();
      headers.reset(longer);
    }
  };
  add_header("Content-Type: application/json");
  add_header("Accept: application/json");
  add_header("Expect:");  // no waiting for "100 Continue"
  if (!key.empty()) add_header("Authorization: Bearer " + key);
  char words[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(c, CURLOPT_URL, url.c_str());
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(c, CURLOPT_USERAGENT, "turboquant");
  if (body != nullptr) {
    curl_easy_setopt(c, CURLOPT_POST, 1L);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body->data());
  }
  curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
  const CertificatePlaces certificates;
  if (certificates.file != nullptr) curl_easy_setopt(c, CURLOPT_CAINFO, certificates.file);
  if (certificates.folder != nullptr) curl_easy_setopt(c, CURLOPT_CAPATH, certificates.folder);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, words);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, OnBytes);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(c, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, std::lround(1000 * options.connect_seconds));
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, std::lround(1000 * options.timeout_seconds));
  const CURLcode code = curl_easy_perform(c);
  *again = false;
  if (IsSet(cancel)) return Cancelled("the request to ", url, " was cancelled");
  if (transfer.too_large) {
    return InvalidArgument(url, " answered with more than ", kMaxResponseBytes, " bytes");
  }
  if (code != CURLE_OK) {
    const std::string why = words[0] != '\0' ? words : curl_easy_strerror(code);
    switch (code) {
      case CURLE_OPERATION_TIMEDOUT:
        return Unavailable(url, " did not answer within ", options.timeout_seconds, " s (",
                           options.connect_seconds, " s to connect): ", why);
      case CURLE_COULDNT_RESOLVE_HOST:
      case CURLE_COULDNT_RESOLVE_PROXY:
      case CURLE_COULDNT_CONNECT:
        return Unavailable("cannot connect to ", url, ": ", why, "; is the server running there?");
      case CURLE_PEER_FAILED_VERIFICATION:
        return Unavailable("no safe connection to ", url, ": ", why,
                           "; the certificate must name the host of the URL, and for one of your "
                           "own SSL_CERT_FILE must name a PEM file with the authority that signed "
                           "it (",
                           certificates.ToString(), ")");
      case CURLE_SSL_CACERT_BADFILE:
        return Unavailable(
            "no safe connection to ", url, ": ", why,
            "; SSL_CERT_FILE must name a readable PEM file of certificates; without "
            "it those of the system count (Debian: apt-get install ca-certificates) (",
            certificates.ToString(), ")");
      case CURLE_SSL_CONNECT_ERROR: return Unavailable("no safe connection to ", url, ": ", why);
      default: *again = true; return Unavailable("the connection to ", url, " broke: ", why);
    }
  }
  Answer answer;
  answer.body = std::move(transfer.body);
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &answer.http_status);
  curl_off_t retry_after = 0;
  curl_easy_getinfo(c, CURLINFO_RETRY_AFTER, &retry_after);
  answer.retry_after = static_cast<double>(retry_after);
  return answer;
}

Status EndpointResponder::State::Wait(double seconds, const std::atomic<bool>* cancel) const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    if (IsSet(cancel)) return Cancelled("waiting for ", base, " was cancelled");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return OkStatus();
}

Status EndpointResponder::State::ErrorOf(const std::string& url, const Answer& answer) const {
  const std::string what =
      StrCat(url, " answered ", answer.http_status, ": ", ServerWords(answer.body, key));
  switch (answer.http_status) {
    case 401:
    case 403:
      return Unavailable(what, key.empty() ? "; no API key was sent: name the variable that "
                                             "holds it (--baseline-key-env, --candidate-key-env)"
                                           : "; the API key was refused");
    case 404:
      return Unavailable(what, "; check the URL (up to the version, e.g. .../v1) and the model");
    default: break;
  }
  if (answer.http_status >= 300 && answer.http_status < 400) {
    return Unavailable(what, "; redirects are not followed: give the final URL");
  }
  if (IsWorthARetry(answer.http_status)) {
    return Unavailable(what, " (after ", options.max_retries, " retries)");
  }
  return InvalidArgument(what);
}

Result<ordered_json> EndpointResponder::State::Send(const std::string& path,
                                                    const std::string* body,
                                                    const std::atomic<bool>* cancel) {
  const std::string url = base + path;
  double wait = options.backoff_seconds;
  for (int attempt = 0;; ++attempt, wait *= 2) {
    bool again = false;
    Result<Answer> answer = Attempt(path, body, cancel, &again);
    const bool last = attempt >= options.max_retries;
    if (!answer.ok()) {
      if (!again || last) return answer.status();
      TQ_RETURN_IF_ERROR(Wait(std::min(wait, kMostWaitSeconds), cancel));
      continue;
    }
    if (answer->http_status == 200) {
      Result<ordered_json> json = ParseJson<ordered_json>(answer->body, url);
      if (json.ok()) return json;
      return InvalidArgument(url,
                             " answered with what is not JSON: ", ServerWords(answer->body, key));
    }
    if (!IsWorthARetry(answer->http_status) || last) return ErrorOf(url, *answer);
    if (answer->retry_after > kMostWaitSeconds) {
      return Unavailable(url, " answered ", answer->http_status, " and asks to wait ",
                         answer->retry_after, " s; try again then");
    }
    TQ_RETURN_IF_ERROR(Wait(
        answer->retry_after > 0 ? answer->retry_after : std::min(wait, kMostWaitSeconds), cancel));
  }
}

Status EndpointResponder::State::FindModel(const std::atomic<bool>* cancel) {
  if (only_model) return OkStatus();
  TQ_ASSIGN_OR_RETURN(const ordered_json models, Send("/models", nullptr, cancel));
  std::vector<std::string> ids;
  if (models.is_object() && models.contains("data") && models["data"].is_array()) {
    for (const ordered_json& model : models["data"]) {
      if (model.is_object() && model.contains("id") && model["id"].is_string()) {
        ids.push_back(model["id"].get<std::string>());
      }
    }
  }
  if (ids.size() != 1) {
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(ids.size(), 10); ++i)
      list += (i > 0 ? ", " : ": ") + ids[i];
    return Unavailable(base, "/models names ", ids.size(), " models", list,
                       "; say which one to ask");
  }
  only_model = ids.front();
  name = base + " (" + *only_model + ")";
  return OkStatus();
}

Result<ordered_json> EndpointResponder::Respond(const ordered_json& request,
                                                const std::atomic<bool>* cancel) {
  if (!request.is_object() || request.contains("messages") == request.contains("prompt")) {
    return InvalidArgument("a request needs either messages or a prompt");
  }
  ordered_json sent = request;
  sent.erase("stream");
  sent.erase("stream_options");
  if (!state_->options.model.empty()) {
    sent["model"] = state_->options.model;
  } else if (!sent.contains("model") || !sent["model"].is_string()) {
    TQ_RETURN_IF_ERROR(state_->FindModel(cancel));
    sent["model"] = *state_->only_model;
  }
  const std::string body = sent.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return state_->Send(request.contains("messages") ? "/chat/completions" : "/completions", &body,
                      cancel);
}

}  // namespace tq
