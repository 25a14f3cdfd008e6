"""Makes cases.json: chat templates rendered by Jinja 2 itself, set up as `transformers` sets it up.

Run with jinja2 3.1: python make.py
The templates are written here, in the manner of the families that they are named after.
"""

import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from families import FAMILIES, WITH_TOOLS

NOW = datetime.datetime(2024, 7, 26, 0, 0, 0)
START, END = "\ue000", "\ue001"


class Generation(Extension):
    """`{% generation %}` blocks, whose results are put between two marks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = nodes.CallBlock(self.call_method("_mark"), [], [], body)
        return call.set_lineno(line)

    def _mark(self, caller):
        return START + caller() + END


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


ENV = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
)
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = lambda form: NOW.strftime(form)

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}

{#- The system message comes first, with the date. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}
{% else %}
{% set loop_messages = messages %}
{% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}
{% set content = message['content'] %}
{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ ' '  + content.strip() + ' ' + eos_token }}
{% endif %}
{% endfor %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
    "supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}"
    "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>'"
    " + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
THINKING = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
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
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
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
GENERATION = """{% for message in messages %}
{% if message.role == 'assistant' %}
<|assistant|>
{% generation %}
{{ message.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
<|{{ message.role }}|>
{{ message.content }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""
MACROS = """{%- macro turn(role, text='', end='<end>') -%}
<{{ role }}>{{ text|trim }}{{ end }}
{%- endmacro -%}
{%- for m in messages if m.role != 'system' -%}
{{ turn(m.role, text=m.content) }}
{% else -%}
nobody
{%- endfor -%}
{%- if tools %}{{ tools|tojson(indent=2) }}{% endif %}
"""
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "llama2": LLAMA2,
    "gemma": GEMMA,
    "thinking": THINKING,
    "generation": GENERATION,
    "macros": MACROS,
}

USER = {"role": "user", "content": "  What is 2 + 2? \U0001f980 "}
MODEL = {"role": "assistant", "content": "It is 4,\nI think.\n"}
CONVERSATIONS = {
    "one": [USER, MODEL],
    "open": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER, MODEL],
    "long": [USER, MODEL, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}],
    "twice": [USER, USER],
    "tool": [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": {"b": [1, 2.5], "a": "\u00e9\"\n"}}}],
        },
        {"role": "tool", "content": "4"},
        MODEL,
    ],
}

