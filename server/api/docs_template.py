"""How the page at /docs looks: its HTML as a template, and its style. Light and dark, down to a phone's width."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark; --paper: #fdfcfa; --ink: #24292f; --faint: #667079; --line: #e4e0d9; --code: #f4f1eb;
  --mark: #1f6f8b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16191d; --ink: #d9dde2; --faint: #949ea8; --line: #2c3238; --code: #1e2328; --mark: #6cb8d2;
  }
}
body {
  margin: 0 auto; max-width: 64rem; padding: 2rem 1.25rem 6rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: break-word;
}
a, .method, summary { color: var(--mark); text-decoration: none; }
h1 { margin: 0; font-size: 1.9rem; }
h2 { margin: 3.5rem 0 0; }
h3 { margin: 0; font-size: 1.05rem; }
h1 small, h2 + p, .kind, summary + p { color: var(--faint); font-weight: 400; }
p { margin: .6rem 0; max-width: 46rem; }
code, pre { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }
code, pre { background: var(--code); border-radius: .3rem; }
pre { padding: .9rem 1rem; overflow-x: auto; line-height: 1.5; }
pre code, h3 code, nav code, .name { background: none; font-size: 1em; }
ul { margin: 0; padding: 0; list-style: none; }
nav ul { columns: 22rem; }
li li, details li, article, .objects > li { padding: .4rem 0; border-top: 1px solid var(--line); }
li p { margin: 0; color: var(--faint); }
article, .objects > li { margin-top: 1.5rem; padding-top: 1.5rem; }
.method { font-size: .8em; font-weight: 700; }
.name { font-weight: 600; }
summary { cursor: pointer; }
"""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ info.version }}</title>
<style>{{ style }}</style>
</head>
{% macro field(name, schema, required) %}
<li><code class="name">{{ name }}</code> <span class="kind">{{ schema | kind }}
{%- for rule, words in rules.items() if rule in schema %}, {{ words }} {{ schema[rule] | tojson }}{% endfor %}
{{- "" if required else ", optional" }}</span>{{ schema.get("description", "") | prose }}</li>
{% endmacro %}
{% macro fields(schema) %}
{% for name, one in schema.get("properties", {}).items() %}
{{ field(name, one, name in schema.get("required", ())) }}
{% else %}
<li class="kind">{{ schema | kind }}{{ schema.get("description", "") | prose }}</li>
{% endfor %}
{% endmacro %}
<body>
<h1>{{ info.title }} <small>{{ info.version }}</small></h1>
{{ info.description | prose }}
{% if with_key %}
<p>Addresses under <code>/v1/</code> need the server's key: <code>Authorization: Bearer KEY</code>.</p>
{% else %}
<p>This server asks for no key.</p>
{% endif %}
<p>For programs: <a href="/openapi.json">openapi.json</a>. Every error is an <a href="#ErrorReply">ErrorReply</a>.</p>
<nav aria-label="Endpoints"><ul>
{% for one in sections.values() | sum(start=[]) %}
<li><a href="#{{ one.operationId }}"><span class="method">{{ one.method }}</span> <code>{{ one.path }}</code></a></li>
{% endfor %}
</ul></nav>
{% for tag in tags %}
<h2>{{ tag.name }}</h2>
<p>{{ tag.description }}</p>
{% for one in sections[tag.name] %}
<article id="{{ one.operationId }}">
<h3><span class="method">{{ one.method }}</span> <code>{{ one.path }}</code></h3>
<p>{{ one.summary }}</p>
{{ one.description | prose }}
{% for shown, command in one.commands %}
<details{% if loop.first %} open{% endif %}><summary>{{ shown or "Try it" }}</summary>
<pre><code>{{ command }}</code></pre></details>
{% endfor %}
{% if one.parameters or one.fields %}
<details open><summary>Parameters</summary><ul>
{% for each in one.parameters %}{{ field(each.name, each.schema, each.required) }}{% endfor %}
{% for each in one.fields %}{{ fields(each) }}{% endfor %}
</ul></details>
{% endif %}
<details open><summary>Answers</summary><ul>
{% for status, answer in one.responses.items() %}
<li><strong>{{ status }}</strong>{{ answer.description | prose }}
{% for media, content in answer.content.items() if status < "4" %}
<p><code>{{ media }}</code> {{ content.get("x-event-schema", content.schema) | kind }}</p>
{% endfor %}
</li>
{% endfor %}
</ul></details>
</article>
{% endfor %}
{% endfor %}
<h2>Objects</h2>
<ul class="objects">
{% for name, schema in objects.items() %}
<li id="{{ name }}"><code class="name">{{ name }}</code>{{ schema.get("description", "") | prose }}
<ul>{{ fields(schema) }}</ul></li>
{% endfor %}
</ul>
</body>
</html>
"""
