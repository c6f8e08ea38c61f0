"""How the page at /docs looks: its HTML as a template, and its style. Calm, light and dark, down to a phone's width."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfcfa; --ink: #24292f; --faint: #667079; --line: #e4e0d9; --code: #f4f1eb;
  --mark: #1f6f8b; --make: #8a5a12;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16191d; --ink: #d9dde2; --faint: #949ea8; --line: #2c3238; --code: #1e2328;
    --mark: #6cb8d2; --make: #d9a55b;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 6rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word;
}
a { color: var(--mark); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
h1, h2, h3, h4 { line-height: 1.25; font-weight: 600; }
h1 { margin: 0; font-size: 1.9rem; }
h1 small { color: var(--faint); font-size: 1rem; font-weight: 400; }
h2 { margin: 3.5rem 0 0; font-size: 1.4rem; }
h2 + p { margin-top: .25rem; color: var(--faint); }
h3 { margin: 0; font-size: 1.05rem; }
h4 { margin: 1.75rem 0 .5rem; color: var(--faint); font-size: .8rem; letter-spacing: .06em; text-transform: uppercase; }
p { margin: .75rem 0; max-width: 44rem; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code, pre { font-size: .875em; }
code { padding: .1em .3em; border-radius: .25rem; background: var(--code); }
pre { margin: .5rem 0; padding: .9rem 1rem; overflow-x: auto; border-radius: .5rem; background: var(--code); }
pre { line-height: 1.5; }
pre code, h3 code, nav code { padding: 0; background: none; }
pre code { font-size: 1em; }
nav ul { margin: 0; padding: 0; list-style: none; }
nav li { padding: .15rem 0; }
nav strong { display: block; margin-top: 1rem; color: var(--faint); font-size: .8rem; font-weight: 600; }
nav a { color: inherit; }
.method { color: var(--mark); font-size: .8em; font-weight: 700; letter-spacing: .04em; }
.POST { color: var(--make); }
article { margin-top: 1.5rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
article > p:first-of-type { margin-top: .25rem; font-weight: 500; }
.fields, .errors { margin: 0; padding: 0; list-style: none; }
.fields li { padding: .45rem 0; border-top: 1px solid var(--line); }
.fields > li:first-child { border-top: 0; }
.fields .fields { margin: .35rem 0 0; padding-left: 1rem; border-left: 2px solid var(--line); }
.fields .name { font-weight: 600; background: none; padding: 0; }
.kind { color: var(--faint); font-size: .875rem; }
.must { color: var(--make); font-size: .8rem; }
.told { display: block; color: var(--faint); font-size: .925rem; }
.errors li { padding: .3rem 0; }
summary { cursor: pointer; color: var(--mark); font-size: .925rem; }
details { margin: .35rem 0; }
.fields details { margin: .15rem 0 0; }
.example { margin: .75rem 0 0; color: var(--faint); font-size: .925rem; }
@media (min-width: 62rem) {
  body { display: grid; grid-template-columns: 17.5rem minmax(0, 1fr); column-gap: 3.5rem; }
  header { grid-column: 1 / -1; }
  nav { position: sticky; top: 0; align-self: start; max-height: 100vh; padding: 1.5rem 0; overflow-y: auto; }
  nav { font-size: .9rem; }
  main > section:first-child h2 { margin-top: 2.4rem; }
}
"""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ info.version }}</title>
<style>{{ style }}</style>
</head>
{% macro listed(fields, asked) %}
<ul class="fields">
{% for field in fields %}
<li><code class="name">{{ field.name }}</code>
<span class="kind">{{ field.kind }}{% if field.note %}, {{ field.note }}{% endif %}</span>
{% if asked == field.required and field.kind %}<span class="must">{{ "required" if asked else "not always" }}</span>
{% endif %}
{% if field.description %}<span class="told">{{ field.description | prose(inline=True) }}</span>
{% endif %}
{% if field.inside %}
<details{% if not field.kind %} open{% endif %}>
<summary>{{ field.inside | length }} field{{ "" if field.inside | length == 1 else "s" }}</summary>
{{ listed(field.inside, asked) }}</details>
{% endif %}
</li>
{% endfor %}
</ul>
{% endmacro %}
<body>
<header>
<h1>{{ info.title }} <small>{{ info.version }}</small></h1>
{{ info.description | prose }}
{% if with_key %}
<p>Addresses under <code>/v1/</code> need the server's key: <code>Authorization: Bearer KEY</code>.</p>
{% else %}
<p>This server asks for no key.</p>
{% endif %}
<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>
</header>
<nav aria-label="Endpoints">
{% for section in sections %}
<strong>{{ section.name }}</strong>
<ul>
{% for endpoint in section.endpoints %}
<li><a href="#{{ endpoint.anchor }}"><span class="method {{ endpoint.method }}">{{ endpoint.method }}</span>
<code>{{ endpoint.path }}</code></a></li>
{% endfor %}
</ul>
{% endfor %}
</nav>
<main>
{% for section in sections %}
<section>
<h2>{{ section.name }}</h2>
<p>{{ section.description }}</p>
{% for endpoint in section.endpoints %}
<article id="{{ endpoint.anchor }}">
<h3><span class="method {{ endpoint.method }}">{{ endpoint.method }}</span> <code>{{ endpoint.path }}</code></h3>
<p>{{ endpoint.summary }}</p>
{{ endpoint.description | prose }}
<h4>Try it</h4>
{% for shown, command in endpoint.commands %}
{% if loop.first %}
{% if shown %}<p class="example">{{ shown }}</p>
{% endif %}
<pre><code>{{ command }}</code></pre>
{% else %}
<details><summary>{{ shown }}</summary>
<pre><code>{{ command }}</code></pre></details>
{% endif %}
{% endfor %}
{% if endpoint.parameters %}
<h4>Parameters</h4>
{{ listed(endpoint.parameters, True) }}
{% endif %}
<h4>Answer</h4>
{{ endpoint.answer | prose }}
{% for content in endpoint.contents %}
<p class="kind"><code>{{ content.kind }}</code> {{ content.description | prose(inline=True) }}</p>
{% if content.fields %}{{ listed(content.fields, False) }}{% endif %}
{% endfor %}
<details><summary>What can go wrong</summary>
<ul class="errors">
{% for status, meanings in endpoint.errors %}
<li><strong>{{ status }}</strong> {{ meanings | prose(inline=True) }}</li>
{% endfor %}
</ul>
</details>
</article>
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