# Short expressions that cover the features of the template language.
SMALL = """{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** 3 ** 2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x', none] ~ {'k': 'v', "it's": 2} }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'cat' }} {{ 'k' in {'k': 1} }} {{ 3 not in [1, 2] }} {{ not 1 == 2 }}
{{ 'x' if false }}|{{ 'x' if false else 'y' }}|{{ missing }}|{{ missing is defined }}|{{ {}.missing is undefined }}
{{ [1, 2, 3][::-1] }} {{ 'hello'[1:3] }} {{ 'hello'[-3:] }} {{ [1, 2, 3][1:][0] }} {{ 'hello'[::-2] }} {{ [1,2,3,4][3:0:-1] }} {{ [1,2,3][-9:9] }}
{{ ' a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'xxaxx'.strip('x') }} {{ 'a-b'.replace('-', '+') }}
{{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ 'hello' | upper }} {{ ' x ' | trim }}. {{ 'abc' | length }} {{ [3, 4] | first }} {{ 'abc' | last }}
{{ ['a', 'b'] | join(', ') }} {{ [{'n': 'a'}, {'n': 'b'}] | map(attribute='n') | join('-') }} {{ [1, 2] | map('string') | list }}
{{ [{'n': 1}, {'n': 0}, {'n': 2}] | selectattr('n') | list | length }} {{ [{'n': 1}, {'n': 2}] | selectattr('n', 'equalto', 2) | map(attribute='n') | first }} {{ [1, none, 2] | reject('none') | list }}
{{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('e') }} {{ 5 | string + '6' }} {{ '12' | int + 1 }} {{ '1.5' | float }} {{ 'q' | int }}
{{ {'b': 1, 'a': [true, none, 1.5, "q\\"\\u00e9\\n"]} | tojson }} {{ [] | tojson(indent=4) }} {{ {'a': [1, {}]} | tojson(indent=2) }}
{% for k, v in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ k }}={{ v }}{{ ';' if not loop.last }}{% endfor %}
{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index0 }}:{{ x }}/{{ loop.length }} {% endfor %}
{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1) %}{% for i in range(1, 7, 2) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% set a, b = 'p', 'q' %}{{ b }}{{ a }}{% set block %}in {{ a }}{% endset %}[{{ block }}]{% filter upper %}up {{ a }}{% endfilter %}
{% raw %}{{ not this }}{% endraw %} {{ '{{' }} {{ "a\\tb" 'c' }} {{ 'it\\'s' }} {# gone #}.
{{ 1.0 }} {{ 1e3 if false else 0.1 }} {{ 100000000000000000.0 }} {{ 0.00001 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }} {{ none is none }} {{ 'x' is string }} {{ 3 is divisibleby 3 }} {{ 4 is not odd }}
{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 7) }} {% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {{ {'a': 1}.keys() | list }} {{ [1] + [2] }} {{ 'ab' * 3 }} {{ [0] * 2 }}
{{ 'a\\nb' | indent(2) }} {{ 'a\\nb' | indent(2, true) }} {{ -3 | abs }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }} {{ (1, 2)[1] }} {{ [[1, 2], [3, 4]][1][0] }}
{{ 'a' and 'b' }} {{ '' or 'c' }} {{ not '' }} {{ 1 in [1.0] }} {{ 'abc'.find('c') }} {{ 'abc'.startswith('ab') }} {{ 'a\\nb\\n'.splitlines() }} {{ ['x', 'y'].index('y') }} {{ ''.join(['a', 'b']) }}
{{ dict(a=1, b='c') }} {{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ [1, 2, 3] | length > 2 }} {{ 'A' if 1 > 2 else 'B' if 2 > 3 else 'C' }} {{ strftime_now('%Y-%m-%d %A %B %-d') }}
{% set d = {0: 'a', 512: 'b', 1024: 'c'} %}{{ d[512] }} {{ d.get(0) }} {{ d[7] is defined }} {{ d['512'] is defined }} {{ 1024 in d }} {{ '0' in d }}
{% for k, v in {512: 'b', 0: 'a', 16384: 'c', 1024: 'd'} | dictsort %}{{ k + 1 }}={{ v }},{% endfor %}
{{ {1: 'a', none: 2, true: 'b', 1.5: 'c', 'x': 0} }} {{ {2: [1], 1.5: 0, none: 1, false: 2} | tojson }}
{% set d = {1: 'a', 1.0: 'b', true: 'c'} %}{{ d | length }} {{ d[1] }} {% for k in d %}{{ k }}{% endfor %} {{ d.keys() | list }}
{{ {1: 2} == {1.0: 2} }} {{ {1: 2} == {'1': 2} }} {{ {'a': 1, 2: 3} == {2: 3, 'a': 1} }} {{ dict({1: 2}, a=3) }}
{% for k, v in {'b': 2, 'A': 3, 'c': 1} | dictsort %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'b': 2, 'A': 3, 'c': 1} | dictsort(true) %}{{ k }}{% endfor %} {% for k, v in {'b': 2, 'A': 3, 'c': 1} | dictsort(by='value', reverse=true) %}{{ k }}{% endfor %}"""

