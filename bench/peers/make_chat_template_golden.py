#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: chats and snippets as jinja2 renders them.

usage: make_chat_template_golden.py MODEL.gguf [OUT.json]

Needs: pip install jinja2 gguf. The environment is set up as Hugging Face transformers does for
chat templates (sandbox, trim_blocks, lstrip_blocks, its own tojson), without tools.
"""
import datetime
import json
import sys

import gguf
import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3_STYLE = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
    {%- set rest = messages %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in rest %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("This style has no " ~ message.role ~ " messages") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_STYLE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING_STYLE = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set offset = 1 %}{% else %}{% set offset = 0 %}{% endif %}
{% for message in messages[offset:] %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ (messages[0]['content'] + '\\n\\n' if loop.first and offset else '') + message['content'] }} [/INST]
    {% else %}
 {{ message['content'].strip() }}{{ eos_token }}
    {% endif %}
{% endfor %}
"""

GEMMA_STYLE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Turns of user and model take turns") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

PHI3_STYLE = """\
{% for message in messages %}{% if message['role'] in ['system', 'user', 'assistant'] %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}
"""

# Macros that call each other, defaults, the day.
HARMONY_STYLE = """\
{%- macro render_list(items, sep=", ", limit=none) -%}
    {%- for item in items -%}
        {%- if limit is none or loop.index0 < limit -%}{{ item }}{{ sep if not loop.last }}{%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{%- macro build_system_message(effort) -%}
    {{- "Knowledge cutoff: 2024-06\\n" }}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {{- "Reasoning: " + effort + "\\n\\n# Valid channels: " + render_list(["analysis", "final"]) + "." }}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "<|start|>system<|message|>" }}
{{- build_system_message(reasoning_effort) }}
{{- "<|end|>" }}
{%- set ns = namespace(last=none) %}
{%- for message in messages -%}
    {%- if message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- set ns.last = message.content %}
    {%- elif message.role in ("user", "system") %}
        {{- "<|start|>" + ("developer" if message.role == "system" else "user") + "<|message|>" + message.content|tojson + "<|end|>" }}
    {%- else %}
        {{- raise_exception("Unknown role " ~ message.role) }}
    {%- endif -%}
{%- endfor -%}
{{- render_list(["a", "b", "c"], limit=2, sep="/") }}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
"""

TURNS = {
    "user": [("user", "Hello")],
    "system and user": [("system", "Be brief."), ("user", "  What is 2 + 2?  ")],
    "three turns": [("user", "Hi"), ("assistant", " Hello! "), ("user", "Count:\n1\n2\n")],
    "system, four turns": [("system", "You are\nkind."), ("user", "a"), ("assistant", "b"), ("user", "c"),
                           ("assistant", "<think>\nhm\n</think>\n\nd")],
    "markup": [("user", "<|im_start|>system\n{{ 7 * 7 }}{% if %}\u2029\U0001f468\u200d\U0001f469 \"'\\")],
    "empty content": [("system", ""), ("user", "")],
    "two users": [("user", "a"), ("user", "b")],
    "tool": [("user", "a"), ("tool", "b")],
    "assistant first": [("assistant", "a")],
    "no messages": [],
}

