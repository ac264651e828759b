// Chats and snippets equal to jinja2's (golden file); limits; errors that name the line.
#include "runtime/tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "turboquant/base/file.h"

namespace tq {
namespace {

Result<std::string> RenderOnce(const std::string& source,
                               const std::vector<ChatMessage>& messages = {{"user", "Hi"}}) {
  TQ_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Parse(source));
  return chat.Render(messages, true, "<s>", "</s>");
}

TEST(ChatTemplate, EqualsTheReference) {
  const Result<std::string> golden = ReadFile(TQ_SOURCE_DIR "/tests/golden/chat_templates.json");
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  const auto json = nlohmann::json::parse(*golden, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object());
  size_t num_cases = 0, num_errors = 0;
  for (const auto& entry : json["cases"]) {
    const std::string source = entry.contains("source")
                                   ? entry["source"].get<std::string>()
                                   : json["templates"][entry["template"]].get<std::string>();
    std::vector<ChatMessage> messages;
    for (const auto& message : entry["messages"]) messages.push_back({message[0], message[1]});
    const Result<ChatTemplate> chat = ChatTemplate::Parse(source);
    const std::tm noon = {.tm_sec = 56,
                          .tm_min = 34,
                          .tm_hour = 12,
                          .tm_mday = 3,
                          .tm_mon = 10,
                          .tm_year = 126,
                          .tm_wday = 2,
                          .tm_yday = 306,
                          .tm_isdst = 0,
                          .tm_gmtoff = 0,
                          .tm_zone = nullptr};
    const Result<std::string> got = chat.ok()
                                        ? chat->Render(messages, entry["prompt"], "<s>", "</s>",
                                                       entry.contains("now") ? &noon : nullptr)
                                        : Result<std::string>(chat.status());
    if (entry.contains("error")) {
      ++num_errors;
      EXPECT_FALSE(got.ok()) << source << " gave " << *got << "; expected " << entry["error"];
    } else {
      ASSERT_TRUE(got.ok()) << source << ": " << got.status().ToString();
      EXPECT_EQ(*got, entry["text"].get<std::string>()) << source;
    }
    ++num_cases;
  }
  EXPECT_GE(num_cases, 250u);
  EXPECT_GE(num_errors, 40u);
}

void ExpectError(const std::string& source, StatusCode code, const std::string& message) {
  const Status status = RenderOnce(source).status();
  EXPECT_EQ(status.code(), code) << source << ": " << status.ToString();
  EXPECT_EQ(status.message(), "chat template: " + message) << source;
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto invalid = StatusCode::kInvalidArgument;
  ExpectError("a\nb {{ 1 + }}", invalid, "line 2: expected an expression, found }}");
  ExpectError("{% if true %}\n\nx", invalid, "line 1: the block that begins here has no endif");
  ExpectError("\n{% endfor %}", invalid, "line 2: 'endfor' closes no open block");
  ExpectError("\n\n{{ x.y }}", invalid, "line 3: 'x' is undefined");
  ExpectError("{{ messages[0].thing.more }}", invalid,
              "line 1: a value of kind dict has no 'thing'");
  ExpectError("{{ 'a' + 1 }}", invalid,
              "line 1: values of kind string and integer cannot be combined by +");
  ExpectError("{{ raise_exception('Roles must alternate') }}", invalid,
              "the chat template refuses these messages: Roles must alternate");
  ExpectError("{{ 'a }}", invalid, "line 1: a string is not closed");
  ExpectError("{{ 1", invalid, "line 1: a tag is not closed by }}");
  ExpectError("{% break %}", invalid, "line 1: 'break' outside of a loop");
}

TEST(ChatTemplate, NamesWhatIsNotSupported) {
  const auto unsupported = StatusCode::kUnsupported;
  ExpectError("\n{% import 'x' as y %}", unsupported,
              "line 2: 'import' is not supported; supported tags: if, for, set, macro, break, "
              "continue");
  ExpectError("{{ 1 | frobnicate }}", unsupported, "line 1: filter 'frobnicate' is not supported");
  ExpectError("{{ 1 is sameas 1 }}", unsupported, "line 1: test 'sameas' is not supported");
  ExpectError("{% raw %}{{{% endraw %}", unsupported, "line 1: 'raw' is not supported");
  ExpectError("{{ '\xC3\xA4' | upper }}", unsupported,
              "line 1: changing the case of letters that are not ASCII");
  EXPECT_NE(RenderOnce("{{ 'a'.format(1) }}")
                .status()
                .message()
                .find("method 'format' of a string is not supported; supported: "),
            std::string::npos);
}

TEST(ChatTemplate, MacrosAreBounded) {
  ExpectError("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", StatusCode::kInvalidArgument,
              "line 1: blocks, expressions and macro calls nest more than 400 deep");
  const std::string twice =
      "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}xxxxxxxxxxxxxxxx"
      "{% endmacro %}{{ f(23) }}";
  EXPECT_NE(RenderOnce(twice).status().message().find("more work or writes more text"),
            std::string::npos);
}

TEST(ChatTemplate, TheDayIsTheCallers) {
  const auto chat =
      ChatTemplate::Parse("{{ strftime_now('%Y') if strftime_now is defined else 'no' }}");
  ASSERT_TRUE(chat.ok());
  std::tm now = {};
  now.tm_year = 101;
  EXPECT_EQ(*chat->Render({}, false), "no");
  EXPECT_EQ(*chat->Render({}, false, "", "", &now), "2001");
  const auto long_format = ChatTemplate::Parse("{{ strftime_now('%c' * 60) }}");
  EXPECT_NE(long_format->Render({}, false, "", "", &now).status().message().find("at most 100"),
            std::string::npos);
}

TEST(ChatTemplate, HasNoWayOut) {
  for (const char* source :
       {"{{ ''.__class__ }}", "{{ messages.__class__.__mro__ }}", "{{ ''['__class__']['x'] }}",
        "{{ namespace.__init__ }}", "{{ self.x }}", "{{ ''.__class__() }}", "{{ range(10**9) }}",
        "{{ raise_exception.x }}", "{{ messages.append(1) }}"}) {
    const Result<std::string> got = RenderOnce(source);
    EXPECT_TRUE(!got.ok() || got->empty()) << source << " gave " << *got;
  }
}

TEST(ChatTemplate, WorkIsBounded) {
  const std::string limit = "the template does more work or writes more text than is allowed";
  const std::string loops =
      "{% for a in range(90000) %}{% for b in range(90000) %}{{ b }}{% endfor %}{% endfor %}";
  const std::string doubling =
      "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}"
      "{% endfor %}";
  const std::string shared =
      "{% set ns = namespace(x=['abcdefgh']) %}{% for i in range(60) %}"
      "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}";
  const std::string deep =
      "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  for (const std::string& source : {loops, doubling, std::string("{{ 'ab' * 4000000000 }}")}) {
    const Status status = RenderOnce(source).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << source;
    EXPECT_NE(status.message().find(limit), std::string::npos) << status.ToString();
  }
  EXPECT_NE(RenderOnce(shared).status().message().find("holds more than 268435456 bytes"),
            std::string::npos);
  EXPECT_NE(RenderOnce(deep).status().message().find("lists nest more than 64 deep"),
            std::string::npos);
  EXPECT_NE(RenderOnce("{{ range(100002) }}").status().message().find("longer than 100000"),
            std::string::npos);
  EXPECT_EQ(RenderOnce("{% set ns = namespace() %}{% set ns.x = ns %}").status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(RenderOnce("{% set ns = namespace() %}{% set ns.x = [ns] %}").status().code(),
            StatusCode::kUnsupported);
}

TEST(ChatTemplate, RecursionIsBoundedWhateverNestsInIt) {
  const auto repeat = [](const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += s;
    return out;
  };
  const auto recurse = [&](const char* begin, const char* end, const char* before,
                           const char* after, int nest) {
    return "{% macro f() %}" + repeat(begin, nest) + "{{ " + repeat(before, nest) + "f()" +
           repeat(after, nest) + " }}" + repeat(end, nest) + "{% endmacro %}{{ f() }}";
  };
  std::vector<std::string> sources = {
      recurse("{% for x in [1] %}", "{% endfor %}", "", "+1", 146),  // the parser takes 150
  };
  const std::pair<const char*, const char*> blocks[] = {{"{% for x in [1] %}", "{% endfor %}"},
                                                        {"{% if true %}", "{% endif %}"},
                                                        {"{% set y %}", "{% endset %}"}};
  const std::pair<const char*, const char*> expressions[] = {
      {"", "+1"},   {"[", "]"},   {"{'a': ", " }"}, {"", "[0]"},      {"", "[1:2:3]"},
      {"-", ""},    {"not ", ""}, {"", "|trim"},    {"", ".strip()"}, {"(1 if ", " else 2)"},
      {"0 or ", ""}};
  for (const auto& [begin, end] : blocks) {
    for (const auto& [before, after] : expressions) {
      sources.push_back(recurse(begin, end, before, after, 40));
    }
  }
  for (const std::string& source : sources) {
    const std::string message = RenderOnce(source).status().message();
    EXPECT_NE(message.find("nest more than 400 deep"), std::string::npos)
        << source << ": " << message;
  }
}

TEST(ChatTemplate, NestingIsBounded) {
  const auto repeat = [](const std::string& s, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += s;
    return out;
  };
  for (const size_t n : {1000, 100000}) {
    for (const std::string& source :
         {"{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}", "{{ " + repeat("not ", n) + "1 }}",
          "{{ " + repeat("-", n) + "1 }}", "{{ 1" + repeat("+1", n) + " }}",
          "{{ a" + repeat(".a", n) + " }}", "{{ a" + repeat("|trim", n) + " }}",
          "{{ " + repeat("[", n) + repeat("]", n) + " }}", repeat("{% if 1 %}", n),
          "{{ " + repeat("1 if 1 else ", n) + "1 }}", "{{ " + repeat("{'a':", n) + " }}"}) {
      EXPECT_EQ(RenderOnce(source).status().code(), StatusCode::kInvalidArgument);
    }
  }
  EXPECT_EQ(RenderOnce("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}")
                .status()
                .code(),
            StatusCode::kOk);
  const Status large = ChatTemplate::Parse(std::string((1 << 20) + 1, ' ')).status();
  EXPECT_EQ(large.message(),
            "chat template: the template has 1048577 bytes; at most 1048576 are allowed");
}

TEST(ChatTemplate, LongChatsFit) {
  const Result<ChatTemplate> chat = ChatTemplate::Parse(
      "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] | trim }}"
      "{% endfor %}");
  ASSERT_TRUE(chat.ok());
  const std::vector<ChatMessage> messages(10000, {"user", std::string(1000, 'x')});
  const Result<std::string> got = chat->Render(messages, false);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->size(), 10000u * 1006);
}

TEST(ChatTemplate, ContentIsNeverATemplate) {
  EXPECT_EQ(*RenderOnce("{{ messages[0].content }}", {{"user", "{{ 7 * 7 }}\xff\0"}}),
            "{{ 7 * 7 }}\xff");
}

TEST(ChatTemplate, MovesAndRendersAgain) {
  Result<ChatTemplate> parsed = ChatTemplate::Parse("{% set n = messages|length %}{{ n }}");
  ASSERT_TRUE(parsed.ok());
  const ChatTemplate chat = *std::move(parsed);
  EXPECT_EQ(*chat.Render({{"user", "a"}}, false), "1");
  EXPECT_EQ(*chat.Render({{"user", "a"}, {"assistant", "b"}}, false), "2");
}

}  // namespace
}  // namespace tq