# Jinja's filters and tests beyond those of SMALL.
FILTERS = """{{ [3, 1, 2] | min }} {{ [3, 1, 2] | max }} {{ [] | min is defined }} {{ ['b', 'A'] | min }} {{ ['b', 'A', 'a'] | max(case_sensitive=true) }} {{ [{'n': 2}, {'n': 1}] | min(attribute='n') }} {{ 'hello' | max }} {{ [1, 2.5, true] | max }}
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c', 'B'] | sort }} {{ ['b', 'A', 'c', 'B'] | sort(case_sensitive=true) }} {{ ['b', 'A', 'c', 'B'] | sort(reverse=true) }} {{ {'b': 1, 'a': 2} | sort }} {{ 'hello' | sort }} {{ [[2, 1], [1, 9], [1, 3]] | sort }}
{{ [{'n': 2, 'm': 'x'}, {'n': 1, 'm': 'y'}, {'n': 2, 'm': 'a'}] | sort(attribute='n') }} {{ [{'n': 2, 'm': 'x'}, {'n': 1, 'm': 'y'}, {'n': 2, 'm': 'a'}] | sort(attribute='n,m') | map(attribute='m') | join }} {{ [{'n': 2, 'm': 'x'}, {'n': 1, 'm': 'y'}, {'n': 2, 'm': 'a'}] | sort(true, attribute='n') | map(attribute='m') | join }}
{{ [1, 2, 1, 3] | unique | list }} {{ ['a', 'A', 'b'] | unique | list }} {{ ['a', 'A', 'b'] | unique(case_sensitive=true) | list }} {{ [{'n': 1, 'k': 1}, {'n': 1}, {'n': 2}] | unique(attribute='n') | list }} {{ 'banana' | unique | join }}
{{ [1, 2, 3] | sum }} {{ [{'n': 1}, {'n': 2.5}] | sum(attribute='n') }} {{ [1] | sum(start=10) }} {{ [] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ [[1, 5], [2, 6]] | sum(attribute=1) }} {{ [{'a': [1, 2]}] | sum(attribute='a.1') }}
{{ 42.55 | round }} {{ 42.55 | round(1, 'floor') }} {{ 42.55 | round(1, 'ceil') }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 42 | round }} {{ 2.675 | round(2) }} {{ 1.005 | round(2) }} {{ 42 | round(0, 'floor') }} {{ 1234.5 | round(-2) }} {{ 1250 | round(-2) }} {{ 42.7 | round | int }} {{ -0.5 | round }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }} {{ [] | batch(3) | list }} {{ 'abcde' | batch(3, '-') | list }}
{{ [1, 2, 3, 4, 5, 6, 7] | slice(3) | list }} {{ [1, 2, 3, 4, 5, 6, 7] | slice(3, 'x') | list }} {{ [1] | slice(3) | list }} {{ [1, 2, 3, 4] | slice(2, 0) | list }}
{% for g, items in [{'n': 'b', 'v': 1}, {'n': 'a', 'v': 2}, {'n': 'B', 'v': 3}] | groupby('n') %}{{ g }}={{ items | map(attribute='v') | join(',') }};{% endfor %}
{% for g in [{'n': 'b', 'v': 1}, {'n': 'a', 'v': 2}, {'n': 'B', 'v': 3}] | groupby('n', case_sensitive=true) %}{{ g.grouper }}={{ g.list | map(attribute='v') | join(',') }};{% endfor %}{% for g, items in [{'v': 1}, {'n': 'a', 'v': 2}] | groupby('n', default='z') %}{{ g }}={{ items | length }};{% endfor %}
{{ '<a href="x">it&s\\'</a>' | escape }} {{ '<' | e }} {{ 5 | e }} {{ '<>' | forceescape }} {{ '<p>a <b>b</b>\\n  c &amp; d<!-- <i>no</i> --></p> 1 < 2' | striptags }}
{{ 'hello world and more' | truncate(9) }} {{ 'hello world and more' | truncate(9, true) }} {{ 'hello world' | truncate(9) }} {{ 'hello world' | truncate(9, leeway=0) }} {{ 'hello world' | truncate(9, true, '', 0) }} {{ 'a' | truncate }}
[{{ 'ab' | center(5) }}] [{{ 'abc' | center(6) }}] [{{ 'ab' | center(1) }}] {{ 'one two, three-four' | wordcount }} {{ '' | wordcount }}
{{ 'a b/c?d=\u00e9&' | urlencode }} {{ {'a b': 1, 'c': 'x/y'} | urlencode }} {{ [['a', 1], ['b', '&']] | urlencode }}
{{ '%s-%d' | format('a', 3) }} {{ '%05.2f|%-5s|%5s|%+d|%x|%X|%o|%%' | format(3.14159, 'ab', 'cd', 5, 255, 255, 8) }} {{ '%(a)s=%(b)03d' | format(a='x', b=7) }} {{ '%.2s' | format('abc') }} {{ '%s' | format([1, 'a']) }} {{ '%d' | format(3.9) }} {{ '%i % d' | format(-3, 4) }}
{{ {'a': 1} | attr('a') is defined }} {% for x in [1] %}{{ loop | attr('index') }}{% endfor %} {{ [{'n': 1}, {}] | map(attribute='n') | list | length }}
{{ 'abc' is lower }} {{ 'Abc' is lower }} {{ 'ABC' is upper }} {{ '12' is upper }} {{ 'x' is escaped }} {{ 'min' is filter }} {{ 'nothing' is filter }} {{ 'defined' is test }} {{ 'nothing' is test }} {{ 3 is gt 2 }} {{ 3 is lessthan 2 }} {{ 2 is in [1, 2] }} {{ 1 is sameas 1 }}
{{ [1, 2, 3, 4] | select('even') | sum }} {{ [[3, 1], [2]] | map('max') | list }} {{ ['b', 'a'] | sort | first }} {{ [2, 1] | sort | map('string') | join('+') }} {{ 'abc' is filter }}"""