# Rendered with the messages of "system and user", bos "<s>" and eos "</s>".
SNIPPETS = [
    "", "\n", "\n\n", "plain\n", "a\r\nb\rc\n", "{", "{ {", "}}", "%}", "{{ 1 }}\n", "{{ 1 }}\n\n",
    # Whitespace
    "  {% if true %}\n  x\n  {% endif %}\n  y", "a {%- if true -%}  b  {%- endif -%} c", "a{#- c -#} b", "a\n  {# c #}\n b",
    "a {# c #} b\n", "x\n   {%+ if true %}y{% endif +%}\nz", "{% if true %}\n\n\nx{% endif %}", "{{- 1 -}}  \n 2", "  {{- ' a ' -}}  b",
    "{% if true -%}\n\t \u2003x{%- endif %}", "a\n\t{% set x = 1 %}\n{{ x }}\n", "a  {% set x = 1 %}  b", "{% for i in [1,2] %}\n{{ i }}\n{% endfor %}\nend\n",
    "{%- for i in [1,2] %}\n  {{- i }}\n{%- endfor %}", "{% if true %}  {% if true %}x{% endif %}{% endif %}", "{# a #}\n{# b #}\n  {# c #}x", "\\n{{ '\\n' }}|",
    # Literals
    "{{ 'a' 'b' }}", "{{ \"it's\" }}", "{{ 'tab\\there \\x41 \\u00e9 \\U0001f600 \\' \\\\ \\q' }}", "{{ 1_000 }}", "{{ 1.5 }} {{ 2.0 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 1e22 }}",
    "{{ true }} {{ False }} {{ none }} {{ None }}", "{{ [1, 'a', none, true, 1.0] }}", "{{ [] }} {{ {} }} {{ {'a': [1, {'b': 2}]} }}", "{{ [\"it's\", 'say \"x\"', 'a\\nb\\\\'] }}",
    "{{ ('a') }} {{ [1,] }}", "{{ {'a': 1, 'a': 2} }}",
    # Arithmetic
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}", "{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ 2 ** 3 ** 2 }}",
    "{{ 1.5 + 1 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 3 * 1.0 }}", "{{ true + 1 }}", "{{ 'ab' * 3 }}|{{ 'ab' * 0 }}|{{ 'ab' * -1 }}", "{{ 'a' + 'b' ~ 1 ~ none ~ true }}", "{{ 1 ~ 2 + 3 }}", "{{ [1] + [2, 3] }}",
    "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 'a' + 1 }}", "{{ -'a' }}", "{{ +5 }} {{ - -5 }}", "{{ 1 - -1 }}",
    # Comparison and logic
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 'a' == 1 }} {{ [1] == [1.0] }} {{ {'a': 1} == {'a': 1} }}",
    "{{ 'a' in 'abc' }} {{ 'd' not in 'abc' }} {{ 1 in [1] }} {{ 'role' in messages[0] }} {{ '' in 'a' }} {{ none in [none] }}", "{{ 1 in 'a' }}", "{{ 1 in 5 }}", "{{ 1 < 'a' }}", "{{ none < 1 }}",
    "{{ not true }} {{ not not 1 }} {{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or [] or none }} {{ not 1 == 2 }} {{ not 'a' in 'b' }}", "{{ 'y' if 1 else 'n' }} {{ 'y' if 0 }}| {{ 1 if 0 else 2 if 0 else 3 }}",
    "{{ 1 if x is defined else 2 }} {{ 1 if messages is defined and messages else 2 }}", "{{ 1 or 2 if 0 else 3 }}",
    # Undefined
    "{{ x }}|{{ x ~ 'a' }}|{{ x == y }}|{{ x == none }}|{{ not x }}|{{ x or 1 }}", "{{ x.y }}", "{{ x['y'] }}", "{{ x + 1 }}", "{{ x < 1 }}", "{{ x() }}", "{{ x.f() }}", "{{ messages[0].nothing }}|", "{{ messages[0].nothing.more }}", "{{ messages[9] }}|",
    "{{ messages[9].role }}", "{% for i in x %}a{% else %}b{% endfor %}", "{{ x|length }} {{ x|trim }}| {{ x|default('d') }} {{ x|d }}| {{ none|default('d') }} {{ none|default('d', true) }} {{ ''|default('d', boolean=true) }}", "{{ 1 in x }}", "{{ x[1:] }}", "{{ none.x }}|{{ 1.x }}|", "{{ none.x.y }}", "{{ 'abc'.x }}|{{ 'abc'['x'] }}|",
    # Subscripts
    "{{ 'h\u00e9llo'[1] }} {{ 'hello'[-1] }} {{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[:-1] }} {{ 'hello'[-3:] }} {{ 'hello'[::2] }} {{ 'hello'[10:] }}|{{ 'hello'[3:1] }}|{{ 'hello'[4:1:-2] }}",
    "{{ [1,2,3][1:] }} {{ [1,2,3][::-1] }} {{ [1,2,3][-2] }} {{ [1,2,3][5] }}| {{ [1,2,3][:2] }} {{ [1,2,3][none:none:none] }} {{ [1,2,3].1 }}", "{{ [1,2][::0] }}", "{{ 5[1:] }}", "{{ [1]['a':] }}", "{{ messages[-1].content }} {{ messages[0]['role'] }} {{ messages[true].role }}", "{{ {'a': {'b': [5]}}.a.b[0] }} {{ {'a b': 1}['a b'] }}", "{{ [1,2,3][9999999999:] }} {{ [1,2,3][-9999999999:9999999999:9999999999] }}",
    # Filters
    "{{ '  a b\u2003\\n'|trim }}| {{ 'xxaxx'|trim('x') }}", "{{ messages|tojson }}", "{{ messages|tojson(indent=2) }}", "{{ {'a': [], 'b': {}, 'c': [1, 2.5, true, none, '\u00e9\\n\\t\"\\\\\\x01<>&\\'']}|tojson }}", "{{ [[], {}, [1]]|tojson(indent=4) }}", "{{ x|tojson }}", "{{ 'a'|tojson(ensure_ascii=false) }}",
    "{{ 'abc'|length }} {{ '\u00e9\U0001f600'|length }} {{ messages|count }} {{ {'a': 1}|length }}", "{{ 5|length }}", "{{ 'aBc'|upper }} {{ 'aBc'|lower }} {{ 'aBc dEf'|capitalize }}", "{{ [3,1,2]|first }} {{ [3,1,2]|last }} {{ []|first }}| {{ 'abc'|first }} {{ 'abc'|last }}", "{{ [1,'a',none]|join(', ') }} {{ 'abc'|join('-') }} {{ messages|join('/', attribute='role') }} {{ []|join }}|",
    "{{ 'aXbXc'|replace('X', '--') }} {{ 'aaa'|replace('a', 'b', 2) }}", "{{ 'ab'|list }} {{ {'a': 1, 'b': 2}|list }}", "{{ ({'a': 1, 'b': 2}|items|list)[1][0] }}", "{{ [1,2]|reverse|list }} {{ 'abc'|reverse }}", "{{ '12'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ -3.9|int }} {{ ' 5 '|int }}", "{{ -5|abs }} {{ (-2.5)|abs }}", "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}",
    "{{ messages|map(attribute='role')|join(',') }}", "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ (messages|selectattr('role', 'eq', 'system')|first).content }} {{ messages|rejectattr('role', 'ne', 'user')|map(attribute='content')|list }} {{ messages|selectattr('nothing')|list }} {{ messages|selectattr('role', 'in', ['user'])|list|count }}", "{{ [1,2,3,4]|select('odd')|list }} {{ [1,2,3,4]|reject('divisibleby', 2)|list }} {{ ['a','b']|reject('equalto', 'a')|list }} {{ [0,1,'']|select|list }} {{ ['a']|reject('in', ['a'])|list }}", "{{ none|selectattr('a')|list }} {{ none|map(attribute='a')|list }}", "{{ 'a'|string ~ 5|string }} {{ 'x'|safe }}", "{{ 'a' ~ 'B'|lower ~ 'C' }}", "{{ '-a-'|trim('-')|upper|lower }}",
    "{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'a', 'B']|sort }} {{ ['b', 'A', 'a']|sort(case_sensitive=true) }} {{ [1, 2.5, true]|sort(reverse=true) }} {{ []|sort }} {{ 'cab'|sort }}", "{{ messages|sort(attribute='role')|map(attribute='role')|list }}", "{{ [1, 'a']|sort }}", "{{ [none, 1]|sort }}",
    "{% for k, v in {'b': 1, 'A': 2, 'c': 0}|dictsort %}{{ k }}{{ v }} {% endfor %}{{ ({'b': 1, 'A': 2}|dictsort(false, 'value'))[0][0] }}{{ ({'b': 1, 'a': 2}|dictsort(reverse=true)|first)[0] }}{{ ({'b': 1, 'A': 2, 'a': 0}|dictsort(true)|last)[0] }}", "{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}={{ v }};{% endfor %}", "{{ 1|dictsort }}", "{{ ['a', 'A', 'b', 'a']|unique|list }} {{ [1, 1.0, 2]|unique|list }} {{ messages|unique(attribute='role')|list|length }}", "{{ [3, 1, 2]|min }} {{ [3, 1, 2]|max }} {{ ['b', 'A']|min }} {{ ['b', 'C']|max(case_sensitive=true) }} {{ []|min }}|",
    # Tests
    "{{ 1 is defined }} {{ x is undefined }} {{ x is not defined }} {{ none is none }} {{ 'a' is string }} {{ 1 is string }} {{ 1 is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }}",
    "{{ messages[0] is mapping }} {{ messages is mapping }} {{ messages is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ x is iterable }} {{ messages is sequence }} {{ 'a' is sequence }} {{ 5 is sequence }}", "{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 1 is in [1] }} {{ 1 is not in [1] }}", "{{ not x is defined }} {{ x is defined or true }} {{ tools is none }} {{ documents is not none }}",
    # Statements
    "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% else %}d{% endif %}", "{% for i in range(3) %}{{ i }}{{ ',' if not loop.last }}{% endfor %}", "{% for i in range(5, 0, -2) %}{{ i }} {{ loop.index }}/{{ loop.length }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }};{% endfor %}", "{% for i in [] %}a{% else %}b{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}", "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in [1,2] %}{% for j in [3,4] %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }}|{% endfor %}", "{% for c in 'h\u00e9' %}{{ c }}.{% endfor %}", "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, b in [[1]] %}{% endfor %}",
    "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set ns = namespace(a=1, b='x') %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}", "{% set y = 5 %}{% set y.z = 1 %}", "{% set block %}a{{ 1 }}b{% endset %}[{{ block }}]", "{% generation %}said{% endgeneration %}",
    "{% for i in [1] %}{% set z = 1 %}{% endfor %}{{ z }}|{{ i }}|", "{% set loop = 5 %}{{ loop }}",
    # Methods
    "{{ ' a '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ '\u00e9a\u00e9'.strip('\u00e9') }}|{{ '\\n\\na'.lstrip('\\n') }}", "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ ''.startswith('') }}", "{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b\\tc '.split() }} {{ 'a b c'.split(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a</t>b'.split('</t>')[-1] }}",
    "{{ 'aBc'.upper() }}{{ 'aBc'.lower() }}{{ 'aBC'.capitalize() }}", "{{ 'aXbX'.replace('X', '') }} {{ 'aXbX'.replace('X', 'y', 1) }}", "{{ ', '.join(['a', 'b']) }}", "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }}", "{{ 'prefix-a'.removeprefix('prefix-') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'a'.removeprefix('b') }}",
    "{{ messages[1].content.strip().split(' ')[0] }}", "{{ raise_exception('no ' + 'way') }}", "{{ bos_token + eos_token }} {{ add_generation_prompt }}",
    # Macros
    "{% macro f(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='y') }}{{ f(b=0, a=9) }}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ f() }}",
    "{% macro f() %}{{ i }}|{% endmacro %}{% for i in [1, 2] %}{{ f() }}{% endfor %}", "{% macro f() %}{% set z = 1 %}{% endmacro %}{{ f() }}{{ z }}|", "{% set r = f(1) if f is defined else 'none' %}{{ r }}{% macro f(a) %}{{ a }}{% endmacro %}{{ f is defined }}",
    "{% macro f(a) %}{% for i in a %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{% endmacro %}{% for k in [1, 2] %}{{ f([1, 2, 3]) }}{% endfor %}", "{% macro f(a) -%}  {{ a }}  {%- endmacro %}<{{ f('x') | upper }}>", "{% macro f(a) %}{{ a }}{% endmacro f %}{{ f(messages[0].content ~ '!') }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=1) }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f( %}{% endmacro %}", "{% macro f(a) %}", "{% endmacro %}", "{{ range is defined }} {{ strftime_now is defined }} {{ namespace is undefined }}",
    # Syntax errors
    "{% if %}x{% endif %}", "{% if true %}x", "{% endif %}", "{{ 1", "{{ }}", "{{ 'a }}", "{# a", "{% for x %}{% endfor %}", "{{ (1 }}", "{{ 1) }}", "{% set = 1 %}", "{% set x %}", "{{ a b }}", "{{ 1 + }}", "{{ a. }}", "{% if true %}{% else %}{% elif 1 %}{% endif %}", "{{ [1 2] }}", "{{ {'a' 1} }}", "{{ a[ }}", "{{ ? }}", "{{ a is }}", "{{ a | }}", "{% break %}",
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        """{% generation %}: prints its body."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def render(env, source, turns, add_generation_prompt):
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = env.from_string(source).render(messages=messages, add_generation_prompt=add_generation_prompt,
                                              bos_token="<s>", eos_token="</s>", tools=None, documents=None)
        return {"text": text}
    except (jinja2.exceptions.TemplateError, SyntaxError, TypeError, ValueError,
            ZeroDivisionError, AttributeError) as error:
        return {"error": str(error)}


def main():
    model = sys.argv[1]
    out = sys.argv[2] if len(sys.argv) > 2 else "tests/golden/chat_templates.json"
    smollm2 = gguf.GGUFReader(model).fields["tokenizer.chat_template"].contents()
    env = environment()
    lines = []
    templates = {"smollm2": smollm2, "chatml": CHATML, "llama3 style": LLAMA3_STYLE, "qwen style": QWEN_STYLE,
                 "alternating style": ALTERNATING_STYLE, "gemma style": GEMMA_STYLE, "phi3 style": PHI3_STYLE,
                 "harmony style": HARMONY_STYLE}
    # The one template that asks for the day is rendered at noon of a fixed one.
    timed = environment()
    timed.globals["strftime_now"] = datetime.datetime(2026, 11, 3, 12, 34, 56).strftime
    for name, source in templates.items():
        for turns in TURNS.values():
            for prompt in (False, True):
                case = {"template": name, "messages": turns, "prompt": prompt}
                at_noon = name == "harmony style"
                lines.append({**case, **({"now": True} if at_noon else {}),
                              **render(timed if at_noon else env, source, turns, prompt)})
    for source in SNIPPETS:
        turns = TURNS["system and user"]
        lines.append({"source": source, "messages": turns, "prompt": True, **render(env, source, turns, True)})
    head = {
        "about": "chats rendered by jinja2, made by bench/peers/make_chat_template_golden.py",
        "jinja2": jinja2.__version__,
        "templates": templates,
    }
    with open(out, "w", encoding="ascii") as f:
        f.write(json.dumps(head)[:-1] + ',\n"cases": [\n' + ",\n".join(map(json.dumps, lines)) + "\n]}\n")
    json.load(open(out, encoding="ascii"))
    errors = sum("error" in line for line in lines)
    print(f"{out}: {len(lines)} cases, {errors} of them errors, jinja2 {jinja2.__version__}")


if __name__ == "__main__":
    main()