SPACES = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n\n",
    "a  {% if true %}  b{% endif %}\n  {# c #}\n  d {#- e -#}  f",
    "  {{ 'x' }}  \n  {{- 'y' -}}  \n z",
    "a\n  {%+ if true %}\nb\n{% endif +%}\nc",
    "{% if true %}\n\n  x\n{% endif %}\n\n",
    "a\r\nb\r{% if true %}\r\nc{% endif %}",
    "x {% raw -%}  {{ a }}  {%- endraw %} y",
    "{% for i in [1, 2] %}\n  {{ i }}\n  {% endfor %}  \n  {% set x = 1 %}\n\tz",
    "{% set x %}\n  in\n{% endset %}\n[{{ x }}]",
]
WRONG = [
    "{{ missing.field }}",
    "{{ 1 + 'a' }}",
    "{{ 'a' + 1 }}",
    "{{ raise_exception('no') }}",
    "{% if %}x{% endif %}",
    "{% for x in 5 %}{% endfor %}",
    "{% if true %}",
    "{{ 'a' | nothing }}",
    "{{ 1 // 0 }}",
    "{{ (1 }}",
    "{{ 'a }}",
    "{% endif %}",
    "{{ [].append(1) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ range(1000000) }}",
    "{{ missing() }}",
    "{{ [1, 2] < 3 }}",
    "{{ {1: 2, 'a': 3} | dictsort }}",
    "{{ [1, 'a'] | sort }}",
    "{{ ['a', 'b'] | sum }}",
    "{{ [1, 'a'] | max }}",
    "{{ '%d' | format('x') }}",
    "{{ '%s %s' | format(1) }}",
    "{{ '%s' | format(1, 2) }}",
    "{{ 'abc' | round }}",
    "{{ 1 | round(0, 'up') }}",
    "{{ 'abcdef' | truncate(2) }}",
    "{{ [1] | groupby }}",
    "{{ {[1]: 2} }}",
]


def case(name, template, variables):
    try:
        text = ENV.from_string(template).render(**variables)
    except Exception:  # Which one it is does not matter.
        return {"name": name, "template": template, "vars": variables, "error": True}
    spans, plain, at, open_at = [], "", 0, None
    for char in text:
        if char == START:
            open_at = at
        elif char == END:
            spans.append([open_at, at])
        else:
            plain += char
            at += len(char.encode())
    return {"name": name, "template": template, "vars": variables, "text": plain, "spans": spans}


def main():
    TEMPLATES.update(FAMILIES)
    cases = []
    for name, template in TEMPLATES.items():
        for conversation, messages in CONVERSATIONS.items():
            for prompt in (False, True):
                variables = {
                    "messages": messages,
                    "add_generation_prompt": prompt,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                }
                if name in ["macros", *WITH_TOOLS] and prompt:
                    variables["tools"] = [{"type": "function", "name": "f\u00fc"}]
                cases.append(case(f"{name} {conversation} {prompt}", template, variables))
    for at, line in enumerate(SMALL.split("\n")):
        cases.append(case(f"small {at}", line, {}))
    for at, line in enumerate(FILTERS.split("\n")):
        cases.append(case(f"filters {at}", line, {}))
    for at, template in enumerate(SPACES):
        cases.append(case(f"spaces {at}", template, {}))
    for at, template in enumerate(WRONG):
        cases.append(case(f"wrong {at}", template, {}))
    templates = {}
    for item in cases:
        # Store each template once; cases refer to it by name.
        name = item["name"].split()[0]
        if name in TEMPLATES:
            templates[name] = item.pop("template")
            item["of"] = name
    path = pathlib.Path(__file__).parent / "cases.json"
    text = json.dumps({"templates": templates, "cases": cases}, ensure_ascii=True, indent=0)
    path.write_text(text + "\n")


main()
